"""Attainment and traffic of gateways that hear agents and each other: each request once, and nothing guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ballast_api.attainment_report import read_report, summed
from ballast_api.gateway_settings import GatewaySettings
from ballast_core.attainment import Counts, Threshold
from ballast_core.model import RequestId
from ballast_gateway.app import Gateway
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.plan import key_of
from ballast_gateway.settings_file import News
from tests.support.gateway_kit import until
from tests.support.view_kit import ScriptedAgent, ViewFleet, ask, lines_of, view_fleet, view_of

pytestmark = pytest.mark.rotating(4, each=True)

OBJECTIVES = [{"name": "all", "ttftS": 60.0, "tpotS": 10.0}]


def joint(gateway: Gateway) -> Counts:
    return summed(read_report(gateway.attainment.report()).objectives, 300, Threshold.JOINT)


def traffic(gateway: Gateway) -> list[dict[str, Any]]:
    return [json.loads(line) for part in gateway.traffic.trace() for line in part.splitlines()]


async def held(fleet: ViewFleet, gateway: Gateway, request_id: str) -> tuple[ScriptedAgent, str]:
    """A request that its agent has confirmed: the agent, and the request's key."""
    picked = ask(gateway, request_id)
    picked.session.close(broken=False)
    assert picked.plan is not None
    agent, me = fleet.agents[picked.plan.decode.id], view_of(gateway).me
    row = said.Row(id=request_id, by=me, phase="decoding", decode=picked.plan.decode.id, prompt_tokens=10)
    agent.feed.say(said.Opened(request=row))
    own = gateway.driver.director.ledger.entries
    await until(lambda: RequestId(request_id) in own and bool(view_of(gateway).book.holder_of(RequestId(request_id))))
    return agent, key_of(me, request_id)


ENDS: list[tuple[dict[str, Any], Counts, tuple[str, int]]] = [
    ({"outcome": "completed", "output_tokens": 3}, Counts(1), ("completed", 200)),
    ({"outcome": "failed", "output_tokens": 1, "fault": "broke"}, Counts(0, 1), ("failed", 0)),
    ({"outcome": "failed", "status": 502}, Counts(0, 1), ("failed", 502)),
    ({"outcome": "failed", "status": 429}, Counts(0, 1), ("failed", 429)),
    ({"outcome": "failed", "status": 400}, Counts(), ("invalid", 400)),
    ({"outcome": "cancelled"}, Counts(), ("cancelled", 0)),
]


@pytest.mark.parametrize(("end", "expected", "logged"), ENDS, ids=str)
async def test_an_agents_word_about_the_end_decides(
    tmp_path: Path, end: dict[str, Any], expected: Counts, logged: tuple[str, int]
) -> None:
    """Clients' own faults and clients that left do not count, on no face."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start(objectives=OBJECTIVES)
        agent, key = await held(fleet, gateway, "r")
        agent.feed.say(said.Began(key=key))
        agent.feed.say(said.Ended(key=key, **end))
        await until(lambda: lines_of(gateway))
        assert joint(gateway) == expected
        (line,) = lines_of(gateway)
        assert (line["outcome"], line["status"]) == logged


async def test_a_request_that_runs_is_in_the_traffic_of_the_gateway_that_dispatched_it(tmp_path: Path) -> None:
    """Others have it in their ledgers, and in no row: merged traces have it once."""
    async with view_fleet(tmp_path) as fleet:
        first, second = await fleet.start(objectives=OBJECTIVES), await fleet.start(objectives=OBJECTIVES)
        _, key = await held(fleet, first, "r")
        await until(lambda: RequestId(key) in second.driver.director.ledger.entries)
        assert [row["outcome"] for row in traffic(first)] == ["running"]
        assert traffic(second) == []


async def test_what_an_agent_had_that_died_is_not_known(tmp_path: Path) -> None:
    """Its streams may have ended well or not; nobody says."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start(objectives=OBJECTIVES)
        agent, _ = await held(fleet, gateway, "r")
        await agent.server.close()
        await until(lambda: lines_of(gateway), 30.0)
        assert joint(gateway) == Counts(0, 0, 1)
        (line,) = lines_of(gateway)
        assert (line["reason"], line.get("met")) == ("holder-lost", None)


async def test_objectives_reach_a_running_picker(tmp_path: Path) -> None:
    """What comes is held to the new ones; what runs keeps its own, and counts no more where that is gone."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start(objectives=OBJECTIVES)
        agent, key = await held(fleet, gateway, "old")
        data = gateway.settings.dump() | {"objectives": [{"name": "new", "e2eS": 90.0, "priority": -2}]}
        gateway.hear(News("hash", GatewaySettings.parse(data)))
        later, later_key = await held(fleet, gateway, "new")
        assert gateway.driver.director.ledger.entries[RequestId("new")].request.priority == -2
        for one, name in ((agent, key), (later, later_key)):
            one.feed.say(said.Ended(key=name, outcome="completed", output_tokens=3))
        await until(lambda: len(lines_of(gateway)) == 2)
        assert {line["request_id"]: line["objective"] for line in lines_of(gateway)} == {"old": "all", "new": "new"}
        [report] = read_report(gateway.attainment.report()).objectives
        assert (report.name, joint(gateway)) == ("new", Counts(1))
