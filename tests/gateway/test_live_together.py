"""The live page of several gateways, or of one with workers: sums of what each has done, one fleet, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ballast_gateway.app import Gateway
from ballast_gateway.live import shares as module
from ballast_gateway.live.frames import delta, encoded
from ballast_gateway.live.rows import (
    LIVE,
    ONLY,
    REQUEST,
    About,
    AttainmentRow,
    EndedRow,
    EndpointRow,
    Frame,
    PlacedRow,
    RequestRow,
    Tally,
)
from ballast_gateway.live.shares import Shares
from ballast_gateway.live.together import Together
from ballast_gateway.podapi.messages import SHARE
from tests.gateway.test_proxy_engine_sim import Line
from tests.gateway.test_workers import running
from tests.support.gateway_kit import post, raw_exchange, until
from tests.support.scripted_engine import decode_script, prefill_script, scripted_engine
from tests.support.view_kit import ViewFleet, view_of

D0 = EndpointRow("d0", "decode", "d", "ready", 3, 0, 0.5, 0.4, 0, 0, 3, 900, 12.0, None, 0.0)


def ended(name: str, at_s: float) -> EndedRow:
    return EndedRow(name, "m", "chat", True, "completed", "", "", "d0", 10, 5, int(1e3 * at_s), None, 0.1, 0.5, 0, 0)


def in_flight(name: str, *, ours: bool, arrived_ms: int = 0) -> RequestRow:
    return RequestRow(name, "m", "decode", "", "d0", "", 10, arrived_ms, ours)


def attained(within: int, outside: int, name: str = "chat") -> AttainmentRow:
    return AttainmentRow(name, 2.0, None, None, 0.9, Tally(within, outside, 0), Tally(2 * within, outside, 1))


def frame(name: str, **more: Any) -> Frame:
    about = About(whose="", models="m", policies={}, name=name, view=True, leads=name == "gw-1", peers=1)
    given = {"own": 0, "others": 0, "waiting": 0, "wait_s": 0.0, "ended": 0, "decided": 0, "about": about}
    return Frame(**{"number": 7, "unix_s": 100.0, **given, **more})


def test_counts_and_attainment_are_sums_and_requests_are_as_on_the_books() -> None:
    """In flight are those of this gateway's books, and those that wait elsewhere; a third gateway is silent."""
    own = frame(
        "gw-0",
        own=1,
        others=3,
        waiting=2,
        wait_s=0.5,
        endpoints=(D0,),
        attainment=(attained(3, 1),),
        requests=(in_flight("a", ours=True), in_flight("gw-1/b", ours=False), in_flight("gw-2/c", ours=False)),
    )
    share = frame(
        "gw-1",
        own=2,
        waiting=1,
        wait_s=0.2,
        attainment=(attained(5, 0), attained(1, 1, "batch")),
        requests=(in_flight("held", ours=True, arrived_ms=9),),
    )
    found = Together()(own, {"gw-1": share}, 3)
    assert (found.own, found.others, found.waiting, found.wait_s) == (3, 1, 3, 0.5)
    assert found.endpoints == (D0,)
    chat = AttainmentRow("chat", 2.0, None, None, 0.9, Tally(8, 1, 0), Tally(16, 1, 2))
    assert found.attainment == (chat, attained(1, 1, "batch"))
    assert {row.id for row in found.requests} == {"a", "gw-1/b", "gw-2/c", "gw-1/held"}
    assert found.about is not None
    assert (found.about.whose, found.about.together, found.about.leads) == ("2 of 3 gateways", 2, True)


def test_what_ends_at_any_gateway_comes_once_and_last() -> None:
    """Though one that is asked later tells of an earlier end; one that began anew counts from 0 again."""
    together, far = Together(), frame("gw-1", ended=1, recent=(ended("b", 2),))
    first = together(frame("gw-0", ended=1, recent=(ended("a", 1),)), {"gw-1": frame("gw-1")}, 2)
    own = frame("gw-0", ended=2, recent=(ended("a", 1), ended("c", 3)), decided=1, placed=(PLACED,))
    again = together(own, {"gw-1": far}, 2)
    assert (first.ended, again.ended, again.decided) == (1, 3, 1)
    change = delta(first, again)
    assert [row.id for row in change.recent] == ["gw-1/b", "c"]
    assert change.placed == (PLACED,)
    same = together(own, {"gw-1": far}, 2)
    assert (same.ended, delta(again, same).recent) == (3, ())
    silent = together(own, {}, 2)
    anew = together(frame("gw-0", ended=1, recent=(ended("d", 4),)), {"gw-1": far}, 2)
    assert (silent.ended, anew.ended) == (3, 4)
    assert [row.id for row in delta(silent, anew).recent] == ["d"]


PLACED = PlacedRow("dispatch", "c", "", "d0")


def test_a_move_that_another_ordered_is_shown_under_the_id_that_the_request_has_here() -> None:
    """One that leads moves requests of all: of this gateway, of a third one, and its own."""
    placed = tuple(PlacedRow("migrate", name, "d0", "d1") for name in ("gw-0/mine", "gw-2/third", "own"))
    shares = {"gw-1": frame("gw-1", decided=3, placed=placed), "gw-2": frame("gw-2")}
    found = Together()(frame("gw-0"), shares, 3)
    assert [row.id for row in found.placed] == ["mine", "gw-2/third", "gw-1/own"]


async def test_two_gateways_show_the_fleet_at_either(tmp_path: Path) -> None:
    """Each has served one request: both pages show both, why the other's went there, and alone what it did itself."""
    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(decode_script) as decode,
        two_gateways(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateways,
        httpx.AsyncClient(timeout=20) as client,
    ):
        for name, gateway in zip(("one", "two"), gateways, strict=True):
            body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
            await raw_exchange(
                gateway.ports["proxy"], post("/v1/completions", body, f"x-request-id: {name}"), answers=1
            )
        first, second = gateways
        url = f"http://127.0.0.1:{first.ports['admin']}"
        other = f"{view_of(second).me}/two"
        seen = msgspec.json.decode((await client.get(f"{url}{LIVE}")).content, type=Frame)
        assert seen.about is not None
        assert (seen.about.whose, seen.about.together) == ("all 2 gateways", 2)
        assert (seen.ended, {row.id for row in seen.recent}) == (2, {"one", other})
        assert [row.minute.within for row in seen.attainment or ()] == [2]
        assert {row.id for row in seen.placed} == {"one", other}
        assert [row.name for row in seen.endpoints] == ["p0", "d0"]

        story = (await client.get(f"{url}{REQUEST}", params={"id": other})).json()
        assert [each["decision"] for each in story["decisions"]] == ["dispatch", "handoff"]
        assert story["ended"][0] == "two"
        assert (await client.get(f"{url}{REQUEST}", params={"id": other + "x"})).status_code == 404

        alone = msgspec.json.decode((await client.get(f"{url}{LIVE}", params={ONLY: "1"})).content, type=Frame)
        assert (alone.ended, [row.id for row in alone.recent]) == (1, ["one"])

        await second.close()
        left = msgspec.json.decode((await client.get(f"{url}{LIVE}")).content, type=Frame)
        assert left.about is not None
        assert (left.about.whose, left.ended) == ("1 of 2 gateways", 1)


@asynccontextmanager
async def two_gateways(tmp_path: Path, addresses: dict[str, str]) -> AsyncIterator[list[Gateway]]:
    """Proxies before the same engines, which hear each other."""
    fleet = ViewFleet(tmp_path, addresses, {})
    chat = {"name": "chat", "ttftS": 60, "attainment": 0.9, "match": {}}
    try:
        for _ in range(2):
            await fleet.start(face="Proxy", objectives=[chat])
        await until(lambda: all(view_of(each).connected() == (0, 1) for each in fleet.gateways))
        yield fleet.gateways
    finally:
        await fleet.close()


async def test_one_that_does_not_answer_delays_nobody() -> None:
    """It is not asked again while it owes an answer, and counts as missing; what others say comes on."""
    taking: Any = Scripted()
    others = TwoOthers()
    shares = Shares(taking, lambda: others)
    began_s = asyncio.get_running_loop().time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FIRST_S", 0.02)
        patch.setattr(module, "EVERY_S", 0.0)
        seen = [await shares.frame(number) for number in range(2)]
        while others.asked.count("quick") < 3:
            seen.append(await shares.frame(len(seen)))
            await asyncio.sleep(0)
    shares.close()
    assert asyncio.get_running_loop().time() - began_s < 10
    assert others.asked.count("silent") == 1
    last = seen[-1]
    assert last.about is not None
    assert (last.about.whose, last.ended) == ("2 of 3 gateways", 5)
    assert others.targets[-1] == f"{SHARE}?ended=5&decided=0"


class Scripted:
    def snapshot(self, number: int) -> Frame:
        return frame("gw-0", number=number)


class TwoOthers:
    """One answers, one never."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.targets: list[str] = []

    def gateways(self) -> dict[str, str]:
        return {"quick": "a:1", "silent": "b:1"}

    def peers(self) -> int:
        return 2

    async def ask(self, gateway: str, target: str) -> bytes | None:
        self.asked.append(gateway)
        if gateway == "silent":
            await asyncio.Event().wait()
        self.targets.append(target)
        return encoded(frame("quick", ended=5))


@pytest.mark.rotating(3)
async def test_the_page_of_two_workers_shows_what_both_have_served(tmp_path: Path) -> None:
    """Requests over many connections reach both; all have ended there, meet the objective, and can be asked for."""
    chat = {"name": "chat", "ttftS": 60, "attainment": 0.9, "match": {}}
    async with Line(tmp_path) as line:
        await line.start()
        addresses = {name: f"127.0.0.1:{engine.port}" for name, engine in line.engines.items()}
        folder = tmp_path / "process"
        folder.mkdir()
        async with running(folder, addresses, objectives=[chat]) as at, httpx.AsyncClient(timeout=60) as client:
            url = f"http://127.0.0.1:{at.ports['proxy']}/v1/completions"

            async def ask(number: int) -> None:
                async with httpx.AsyncClient(timeout=60) as one:
                    body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 2}
                    await one.post(url, json=body, headers={"x-request-id": f"r{number}"})

            async def of(**params: str) -> Frame:
                answer = await client.get(f"{at.admin_url}{LIVE}", params=params)
                return msgspec.json.decode(answer.content, type=Frame)

            served: list[int] = []
            for turn in range(20):
                await asyncio.gather(*(ask(8 * turn + k) for k in range(8)))
                served = [(await of(worker=name)).ended for name in ("0", "1")]
                if all(served):
                    break
            found = await of()
            assert all(served), "a kernel that gives all connections to one"
            assert found.ended == sum(served) == len(found.recent)
            [row] = found.attainment or ()
            assert (row.minute.within, row.minute.outside) == (sum(served), 0)
            story = await client.get(f"{at.admin_url}{REQUEST}", params={"id": "r0"})
            assert story.json()["ended"][0] == "r0"
