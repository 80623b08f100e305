"""Pictures of the live page for the documentation: a real gateway in front of engine-sims, in the real browser.

`make pictures` writes docs/pictures/live-*.png. Two A100 pairs prefill and six H20 decode, all in this process;
running requests are moved as `ares` decides. The load is the workload `chat`. Thresholds are wide: gateway, engines,
load and browser share this machine.
"""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from ballast_api.gateway_settings import GatewaySettings
from ballast_gateway.app import Gateway
from ballast_sim.engine_sim.options import parse_options
from ballast_sim.engine_sim.server import EngineSimServer
from ballast_sim.load import LoadSettings, run_load
from ballast_sim.workloads import load_workload

MODEL = "Qwen/Qwen3-32B"
POLICY = {
    "prefill": {"type": "least-uncached-tokens"},
    "decode": {"type": "ballast"},
    "rescheduling": {"type": "ares"},
}
CLASSES = [
    {"name": "chat", "ttftS": 6.0, "tpotS": 0.1, "attainment": 0.99, "match": {}},
]
RATE_SCALE = 0.9
LOAD_S = 150.0
STARTS_S = 40.0
"""Before the first picture: the fleet has come to its work by then."""


async def engine(stack: AsyncExitStack, role: str, profile: str) -> EngineSimServer:
    """One engine-sim on a free port."""
    transfer = json.dumps({"kv_connector": "NixlConnector", "kv_role": role})
    options, _ = parse_options(
        [MODEL, "--host", "127.0.0.1", "--port", "0", "--profile", profile, "--kv-transfer-config", transfer],
        {"VLLM_NIXL_SIDE_CHANNEL_PORT": "0"},
    )
    server = EngineSimServer(options)
    await server.start()
    stack.push_async_callback(server.stop)
    return server


async def fleet(stack: AsyncExitStack) -> Gateway:
    """The gateway, ready."""
    entries: list[dict[str, Any]] = []
    plan = [("prefill", "kv_producer", "a100-qwen3-32b")] * 2 + [("decode", "kv_consumer", "h20-qwen3-32b")] * 6
    for number, (role, kv_role, profile) in enumerate(plan):
        server = await engine(stack, kv_role, profile)
        name = f"{role}-{profile.split('-')[0]}-{number if role == 'prefill' else number - 2}"
        entries.append({"name": name, "address": f"127.0.0.1:{server.port}", "role": role, "profile": profile})
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ballast-pictures-")))
    (folder / "endpoints.yaml").write_text(json.dumps({"endpoints": entries}))
    settings = {
        "model": {"servedNames": [MODEL]},
        "discovery": {"file": str(folder / "endpoints.yaml")},
        "listeners": {"host": "127.0.0.1", "proxy": 0, "admin": 0},
        "policy": POLICY,
        "objectives": CLASSES,
    }
    gateway = Gateway(GatewaySettings.parse(settings), out=io.StringIO())
    stack.push_async_callback(gateway.close)
    await gateway.start()
    while gateway.not_ready():  # noqa: ASYNC110 - several parts have a share in it
        await asyncio.sleep(0.1)
    return gateway


async def opened(
    browser: Browser, url: str, *, width: int, height: int, scheme: Any = "light", scale: float = 1
) -> Page:
    """The page, with rows on it."""
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=scale
    )
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_selector("#fleet tbody tr")
    return page


async def tell_of_a_choice(page: Page) -> None:
    """Open the story of a request whose prompt could go to both prefill endpoints: a busy machine has one ejected at
    times."""
    for number in range(30):
        await page.locator("#done button").nth(number).click()
        await page.wait_for_selector("#told .cost")
        if "the lowest cost of 2" in await page.locator("#told").inner_text():
            return
        await page.locator("#close").click()
    sys.exit("no request of the last ones had a choice of prefill endpoints; try again with nothing else running")


async def main(folder: Path) -> None:
    """Load the fleet, look at it, write the pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("the pictures need Chromium: apt-get install chromium")
    async with AsyncExitStack() as stack:
        gateway = await fleet(stack)
        url = f"http://127.0.0.1:{gateway.ports['admin']}/ballast/live"
        requests = load_workload(trace=None, workload="chat", duration_s=LOAD_S, rate_scale=RATE_SCALE, seed=1)
        settings = LoadSettings(url=f"http://127.0.0.1:{gateway.ports['proxy']}", model=MODEL, timeout_s=120.0)
        stop = asyncio.Event()
        load = asyncio.create_task(run_load(settings, requests, lambda progress: None, stop))
        try:
            async with async_playwright() as play:
                browser = await play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                wide = {"width": 1240, "height": 760}
                light = await opened(browser, url, **wide)
                dark = await opened(browser, url, **wide, scheme="dark")
                phone = await opened(browser, url, width=380, height=780)
                await asyncio.sleep(STARTS_S)
                await light.screenshot(path=folder / "live-light.png")
                await phone.screenshot(path=folder / "live-phone.png")
                await tell_of_a_choice(dark)
                await dark.locator("#story").screenshot(path=folder / "live-dark.png")
                await browser.close()
        finally:
            stop.set()
            await load


if __name__ == "__main__":
    pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures))
