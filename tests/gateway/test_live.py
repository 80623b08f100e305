"""The live page's data: one snapshot, what changes between two, who gets it, and its bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ballast_core.model import Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Role
from ballast_gateway.live import serving, taking, watchers
from ballast_gateway.live.frames import delta, encoded, event
from ballast_gateway.live.page import page
from ballast_gateway.live.rows import EVENTS, LIVE, PAGE, REQUEST, Frame
from ballast_gateway.live.watchers import MOST_WATCHERS, TooMany, Watchers
from tests.support.gateway_kit import RunningGateway, post, raw_exchange, running_gateway, until
from tests.support.scripted_engine import decode_script, prefill_script, scripted_engine

CHAT = {"name": "chat", "ttftS": 60, "attainment": 0.9, "match": {}}
RARELY = {"intervalS": 60}
"""Of endpoints that are only said to be there."""


def known(gateway: RunningGateway, name: str, role: Role, *, running: int = 0) -> None:
    """Discovery and a scrape tell of an endpoint."""
    app = gateway.gateway
    endpoint = Endpoint(EndpointId(name), "127.0.0.1:1", role, profile="h20-qwen3-32b")
    app.fleet.ready(endpoint, proven=True)
    app.fleet.scraped(app.fleet.members[endpoint.id], Observation(app.driver.now_s(), running, 0, 0.25))


def frame(client: httpx.Response) -> Frame:
    return msgspec.json.decode(client.content, type=Frame)


def applied(before: Frame, change: Frame) -> Frame:
    """What a page makes of a frame that says what has changed."""
    gone = set(change.endpoints_gone), set(change.requests_gone)
    endpoints = {row.name: row for row in before.endpoints if row.name not in gone[0]}
    requests = {row.id: row for row in before.requests if row.id not in gone[1]}
    return msgspec.structs.replace(
        change,
        about=change.about or before.about,
        attainment=before.attainment if change.attainment is None else change.attainment,
        endpoints=tuple((endpoints | {row.name: row for row in change.endpoints}).values()),
        requests=tuple((requests | {row.id: row for row in change.requests}).values()),
        endpoints_gone=(),
        requests_gone=(),
        recent=(*before.recent, *change.recent),
        placed=(*before.placed, *change.placed),
    )


@asynccontextmanager
async def events(url: str, **headers: str) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
    """The stream as a page reads it."""

    async def read(answer: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        kind = ""
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)

    async with (
        httpx.AsyncClient(timeout=20.0) as client,
        client.stream("GET", f"{url}{EVENTS}", headers=headers) as answer,
    ):
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
        yield read(answer)


async def test_a_snapshot_has_what_the_gateway_knows_and_a_request_has_its_reasons(tmp_path: Path) -> None:
    """Endpoints with what was scraped and what is booked, the request that ended, its class, and why it went there."""
    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(decode_script) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}, objectives=[CHAT]) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        await raw_exchange(
            gateway.port,
            post("/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 3}, "x-request-id: one"),
            answers=1,
        )
        seen = frame(await admin.get(LIVE))
        assert seen.about is not None
        assert (seen.about.models, seen.about.policies["decode"], seen.about.view) == (
            "tiny, tiny-alias",
            "ballast",
            False,
        )
        assert [(row.name, row.role, row.state) for row in seen.endpoints] == [
            ("p0", "prefill", "ready"),
            ("d0", "decode", "ready"),
        ]
        [ended] = seen.recent
        assert (ended.id, ended.outcome, ended.prefill, ended.decode) == ("one", "completed", "p0", "d0")
        assert (ended.objective, ended.met) == ("chat", True)
        assert [(row.name, row.minute.within, row.target) for row in seen.attainment or ()] == [("chat", 1, 0.9)]
        assert [(row.kind, row.source, row.target) for row in seen.placed] == [
            ("dispatch", "p0", "d0"),
            ("handoff", "", "d0"),
        ]
        story = (await admin.get(REQUEST, params={"id": "one"})).json()
        assert [each["decision"] for each in story["decisions"]] == ["dispatch", "handoff"]
        assert story["decisions"][0]["placements"][1]["candidates"][0]["endpoint"] == "d0"
        assert story["ended"] == json.loads(encoded(ended))
        assert (await admin.get(REQUEST, params={"id": "two"})).status_code == 404


async def test_frames_of_changes_make_the_whole_again(tmp_path: Path) -> None:
    """Requests come, move on and end, an endpoint comes and another goes; a page that adds it up has the snapshot."""
    async with running_gateway(tmp_path, {}, scrape=RARELY) as gateway:
        app = gateway.gateway
        take = app.live.taking.snapshot
        for name, role in (("p0", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)):
            known(gateway, name, role)
        tickets = [app.driver.open(Request(RequestId(f"r{k}"), 100 + k)) for k in range(3)]
        page_has = before = take(0)
        assert {row.phase for row in before.requests} == {"prefill"}
        assert sum(row.prefills for row in before.endpoints) == 3

        tickets[0].poll()
        tickets[0].prefill_done()
        tickets[1].end(Outcome.COMPLETED, 5)
        known(gateway, "d2", Role.DECODE, running=7)
        app.fleet.gone(EndpointId("d1"))
        after = take(1)
        change = delta(before, after)
        assert [row.id for row in change.requests if row.phase == "decode"] == ["r0"]
        assert change.requests_gone == ("r1",)
        assert "d2" in {row.name for row in change.endpoints}
        assert change.endpoints_gone == ("d1",)
        assert [row.kind for row in change.placed] == ["handoff"]
        page_has = applied(page_has, change)
        for rows in ("endpoints", "requests"):
            assert set(getattr(page_has, rows)) == set(getattr(after, rows))
        assert (page_has.about, page_has.attainment, page_has.placed) == (after.about, after.attainment, after.placed)

        idle = delta(after, take(2))
        assert (idle.about, idle.requests, idle.placed, idle.recent) == (None, (), (), ())
        assert len(event("delta", idle)) < 400
        for ticket in tickets:
            ticket.end(Outcome.CANCELLED)


async def test_rows_are_bounded_and_the_newest_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests are in flight."""
    monkeypatch.setattr(taking, "MOST_REQUESTS", 3)
    async with running_gateway(tmp_path, {}, scrape=RARELY) as gateway:
        app = gateway.gateway
        known(gateway, "f0", Role.FLEXIBLE)
        tickets = [app.driver.open(Request(RequestId(f"r{k}"), 10)) for k in range(5)]
        seen = app.live.taking.snapshot(0)
        assert ([row.id for row in seen.requests], seen.own) == (["r4", "r3", "r2"], 5)
        for ticket in tickets:
            ticket.end(Outcome.CANCELLED)


async def test_who_may_not_ask_gets_the_page_without_data(tmp_path: Path) -> None:
    """The page is open and runs its own script alone; its data asks for the token, in a header."""
    file = tmp_path / "token"
    file.write_text("sesame")
    async with (
        running_gateway(tmp_path, {}, admin={"tokenFile": str(file)}) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        assert (await admin.get("/")).headers["location"] == PAGE
        shown = await admin.get(PAGE)
        assert (shown.status_code, shown.content) == (200, page().body)
        policy = shown.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy
        for path in (LIVE, EVENTS, f"{REQUEST}?id=one"):
            assert (await admin.get(path)).status_code == 401
            assert (await admin.get(path, headers={"authorization": "Bearer wrong"})).status_code == 401
            assert (await admin.get(path, params={"token": "sesame"})).status_code == 401
        assert (await admin.post(PAGE)).status_code == 401
        async with events(gateway.admin_url, authorization="Bearer sesame") as stream:
            assert (await anext(stream))[0] == "all"


async def test_frames_are_made_while_somebody_watches_and_streams_end_with_the_gateway(tmp_path: Path) -> None:
    """The first event is whole, the next ones are changes. Nobody watches: nothing is made."""
    async with running_gateway(tmp_path, {}) as gateway:
        app = gateway.gateway
        async with events(gateway.admin_url) as stream:
            assert [(await anext(stream))[0] for _ in range(3)] == ["all", "delta", "delta"]
            assert len(app.live.watchers) == 1
        await until(lambda: len(app.live.watchers) == 0)
        spent_s = app.live.watchers.spent_s
        await asyncio.sleep(2 * watchers.EVERY_S)
        assert app.live.watchers.spent_s == spent_s > 0
        async with events(gateway.admin_url) as stream:
            await anext(stream)
            app.live.watchers.close()
            async for _ in stream:
                pass


def made(number: int) -> Frame:
    return Frame(number=number, unix_s=0.0, own=0, others=0, waiting=0, wait_s=0.0, ended=0, decided=0)


async def test_watchers_are_bounded_and_a_slow_one_gets_a_whole_frame_instead_of_those_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is kept for it. Whoever is one too many is refused, and let in when another has left."""
    monkeypatch.setattr(watchers, "EVERY_S", 0.001)
    taken: list[int] = []

    def take(number: int) -> Frame:
        taken.append(number)
        return made(number)

    crowd = Watchers(take)
    with crowd.watching() as quick, crowd.watching() as slow:
        assert (await anext(slow)).startswith(b"event: all\nid: 0\n")
        for _ in range(5):
            await anext(quick)
        late = await anext(slow)
        assert late.startswith(b"event: all\n")
        assert int(late.split(b"\n")[1].removeprefix(b"id: ")) >= 4
        assert (await anext(slow)).startswith(b"event: delta\n")
        open_ones = [crowd.watching() for _ in range(MOST_WATCHERS - 2)]
        for each in open_ones:
            each.__enter__()
        with pytest.raises(TooMany), crowd.watching():
            pass
        for each in open_ones:
            each.__exit__(None, None, None)
        with crowd.watching():
            pass
    assert len(crowd) == 0
    made_by_then = len(taken)
    await asyncio.sleep(0.02)
    assert len(taken) == made_by_then


async def test_a_client_that_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place among the watchers is free again."""
    monkeypatch.setattr(serving, "STUCK_S", 0.01)
    never, crowd = asyncio.Event(), Watchers(made)

    async def receive() -> dict[str, Any]:
        await never.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await never.wait()

    async with asyncio.timeout(20):
        with crowd.watching() as stream:
            assert len(crowd) == 1
            await serving.stream(stream, receive, send)
    assert len(crowd) == 0


async def test_frames_that_take_long_come_less_often() -> None:
    """No more than a hundredth of a core: a frame of 10 ms is followed by a second of rest."""
    clock = [0.0]

    def take(number: int) -> Frame:
        clock[0] += 0.010
        return made(number)

    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await asyncio.sleep(0)

    crowd = Watchers(take, processor_s=lambda: clock[0], rest=rest)
    with crowd.watching() as stream:
        for _ in range(3):
            await anext(stream)
    assert rests[0] == pytest.approx(1.0)


async def test_a_first_frame_that_waits_for_others_is_not_charged_for_what_goes_on_meanwhile() -> None:
    """The loop's other work while it waits is no reason to rest."""
    clock, rests = [0.0], []

    async def waits(number: int) -> Frame:
        await asyncio.sleep(0)
        clock[0] += 0.5
        return made(number)

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        clock[0] = 0.0
        await asyncio.sleep(0)

    crowd = Watchers(lambda number: made(number) if number else waits(number), processor_s=lambda: clock[0], rest=rest)
    with crowd.watching() as stream:
        await anext(stream)
        await anext(stream)
    assert rests[0] == watchers.EVERY_S


async def test_a_fault_of_ours_ends_the_streams_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for a frame that will not come."""

    def take(number: int) -> Frame:
        raise LookupError("no such slot")

    crowd = Watchers(take)
    with crowd.watching() as stream:
        assert [part async for part in stream] == []
    assert "cannot be made" in caplog.text
