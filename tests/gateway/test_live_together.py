"""The live page of a gateway with workers: sums of what each has done, one fleet, and nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ballast_gateway.live.frames import delta
from ballast_gateway.live.rows import (
    LIVE,
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
from ballast_gateway.live.together import Together
from tests.gateway.test_proxy_engine_sim import Line
from tests.gateway.test_workers import running

D0 = EndpointRow("d0", "decode", "d", "ready", 3, 0, 0.5, 0.4, 0, 0, 3, 900, 12.0, None, 0.0)


def ended(name: str, at_s: float) -> EndedRow:
    return EndedRow(name, "m", "chat", True, "completed", "", "", "d0", 10, 5, int(1e3 * at_s), None, 0.1, 0.5, 0, 0)


def in_flight(name: str, *, ours: bool, arrived_ms: int = 0) -> RequestRow:
    return RequestRow(name, "m", "decode", "", "d0", "", 10, arrived_ms, ours)


def attained(within: int, outside: int, name: str = "chat") -> AttainmentRow:
    return AttainmentRow(name, 2.0, None, None, 0.9, Tally(within, outside, 0), Tally(2 * within, outside, 1))


def frame(worker: str, **more: Any) -> Frame:
    about = About(whose=f"worker {worker}", models="m", policies={}, name=f"gw-{worker}", view=True, peers=1)
    given = {"own": 0, "others": 0, "waiting": 0, "wait_s": 0.0, "ended": 0, "decided": 0, "about": about}
    return Frame(**{"number": 7, "unix_s": 100.0, **given, **more})


def test_counts_and_attainment_are_sums_and_endpoints_are_shown_once() -> None:
    """Each worker has all of the fleet's requests on its books: its own, and the other's by another id."""
    zero = frame(
        "0",
        own=1,
        others=3,
        waiting=2,
        wait_s=0.5,
        endpoints=(D0,),
        attainment=(attained(3, 1),),
        requests=(in_flight("a", ours=True), in_flight("gw-1/b", ours=False), in_flight("gw-far/c", ours=False)),
    )
    one = frame(
        "1",
        own=2,
        others=2,
        waiting=1,
        wait_s=0.2,
        endpoints=(D0,),
        attainment=(attained(5, 0), attained(1, 1, "batch")),
        requests=(in_flight("b", ours=True, arrived_ms=9), in_flight("gw-0/a", ours=False)),
    )
    found = Together()(0, {"0": zero, "1": one}, 2)
    assert (found.own, found.others, found.waiting, found.wait_s) == (3, 1, 3, 0.5)
    assert found.endpoints == (D0,)
    chat = AttainmentRow("chat", 2.0, None, None, 0.9, Tally(8, 1, 0), Tally(16, 1, 2))
    assert found.attainment == (chat, attained(1, 1, "batch"))
    assert [row.id for row in found.requests] == ["a", "gw-far/c", "b"]
    assert found.about is not None
    assert (found.about.whose, found.about.peers) == ("this gateway with all 2 workers", 0)


def test_what_ends_at_any_worker_comes_once_and_last() -> None:
    """Though one that is asked later tells of an earlier end; a worker that began anew counts from 0 again."""
    together = Together()
    first = together(0, {"0": frame("0", ended=1, recent=(ended("a", 1),)), "1": frame("1")}, 2)
    again = together(
        1,
        {
            "0": frame("0", ended=2, recent=(ended("a", 1), ended("c", 3)), decided=1, placed=(PLACED,)),
            "1": frame("1", ended=1, recent=(ended("b", 2),)),
        },
        2,
    )
    assert (first.ended, again.ended, again.decided) == (1, 3, 1)
    change = delta(first, again)
    assert [row.id for row in change.recent] == ["b", "c"]
    assert change.placed == (PLACED,)
    anew = together(2, {"0": frame("0", ended=1, recent=(ended("d", 4),)), "1": frame("1", ended=1)}, 2)
    assert anew.ended == 4
    assert [row.id for row in delta(again, anew).recent] == ["d"]


PLACED = PlacedRow("dispatch", "c", "", "d0")


def test_a_worker_that_does_not_answer_is_said_to_be_missing() -> None:
    found = Together()(0, {"1": frame("1", own=4)}, 3)
    assert found.own == 4
    assert found.about is not None
    assert found.about.whose == "this gateway with 1 of 3 workers"


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
