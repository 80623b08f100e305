"""The loop closed: pickers plan, real agents hold the streams of engine-sims, and the pickers follow and move them."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ballast_api.attainment_report import read_report, summed
from ballast_api.load_report import EndpointLoad, by_endpoint
from ballast_api.load_report import read_report as read_load
from ballast_core.attainment import Counts, Threshold
from ballast_core.model import EndpointId, RequestId
from ballast_core.model.effects import Migrate
from ballast_gateway.app import Gateway
from ballast_gateway.draining import load_report
from tests.gateway.test_agent_engine_sim import Fleet, ids_of, stream
from tests.support.agents import RunningAgent
from tests.support.gateway_kit import post, raw_exchange, until
from tests.support.view_kit import ViewFleet, ask, lines_of, view_of
from tests.support.view_kit import engines as engines_of


def fleet_of(folder: Path, running: dict[str, RunningAgent]) -> ViewFleet:
    addresses = {name: each.place.address for name, each in running.items()}
    pod_apis = {name: f"127.0.0.1:{each.pod_api}" for name, each in running.items()}
    return ViewFleet(folder, addresses, {}, pod_apis)


async def through(gateway: Gateway, running: dict[str, RunningAgent], request_id: str, body: dict[str, Any]) -> Any:
    """As Envoy does: ask the picker, then send the request on with its headers."""
    picked = ask(gateway, request_id, json.dumps(body).encode())
    picked.session.close(broken=False)
    assert picked.plan is not None
    port = running[picked.plan.decode.id].port
    return picked.plan, asyncio.create_task(ids_of(port, body, f"x-ballast-plan: {picked.headers['x-ballast-plan']}"))


async def test_a_planned_request_is_disaggregated_followed_and_recorded(tmp_path: Path) -> None:
    """Prefilled on one pod, decoded on another; both pickers see it come and go; the log has tokens and TTFT."""
    async with Fleet(tmp_path) as engines:
        running = await engines.start("p0", "d0", "d1")
        fleet = fleet_of(tmp_path, running)
        try:
            first, second = await fleet.start(), await fleet.start()
            plan, asking = await through(first, running, "r", stream(40))
            assert plan.prefill is not None
            key = RequestId(f"{view_of(first).me}/r")
            await until(lambda: key in second.driver.director.ledger.entries)
            ids, _ = await asking
            assert len(ids) == 40
            assert await engines.pulled(plan.decode.id) > 0
            await until(lambda: not len(first.driver.director.ledger) and not len(second.driver.director.ledger))
            (line,) = lines_of(first)
            assert (line["output_tokens"], line["outcome"], line["status"]) == (40, "completed", 200)
            assert line["ttft_s"] > 0
        finally:
            await fleet.close()


OBJECTIVE = [{"name": "all", "ttftS": 60.0, "tpotS": 10.0, "priority": 4}]


def joint(gateway: Gateway) -> Counts:
    report = read_report(gateway.attainment.report())
    return summed(report.objectives, 300, Threshold.JOINT)


async def test_agents_tell_pickers_whether_objectives_are_met_and_each_request_counts_once(tmp_path: Path) -> None:
    """At the picker that dispatched it, with its tokens in the recorded traffic; not at the one that follows it."""
    async with Fleet(tmp_path) as engines:
        running = await engines.start("p0", "d0", "d1")
        fleet = fleet_of(tmp_path, running)
        try:
            first, second = await fleet.start(objectives=OBJECTIVE), await fleet.start(objectives=OBJECTIVE)
            for number, gateway in enumerate((first, first, second)):
                _, asking = await through(gateway, running, f"r{number}", stream(5))
                await asking
            whole = {key: value for key, value in stream(7).items() if key not in {"stream", "stream_options"}}
            picked = ask(first, "whole", json.dumps(whole).encode())
            picked.session.close(broken=False)
            assert picked.plan is not None
            header = f"x-ballast-plan: {picked.headers['x-ballast-plan']}"
            await raw_exchange(running[picked.plan.decode.id].port, post("/v1/completions", whole, header), answers=1)
            await until(lambda: joint(first).requests + joint(second).requests == 4)
            assert (joint(first), joint(second)) == (Counts(3, 0, 0), Counts(1, 0, 0))
            rows = [json.loads(line) for part in first.traffic.trace() for line in part.splitlines()]
            assert [(row["output_tokens"], row["objective"], row["met"]) for row in rows] == [
                *[(5, "all", True)] * 2,
                (7, "all", True),
            ]
        finally:
            await fleet.close()


async def test_without_an_agent_nothing_is_guessed(tmp_path: Path) -> None:
    """The picker is shown no response: the request is counted as not known, once scrapes have it ended or not."""
    async with engines_of(("p0", "d0")) as addresses:
        fleet = ViewFleet(tmp_path, addresses, {})
        try:
            gateway = await fleet.start(objectives=OBJECTIVE)
            picked = ask(gateway, "r")
            asked = gateway.driver.director.ledger.entries[RequestId("r")].request
            assert (asked.priority, asked.ttft_objective_s) == (4, 60.0)
            picked.session.close(broken=False)
            assert picked.plan is None
            await until(lambda: joint(gateway).requests == 1)
            assert joint(gateway) == Counts(0, 0, 1)
        finally:
            await fleet.close()


@pytest.mark.rotating(4)
async def test_the_leader_moves_a_stream_that_another_picker_dispatched(tmp_path: Path) -> None:
    """By the request's own id at its agent; the bytes are those of an unmoved stream, and all ledgers follow."""
    async with Fleet(tmp_path) as engines:
        running = await engines.start("p0", "d0", "d1", options=("--time-scale", "6"))
        fleet = fleet_of(tmp_path, running)
        try:
            gateways = [await fleet.start(), await fleet.start()]
            await until(lambda: sum(view_of(one).leads for one in gateways) == 1)
            leader, other = sorted(gateways, key=lambda one: not view_of(one).leads)
            plan, asking = await through(other, running, "r", stream(300))
            key = RequestId(f"{view_of(other).me}/r")
            entries = leader.driver.director.ledger.entries
            await until(lambda: key in entries and entries[key].generated_tokens > 0)
            inventory = leader.driver.director.inventory
            target = EndpointId("d1" if plan.decode.id == "d0" else "d0")
            slots = [inventory.slot_of(EndpointId(plan.decode.id)), inventory.slot_of(target)]
            source_to = [inventory.endpoint(slot) for slot in slots if slot is not None]
            while entries[key].decode_slot != slots[1]:  # a move may fail on a busy machine
                view_of(leader).order(Migrate(key, source_to[0], source_to[1]))
                with suppress(TimeoutError):
                    await until(lambda: entries[key].decode_slot == slots[1], 8.0)
            theirs = other.driver.director.ledger.entries[RequestId("r")]
            await until(lambda: theirs.decode_slot == other.driver.director.inventory.slot_of(target))
            ids, _ = await asking
            assert ids == await engines.alone("d1", stream(300))
            await until(lambda: not any(len(one.driver.director.ledger) for one in gateways))
        finally:
            await fleet.close()


@pytest.mark.rotating(4)
async def test_a_draining_pod_is_emptied_by_the_leaders_orders_to_its_agent(tmp_path: Path) -> None:
    """Without a rescheduling policy: the stream that another picker dispatched goes on elsewhere, token by token."""
    async with Fleet(tmp_path) as engines:
        running = await engines.start("p0", "d0", "d1", options=("--time-scale", "6"))
        fleet = fleet_of(tmp_path, running)
        try:
            gateways = [await fleet.start(), await fleet.start()]
            await until(lambda: sum(view_of(one).leads for one in gateways) == 1)
            leader, other = sorted(gateways, key=lambda one: not view_of(one).leads)
            await until(lambda: view_of(other).everywhere)  # else the request is taken for one that cannot move
            plan, asking = await through(other, running, "r", stream(300))
            entries = leader.driver.director.ledger.entries
            key = RequestId(f"{view_of(other).me}/r")
            await until(lambda: key in entries and entries[key].generated_tokens > 0)
            source = EndpointId(plan.decode.id)

            def load() -> EndpointLoad:
                reports = [
                    read_load(load_report(one.driver.director, one.fleet, now_s=one.driver.now_s(), unix_s=0.0))
                    for one in gateways
                ]
                return by_endpoint(reports)[source]

            assert (load().requests, load().draining) == (1, False)
            for one in gateways:
                one.fleet.draining(source)
            theirs = other.driver.director.ledger.entries[RequestId("r")]
            target = EndpointId("d1" if source == "d0" else "d0")
            await until(lambda: theirs.decode_slot == other.driver.director.inventory.slot_of(target), 40.0)
            await until(lambda: (load().requests, load().draining) == (0, True))
            ids, _ = await asking
            assert ids == await engines.alone("d1", stream(300))
            assert other.driver.director.departures.moved_out == 1
        finally:
            await fleet.close()
