"""Draining endpoints are emptied without a rescheduling policy: what can move leaves, what cannot ends in place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from ballast_api.load_report import (
    HOLD,
    LOAD,
    EndpointLoad,
    LoadReport,
    by_endpoint,
    held_together,
    merged,
    read_report,
    together,
)
from ballast_core.model import EndpointId
from ballast_gateway.probes import asking_pod
from tests.gateway.test_moving_streams import PATHS, Line, request, stream
from tests.support.engine_sim import tiny_engine
from tests.support.gateway_kit import RunningGateway, running_gateway, until

pytestmark = pytest.mark.rotating(4, each=True)

D0 = EndpointId("d0")
OUTCOMES = ("moved", "finished", "lost")


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    async with Line(tmp_path) as made:
        yield made


async def load_of(gateway: RunningGateway, name: str) -> EndpointLoad:
    return by_endpoint([await report_of(gateway)])[name]


async def report_of(gateway: RunningGateway) -> LoadReport:
    async with httpx.AsyncClient(trust_env=False) as client:
        return read_report((await client.get(f"{gateway.admin_url}{LOAD}")).content)


async def started(gateway: RunningGateway, count: int) -> None:
    """So many requests decode on d0."""
    ledger, inventory = gateway.gateway.driver.director.ledger, gateway.gateway.driver.director.inventory
    slot = inventory.slot_of(D0)
    await until(lambda: sum(e.generated_tokens > 0 and e.decode_slot == slot for e in ledger) == count)


@pytest.mark.rotating(4)
@pytest.mark.parametrize("path", PATHS)
async def test_what_can_move_leaves_and_what_cannot_finishes_in_place(line: Line, path: str) -> None:
    """No byte of any answer differs from an undisturbed one; metrics and the load report say what became of them."""
    gateway = await line.start("p0", "d0", "d1", shuffle_s=None, slower=8)
    fleet = gateway.gateway.fleet
    fleet.draining(EndpointId("d1"))  # so that all begin on d0
    bodies = [request(path, number, **({"stop": ["never said"]} if number == 2 else {})) for number in range(3)]
    asked = [
        asyncio.create_task(stream(f"{gateway.url}{path}", body, f"r{number}")) for number, body in enumerate(bodies)
    ]
    await started(gateway, 3)
    busy = await load_of(gateway, "d0")
    assert (busy.requests, busy.own, busy.tied, busy.draining) == (3, 3, 1, False)
    assert busy.tokens > 3 * 50
    fleet.restored(EndpointId("d1"))
    fleet.draining(D0)
    answers = await asyncio.gather(*asked)
    for number, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
        assert answer == await line.unmoved(path, body, f"r{number}")
    told = {entry["request_id"]: entry for entry in gateway.requests()}
    assert [told[f"r{number}"].get("migrations", 0) for number in range(3)] == [1, 1, 0]
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)
    empty, report = await load_of(gateway, "d0"), await report_of(gateway)
    assert (empty.requests, empty.own, empty.draining) == (0, 0, True)
    assert (report.moved_out, report.finished, report.lost) == (2, 1, 0)
    sample = gateway.gateway.registry.get_sample_value
    told_by_metric = {how: sample("ballast_gateway_drained_requests_total", {"outcome": how}) for how in OUTCOMES}
    assert told_by_metric == {"moved": 2, "finished": 1, "lost": 0}


async def test_no_stream_moves_to_another_model_of_the_same_name(tmp_path: Path) -> None:
    """As in a rollout of new weights: what the old ones began they finish."""
    async with (
        tiny_engine("kv_producer") as p0,
        tiny_engine("kv_consumer", "--time-scale", "8") as d0,
        tiny_engine("kv_consumer", "--time-scale", "8") as d1,
    ):
        d1.options = replace(d1.options, model="new-model")
        addresses = {name: f"127.0.0.1:{engine.port}" for name, engine in (("p0", p0), ("d0", d0), ("d1", d1))}
        async with running_gateway(tmp_path, addresses) as gateway:
            fleet, path = gateway.gateway.fleet, "/v1/completions"
            await until(lambda: all(member.card is not None for member in fleet.members.values()))
            fleet.draining(EndpointId("d1"))
            asked = asyncio.create_task(stream(f"{gateway.url}{path}", request(path), "r0"))
            await started(gateway, 1)
            fleet.restored(EndpointId("d1"))
            fleet.draining(D0)
            assert (await asked).endswith(b"[DONE]\n\n")
            assert gateway.request().get("migrations", 0) == 0
            await until(lambda: gateway.gateway.driver.director.departures.finished == 1)


async def test_an_engine_that_is_told_to_end_is_emptied_as_it_finishes(line: Line) -> None:
    """As when its pod is deleted: seen by the watch, then SIGTERM. It refuses what is new; what it has moves out or
    ends there."""
    gateway = await line.start("p0", "d0", "d1", shuffle_s=None, slower=8)
    fleet, path = gateway.gateway.fleet, "/v1/completions"
    fleet.draining(EndpointId("d1"))
    bodies = [request(path, number, **({"stop": ["never said"]} if number % 2 else {})) for number in range(4)]
    asked = [
        asyncio.create_task(stream(f"{gateway.url}{path}", body, f"r{number}")) for number, body in enumerate(bodies)
    ]
    await started(gateway, 4)
    line.engines["d0"].options = replace(line.engines["d0"].options, shutdown_timeout_s=60)
    fleet.restored(EndpointId("d1"))
    fleet.draining(D0)
    ending = asyncio.create_task(line.engines["d0"].stop())
    answers = await asyncio.gather(*asked)
    await ending
    for number, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
        assert answer == await line.unmoved(path, body, f"r{number}")
    departures = gateway.gateway.driver.director.departures
    await until(lambda: (departures.moved_out, departures.finished) == (2, 2))
    assert departures.lost == 0


async def test_a_stream_whose_engine_is_ended_first_is_counted_as_lost(line: Line) -> None:
    """One that cannot be replayed, on an engine that is taken away before it is empty."""
    gateway = await line.start("p0", "d0", shuffle_s=None, slower=8)
    body = request("/v1/completions", stop=["never said"])
    asked = asyncio.create_task(stream(f"{gateway.url}/v1/completions", body, "r0"))
    await started(gateway, 1)
    gateway.gateway.fleet.draining(D0)
    line.kill("d0")
    await asyncio.wait([asked])
    await until(lambda: gateway.gateway.driver.director.departures.lost == 1)
    asked.exception()


async def test_an_endpoint_whose_drain_is_taken_back_serves_again(line: Line) -> None:
    """With the other one draining, all that comes goes there."""
    gateway = await line.start("p0", "d0", "d1", shuffle_s=None)
    fleet = gateway.gateway.fleet
    fleet.draining(D0)
    await stream(f"{gateway.url}/v1/completions", request("/v1/completions"), "r0")
    fleet.restored(D0)
    fleet.draining(EndpointId("d1"))
    await stream(f"{gateway.url}/v1/completions", request("/v1/completions"), "r1")
    assert [entry["decode"] for entry in gateway.requests()] == ["d1", "d0"]
    assert not (await load_of(gateway, "d0")).draining


def test_loads_of_several_gateways_add_up_or_are_the_same() -> None:
    """Where each sees the whole fleet the largest number counts, where each sees its own the sum. All must drain it."""
    seen = EndpointLoad(name="d0", draining=True, requests=5, own=2, engine=4, engine_age_s=2.0)
    assert merged([seen, EndpointLoad(name="d0", requests=5, own=3)]).requests == 5
    apart = merged([seen, EndpointLoad(name="d0", draining=True, requests=4, own=4, engine_age_s=0.5)])
    assert (apart.requests, apart.draining, apart.engine, apart.engine_age_s) == (6, True, 4, 0.5)
    assert not merged([seen, EndpointLoad(name="d0")]).draining
    report = LoadReport(unix_s=1.0, endpoints=(seen,), lost=1)
    both = read_report(together([report, report]))
    assert (both.endpoints[0].own, both.lost) == (4, 2)
    with pytest.raises(ValueError, match="/ballast/v1/load"):
        read_report(b"{}")


async def test_a_pod_asks_what_is_left_of_its_own_requests(line: Line) -> None:
    """Whoever asks is told of its own address alone; on loopback, as by `kubectl port-forward`, of one it names."""
    gateway = await line.start("p0", "d0", shuffle_s=None, slower=8)
    asked = asyncio.create_task(stream(f"{gateway.url}/v1/completions", request("/v1/completions", 1), "r1"))
    await started(gateway, 1)

    async def held(**query: str) -> dict[str, object]:
        async with httpx.AsyncClient(trust_env=False) as client:
            found: dict[str, object] = (await client.get(f"{gateway.admin_url}{HOLD}", params=query)).json()
            return found

    assert await held() == {"draining": False, "requests": 1}  # all endpoints here have the address that asks
    assert await held(of="10.9.8.7") == {"draining": True, "requests": 0}
    for name in ("p0", "d0"):
        gateway.gateway.fleet.draining(EndpointId(name))
    assert await held() == {"draining": True, "requests": 1}
    await asked
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)
    assert await held() == {"draining": True, "requests": 0}


def test_workers_answer_a_pod_together() -> None:
    """It is noticed when all have noticed."""
    bodies = [json.dumps({"draining": draining, "requests": 2}).encode() for draining in (True, False)]
    assert json.loads(held_together(bodies)) == {"draining": False, "requests": 4}


def test_a_pod_is_known_by_its_address() -> None:
    """Not by what it says, unless it sits on the gateway's own host; IPv4 in an IPv6 listener is IPv4."""
    assert asking_pod({"client": ("::ffff:10.1.2.3", 5), "query_string": b"of=10.9.9.9"}) == "10.1.2.3"
    assert asking_pod({"client": ("127.0.0.1", 5), "query_string": b"of=10.9.9.9"}) == "10.9.9.9"
    assert asking_pod({"client": ("fd00::7", 5), "query_string": b""}) == "fd00::7"
