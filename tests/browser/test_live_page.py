"""The live page in the real browser: what it shows, what it is asked, and that nothing of the fleet becomes markup."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect

from ballast_core.model import Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Role
from ballast_core.model.effects import Migrate
from tests.gateway.test_live_together import two_gateways
from tests.support.gateway_kit import RunningGateway, post, raw_exchange, running_gateway
from tests.support.scripted_engine import decode_script, prefill_script, scripted_engine
from tests.support.view_kit import view_of

CHROMIUM = shutil.which("chromium", path=f"{os.environ.get('PATH', '')}:/usr/bin")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true", reason="no Chromium: make chromium installs Debian's"
)

HOSTILE = "<img/src=x/onerror=document.title='broken'>"
MARKUP = f'"><script>document.title="broken"</script>{HOSTILE}'
BACKWARDS = "\u202egpj.evil\u202c \u2067שלום\u2069\u0000\u2028"
CHAT = {"name": MARKUP, "ttftS": 60, "attainment": 0.9, "match": {}}


@asynccontextmanager
async def browsing() -> AsyncIterator[Callable[..., Awaitable[Page]]]:
    """Opens pages; an error of a script, a breach of its policy or a request elsewhere is a failure of the test."""
    assert CHROMIUM is not None, "CI has Chromium: make chromium"
    wrong: list[str] = []
    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        async def open_page(**options: Any) -> Page:
            page = await (await browser.new_context(**options)).new_page()
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
            page.on("request", lambda asked: wrong.append(asked.url) if "127.0.0.1" not in asked.url else None)
            return page

        try:
            yield open_page
            assert wrong == []
        finally:
            await browser.close()


def known(gateway: RunningGateway, name: str, role: Role) -> None:
    """Discovery and a scrape tell of an endpoint."""
    app = gateway.gateway
    endpoint = Endpoint(EndpointId(name), "127.0.0.1:1", role, pool=MARKUP)
    app.fleet.ready(endpoint, proven=True)
    app.fleet.scraped(app.fleet.members[endpoint.id], Observation(app.driver.now_s(), 3, 1, 0.42))


@pytest.mark.rotating(4)
async def test_the_page_shows_the_fleet_and_explains_a_request_whatever_its_names_hold(tmp_path: Path) -> None:
    """It asks for the token and keeps it, names are text, a move is drawn, and a key opens why a request is there.

    On a phone nothing is wider than the screen. A stream that breaks off is asked for again.
    """
    file = tmp_path / "token"
    file.write_text("sesame")
    admin, scrape = {"tokenFile": str(file)}, {"intervalS": 60}
    decodes = [f"d0{HOSTILE}", f"d1 {BACKWARDS}", "d2" + "x" * 240]
    async with (
        running_gateway(tmp_path, {}, admin=admin, scrape=scrape, objectives=[CHAT]) as gateway,
        browsing() as open_page,
    ):
        page = await open_page(viewport={"width": 1280, "height": 800}, color_scheme="dark", reduced_motion="reduce")
        app = gateway.gateway
        known(gateway, "p0", Role.PREFILL)
        for name in decodes:
            known(gateway, name, Role.DECODE)
        await page.goto(f"{gateway.admin_url}/")
        await enters(page)
        await expect(page.locator(".decode tbody tr")).to_have_count(3)

        ticket = app.driver.open(Request(RequestId(HOSTILE), 1234, model=MARKUP))
        row = page.locator("#now tbody tr")
        await expect(row).to_contain_text("prefill")
        await expect(row.locator("button")).to_have_text(HOSTILE)
        dispatch = ticket.poll()
        assert dispatch is not None
        ticket.prefill_done()
        await expect(row).to_contain_text("decode")
        source, target = dispatch.decode, next(one for one in app.driver.endpoints() if one.id == decodes[1])
        move = Migrate(ticket.request.id, source, target)
        app.decisions(move, app.driver.now_s())
        await expect(page.locator("#moves")).to_contain_text("d1")
        await expect(page.locator("#air path")).to_have_count(1)

        await row.locator("button").focus()
        await page.keyboard.press("Enter")
        told = page.locator("#told")
        await expect(told.locator(".cost").first).to_be_visible()
        await expect(told).to_contain_text("Prompt placed")
        assert await told.locator("tr.chosen").count() == 3  # at arrival for both stages, at the hand-off for one
        assert await told.locator("tbody tr").count() == 1 + 3 + 3
        await page.keyboard.press("Escape")
        await expect(page.locator("#story")).not_to_be_visible()
        await page.evaluate("document.activeElement.blur()")
        ticket.end(Outcome.COMPLETED, 3)
        await expect(row).to_have_count(0)

        names = await page.locator(".decode tbody tr bdi").all_text_contents()
        assert sorted(names) == sorted(decodes)
        assert await page.locator("img, iframe, #all script").count() == 0
        assert await page.title() == "Ballast, live"

        await fits_a_phone_and_comes_back(open_page, gateway)


@pytest.mark.rotating(3)
async def test_the_page_of_one_gateway_shows_what_another_has_done(tmp_path: Path) -> None:
    """A request that the other one dispatched, its reasons, its end; and alone what this one has done itself."""
    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(decode_script) as decode,
        two_gateways(tmp_path, {"p0": prefill.address, "d0": decode.address}) as (first, second),
        browsing() as open_page,
    ):
        page = await open_page()
        await page.goto(f"http://127.0.0.1:{first.ports['admin']}/")
        await expect(page.locator("#who")).to_contain_text("all 2 gateways")
        await expect(page.locator("#scope")).to_contain_text("are sums, asked of the others")
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
        await raw_exchange(second.ports["proxy"], post("/v1/completions", body, "x-request-id: far"), answers=1)
        row = page.locator("#done tbody tr")
        await expect(row).to_contain_text(f"{view_of(second).me}/far")
        await expect(page.locator(".class")).to_contain_text("1 of 1")
        await row.locator("button").click()
        await expect(page.locator("#told .cost")).to_have_count(3)
        await expect(page.locator("#told")).to_contain_text("Prompt placed")
        await page.keyboard.press("Escape")
        await page.mouse.move(0, 0)  # lists stand still below the pointer
        await page.select_option("#part", "only=1")
        await expect(page.locator("#who")).to_contain_text(view_of(first).me)
        await expect(row).to_have_count(0)


class Pipe:
    """Passes connections on to a port, until it keeps those that are open, without a word and without an end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._passes: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stall(self) -> None:
        for each in self._passes:
            each.clear()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passes = asyncio.Event()
        passes.set()
        self._passes.append(passes)
        answers, asks = await asyncio.open_connection("127.0.0.1", self._port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                await passes.wait()
                target.write(data)
                await target.drain()

        try:
            await asyncio.gather(copy(reader, asks), copy(answers, writer))
        finally:
            asks.close()
            writer.close()


@pytest.mark.rotating(4)
async def test_a_connection_whose_other_end_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    """A node that dies, a port-forward that stalls: nothing comes, and no end either. The page asks again."""
    async with running_gateway(tmp_path, {}, scrape={"intervalS": 60}) as gateway, browsing() as open_page:
        known(gateway, "d0", Role.DECODE)
        pipe = Pipe(gateway.gateway.ports["admin"])
        server = await asyncio.start_server(pipe, "127.0.0.1", 0)
        try:
            page = await open_page()
            await page.clock.install()
            await page.goto(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/ballast/live")
            await expect(page.locator("#link")).to_have_text("live")
            pipe.stall()
            await expect(page.locator("#link")).to_contain_text("silent for", timeout=10_000)
            await page.clock.fast_forward(8_000)
            await expect(page.locator("#link")).to_contain_text(re.compile(r"silent for 1\d s"))
            await page.clock.fast_forward(8_000)
            await expect(page.locator("#link")).to_have_text("live")
        finally:
            server.close()
            await pipe.end()


async def enters(page: Page) -> None:
    """A wrong token first; the right one is kept in the tab, and in no address."""
    await expect(page.locator("#why")).to_contain_text("admin token")
    await page.fill("#token", "wrong")
    await page.keyboard.press("Enter")
    await expect(page.locator("#why")).to_contain_text("not the gateway's")
    await page.fill("#token", "sesame")
    await page.keyboard.press("Enter")
    await expect(page.locator("#link")).to_have_text("live")
    assert "sesame" not in page.url
    await page.reload()


async def fits_a_phone_and_comes_back(open_page: Callable[..., Awaitable[Page]], gateway: RunningGateway) -> None:
    """On a small screen, after its stream has broken off."""
    phone = await open_page(viewport={"width": 360, "height": 700}, is_mobile=True, has_touch=True)
    await phone.goto(f"{gateway.admin_url}/ballast/live")
    await phone.fill("#token", "sesame")
    await phone.tap("#enter button")
    await expect(phone.locator(".decode tbody tr")).to_have_count(3)
    assert await phone.evaluate("document.documentElement.scrollWidth") <= 360
    gateway.gateway.live.watchers.close()
    await expect(phone.locator("#link")).to_have_text("reconnecting")
    await expect(phone.locator("#link")).to_have_text("live")
