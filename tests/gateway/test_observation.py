"""Endpoints from discovery and scrapes: files, scrapes over real sockets, and the events that the Director gets."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_api.errors import InvalidInput
from ballast_core.model import Endpoint, EndpointId, Observation, Role
from ballast_core.model.events import EndpointDraining, EndpointLost, EndpointObserved, Event
from ballast_gateway.http.client import UpstreamPool
from ballast_gateway.life_signs import LifeSigns
from ballast_gateway.observe import files
from ballast_gateway.observe.exposition import MOST_BYTES
from ballast_gateway.observe.files import FileDiscovery
from ballast_gateway.observe.fleet import Fleet
from ballast_gateway.observe.scrape import RARELY, Scraper
from tests.support.gateway_kit import endpoints_text, post, raw_exchange, running_gateway, until
from tests.support.scripted_engine import METRICS, decode_script, scripted_engine, silent_server

D0 = EndpointId("d0")
SEEN = Observation(observed_at_s=1.0, running=2, waiting=1)


def endpoint(address: str = "10.0.0.1:8000", role: Role = Role.DECODE) -> Endpoint:
    return Endpoint(D0, address, role)


def fleet() -> tuple[Fleet, list[Event]]:
    events: list[Event] = []
    return Fleet(events.append, failures_until_lost=3), events


def test_an_unproven_endpoint_is_offered_after_its_first_scrape() -> None:
    """An endpoints file has no readiness."""
    made, events = fleet()
    made.ready(endpoint(), proven=False)
    assert events == []
    made.scraped(made.members[D0], SEEN)
    assert events == [EndpointObserved(endpoint(), SEEN)]


def test_a_ready_pod_is_offered_at_once() -> None:
    """Its readiness probe has proven it."""
    made, events = fleet()
    made.ready(endpoint(), proven=True)
    assert events == [EndpointObserved(endpoint(), None)]


def test_an_endpoint_is_lost_after_failed_scrapes_in_a_row_and_back_after_one_success() -> None:
    """Three here; a success in between starts the count anew."""
    made, events = fleet()
    made.ready(endpoint(), proven=True)
    member = made.members[D0]
    for _ in range(2):
        made.scrape_failed(member, "refused")
    made.scraped(member, SEEN)
    for _ in range(3):
        made.scrape_failed(member, "refused")
    made.scrape_failed(member, "refused")
    assert (events[-1], member.state) == (EndpointLost(D0), "unreachable")
    assert events.count(EndpointLost(D0)) == 1
    made.scraped(member, SEEN)
    assert (events[-1], member.state) == (EndpointObserved(endpoint(), SEEN), "ready")


def test_a_draining_endpoint_is_never_offered_again() -> None:
    """Not even when its scrapes fail and succeed again; its gauges still count."""
    made, events = fleet()
    made.ready(endpoint(), proven=True)
    made.draining(D0)
    made.draining(D0)
    member = made.members[D0]
    made.scraped(member, SEEN)
    assert events[1:] == [EndpointDraining(D0), EndpointObserved(endpoint(), SEEN)]
    for _ in range(3):
        made.scrape_failed(member, "refused")
    made.scraped(member, SEEN)
    assert events[-1] == EndpointLost(D0)


@pytest.mark.parametrize("change", ["uid", "address"])
def test_another_pod_of_the_same_name_is_another_endpoint(change: str) -> None:
    """Scrapes of the first do not count for the second."""
    made, events = fleet()
    made.ready(endpoint(), incarnation="1", proven=True)
    made.draining(D0)
    second = endpoint("10.0.0.2:8000") if change == "address" else endpoint()
    made.ready(second, incarnation="2" if change == "uid" else "1", proven=True)
    assert events[2:] == [EndpointLost(D0), EndpointObserved(second, None)]
    assert not made.members[D0].liveness.draining


def test_a_changed_role_takes_effect_at_once() -> None:
    """Flexible pools flip by label, without a restart."""
    made, events = fleet()
    made.ready(endpoint(), proven=True)
    made.ready(endpoint(role=Role.PREFILL), proven=True)
    assert events[-1] == EndpointObserved(endpoint(role=Role.PREFILL))
    assert EndpointLost(D0) not in events


def test_a_scrape_that_ends_after_its_endpoint_went_changes_nothing() -> None:
    """Scrapes are under way when discovery changes its mind."""
    made, events = fleet()
    made.ready(endpoint(), proven=True)
    member = made.members[D0]
    made.gone(D0)
    before = list(events)
    made.scraped(member, SEEN)
    made.scrape_failed(member, "x")
    assert events == before


def test_the_fleet_is_settled_when_each_first_endpoint_was_scraped_once() -> None:
    """Dead ones too: a gateway must not wait for them for ever. Later ones do not unsettle it."""
    made, _ = fleet()
    made.ready(endpoint(), proven=False)
    made.synced = True
    seen = [made.settled]
    made.scrape_failed(made.members[D0], "refused")
    seen.append(made.settled)
    assert seen == [False, True]
    made.ready(Endpoint(EndpointId("d1"), "10.0.0.9:1", Role.DECODE), proven=False)
    assert bool(made.settled)


def test_a_bad_endpoints_file_is_refused_at_the_start(tmp_path: Path) -> None:
    """The error names the field and the fix."""
    made, _ = fleet()
    file = tmp_path / "endpoints.yaml"
    file.write_text("endpoints: [{name: a, address: nowhere, role: decode}]")
    with pytest.raises(InvalidInput, match=r"endpoints\[0\].address"):
        FileDiscovery(file, made).load()
    with pytest.raises(InvalidInput, match="cannot be read"):
        FileDiscovery(tmp_path / "missing.yaml", made).load()


async def test_changes_of_the_file_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Added, removed; replaced by a rename as Kubernetes does it; a broken file in between changes nothing."""
    monkeypatch.setattr(files, "_POLL_S", 0.02)

    def refusals() -> int:
        return sum(record.getMessage().startswith("the endpoints file is not usable") for record in caplog.records)

    async with (
        scripted_engine(decode_script) as one,
        scripted_engine(decode_script) as two,
        running_gateway(tmp_path, {"f0": one.address}) as gateway,
    ):
        members = gateway.gateway.fleet.members

        def replace(text: str) -> None:
            new = tmp_path / "new"
            new.write_text(text)
            os.replace(new, gateway.endpoints_file)

        replace(endpoints_text({"f0": one.address, "f1": two.address}))
        await gateway.ready_endpoints(2)
        replace("endpoints: [")
        await until(lambda: refusals() == 1)
        assert set(members) == {"f0", "f1"}
        gateway.endpoints_file.unlink()
        await until(lambda: refusals() == 2)
        assert set(members) == {"f0", "f1"}
        replace(endpoints_text({"f1": two.address}))
        await until(lambda: set(members) == {"f1"})
        (answer,) = await raw_exchange(
            gateway.port, post("/v1/completions", {"model": "tiny", "prompt": "a"}), answers=1
        )
        assert answer.status == 200
        assert (len(one.asked), len(two.asked)) == (0, 1)


async def test_scrapes_reach_the_director_and_the_admin_api(tmp_path: Path) -> None:
    """From the engine's page to the inventory."""
    async with scripted_engine(decode_script) as engine:
        engine.metrics = engine.metrics.replace(b"} 0.0", b"} 1.0")
        async with running_gateway(tmp_path, {"f0": engine.address}) as gateway:
            inventory = gateway.gateway.driver.director.inventory
            slot = inventory.slot_of(EndpointId("f0"))
            assert slot is not None
            assert (inventory.running[slot], inventory.waiting[slot], inventory.kv_usage_ratio[slot]) == (1, 1, 1.0)
            async with httpx.AsyncClient(base_url=gateway.admin_url) as admin:
                (shown,) = (await admin.get("/ballast/v1/endpoints")).json()["endpoints"]
            assert (shown["name"], shown["state"], shown["role"]) == ("f0", "ready", "flexible")
            assert shown["observation"]["running"] == 1


def quick_scraper(made: Fleet, **more: Any) -> Scraper:
    """Scrapes a hundred times a second."""
    loop = asyncio.get_running_loop()
    return Scraper(
        made,
        UpstreamPool(loop, connect_timeout_s=5.0),
        interval_s=0.01,
        timeout_s=5.0,
        served=(),
        now_s=loop.time,
        life_signs=LifeSigns(),
        **more,
    )


async def test_an_engine_whose_agent_tells_is_scraped_rarely_until_a_scrape_fails() -> None:
    """One beat in four; a failure brings every beat back, so that a dead engine is lost as soon as any other."""
    asked = 0

    def told(endpoint_id: EndpointId) -> bool:
        nonlocal asked
        asked += 1
        return endpoint_id == D0

    made, events = fleet()
    async with scripted_engine(decode_script) as engine:
        made.ready(endpoint(engine.address), proven=False)
        scraper = quick_scraper(made, told=told)
        scraper.sync()
        try:
            await until(lambda: sum(isinstance(event, EndpointObserved) for event in events) >= 4)
            assert asked >= 3 * (RARELY - 1)
            engine.metrics_status = 500
            await until(lambda: events[-1] == EndpointLost(D0))
            scrapes = sum(isinstance(event, EndpointObserved) for event in events)
            assert asked == scrapes * (RARELY - 1)
        finally:
            await scraper.close()


async def test_an_engine_is_scraped_again_whatever_its_page_led_to(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours in taking one is logged, and counts as a failed scrape."""
    seen: list[Observation] = []

    def take(endpoint_id: EndpointId, observation: Observation) -> None:
        seen.append(observation)
        if len(seen) == 1:
            raise OverflowError("int too big to convert")

    failed = list[str]()
    made = Fleet(lambda event: None, failures_until_lost=3, on_scraped=take)
    async with scripted_engine(decode_script) as engine:
        made.ready(endpoint(engine.address), proven=False)
        scraper = quick_scraper(made, on_failure=lambda member: failed.append(member.problem))
        scraper.sync()
        try:
            await until(lambda: len(seen) >= 3)
        finally:
            await scraper.close()
    assert failed == ["its page could not be taken: OverflowError('int too big to convert')"]
    assert [record.exc_info is not None for record in caplog.records if record.message == "a scrape failed"] == [True]


NEVER_SO_MANY = b"vllm:num_requests_running 1e19\nvllm:num_requests_waiting 0\n"


@pytest.mark.parametrize(
    ("status", "page"),
    [(500, None), (200, b"<html>"), (200, NEVER_SO_MANY), (200, METRICS + b"#" * MOST_BYTES)],
    ids=["status", "no-page", "number", "too-long"],
)
async def test_an_endpoint_whose_metrics_fail_is_lost_until_they_come_again(
    tmp_path: Path, status: int, page: bytes | None
) -> None:
    """Requests get 503 meanwhile, and the failures are counted."""
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}) as gateway,
    ):
        good = engine.metrics
        engine.metrics_status, engine.metrics = status, page or good
        member = gateway.gateway.fleet.members[EndpointId("f0")]
        await until(lambda: member.state == "unreachable")
        assert member.problem
        request = post("/v1/completions", {"model": "tiny", "prompt": "a"})
        (answer,) = await raw_exchange(gateway.port, request, answers=1)
        assert answer.status == 503
        async with httpx.AsyncClient(base_url=gateway.admin_url) as admin:
            metrics = (await admin.get("/metrics")).text
        assert 'ballast_gateway_scrape_failures_total{pool="pool-f",role="flexible"}' in metrics
        assert 'ballast_gateway_endpoints{pool="pool-f",role="flexible",state="unreachable"} 1.0' in metrics
        engine.metrics_status, engine.metrics = 200, good
        await gateway.ready_endpoints(1)
        (answer,) = await raw_exchange(gateway.port, request, answers=1)
        assert answer.status == 200


async def test_an_endpoint_that_hangs_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Each has its own beat: one is scraped again and again while the other still owes its first answer."""
    async with (
        silent_server() as address,
        scripted_engine(decode_script) as engine,
        running_gateway(
            tmp_path, {"d0": address, "f0": engine.address}, wait=False, scrape={"timeoutS": 300.0}
        ) as gateway,
    ):
        await gateway.ready_endpoints(1)
        await until(lambda: engine.scrapes >= 5)
        assert not gateway.gateway.fleet.members[D0].tried


async def test_a_scrape_without_an_answer_in_time_has_failed(tmp_path: Path) -> None:
    """And the next one follows."""
    async with (
        silent_server() as address,
        running_gateway(tmp_path, {"d0": address}, wait=False, scrape={"timeoutS": 0.05}) as gateway,
    ):
        member = gateway.gateway.fleet.members[D0]
        await until(lambda: member.liveness.failures >= 2)
        assert (member.state, member.problem) == ("unreachable", "no answer within 0.05 s")
