"""What agents say of legs and moves is in the log and the metrics of the gateway that dispatched the request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ballast_core.model import Fault, RequestId
from ballast_gateway.app import Gateway
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.plan import key_of
from tests.support.gateway_kit import until
from tests.support.view_kit import ScriptedAgent, ViewFleet, ask, lines_of, view_fleet, view_of

LATER_S = 0.2
COUNTS = ("in_flight", "followed")


async def held(fleet: ViewFleet, gateway: Gateway) -> tuple[ScriptedAgent, str, str, str]:
    """A request that its agent has confirmed: the agent, the request's key, its prefill and its decode endpoint."""
    picked = ask(gateway, "r")
    picked.session.close(broken=False)
    assert picked.plan is not None
    decode, prefill = picked.plan.decode.id, "" if picked.plan.prefill is None else picked.plan.prefill.id
    agent, me = fleet.agents[decode], view_of(gateway).me
    row = said.Row(id="r", by=me, phase="prefilling", decode=decode, prefill=prefill, prompt_tokens=10)
    agent.feed.say(said.Opened(request=row))
    await until(lambda: bool(view_of(gateway).book.holder_of(RequestId("r"))))
    return agent, key_of(me, "r"), prefill, decode


def value(gateway: Gateway, name: str, labels: Mapping[str, str] | None = None) -> float:
    return gateway.registry.get_sample_value(name, dict(labels or {})) or 0.0


async def ended(gateway: Gateway, agent: ScriptedAgent, key: str, **how: Any) -> dict[str, Any]:
    agent.feed.say(said.Ended(key=key, **how))
    await until(lambda: lines_of(gateway))
    (line,) = lines_of(gateway)
    return line


async def test_failed_legs_and_retries_of_agents_count_at_their_gateway(tmp_path: Path) -> None:
    """Before the first token: the request was served elsewhere, and its first leg has failed."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start()
        agent, key, prefill, decode = await held(fleet, gateway)
        assert prefill
        other = "d1" if decode == "d0" else "d0"
        agent.feed.say(said.Prefilled(key=key))
        agent.feed.say(said.LegFailed(key=key, stage="decode", endpoint=decode, fault="error", status=500))
        agent.feed.say(said.Redirected(key=key, decode=other, prefill=prefill))
        agent.feed.say(said.Prefilled(key=key))
        agent.feed.say(said.Began(key=key))
        line = await ended(gateway, agent, key, outcome="completed", output_tokens=3)
        assert (line["decode"], line["prefill"], line["retries"]) == (other, prefill, 1)
        assert 0 < line["prefill_s"] <= line["ttft_s"]
        assert "rescues" not in line
        assert value(gateway, "ballast_gateway_failed_legs_total", {"fault": "error"}) == 1
        assert value(gateway, "ballast_gateway_retries_total") == 1
        for part in ("wait", "prefill", "decode"):
            labels = {"part": part}
            assert value(gateway, "ballast_gateway_time_to_first_token_part_seconds_count", labels) == 1


async def test_a_rescue_by_an_agent_counts_and_the_first_token_stays_the_first(tmp_path: Path) -> None:
    """The stream went on elsewhere: its TTFT is that of the token that its client got first."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start()
        agent, key, _, decode = await held(fleet, gateway)
        other = "d1" if decode == "d0" else "d0"
        agent.feed.say(said.Began(key=key))
        entry = gateway.driver.director.ledger.entries[RequestId("r")]
        await until(lambda: entry.generated_tokens > 0)
        await asyncio.sleep(LATER_S)
        agent.feed.say(said.LegFailed(key=key, stage="decode", endpoint=decode, fault="broke"))
        agent.feed.say(said.Redirected(key=key, decode=other))
        agent.feed.say(said.Progressed(tokens={key: 5}))
        line = await ended(gateway, agent, key, outcome="completed", output_tokens=6)
        assert (line["decode"], line["rescues"], line["retries"]) == (other, 1, 1)
        assert line["ttft_s"] <= line["e2e_s"] - LATER_S
        assert value(gateway, "ballast_gateway_rescues_total") == 1
        assert value(gateway, "ballast_gateway_failed_legs_total", {"fault": "broke"}) == 1


async def test_moves_by_agents_count_at_their_gateway(tmp_path: Path) -> None:
    """By outcome; the log has where the request decoded last."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start()
        agent, key, _, decode = await held(fleet, gateway)
        other = "d1" if decode == "d0" else "d0"
        agent.feed.say(said.Began(key=key))
        agent.feed.say(said.MoveFailed(key=key, target=other))
        agent.feed.say(said.Moved(key=key, target=other))
        line = await ended(gateway, agent, key, outcome="completed", output_tokens=6)
        assert (line["decode"], line["migrations"]) == (other, 1)
        for outcome in ("moved", "failed"):
            assert value(gateway, "ballast_gateway_migrations_total", {"outcome": outcome}) == 1


async def test_what_an_engine_did_last_is_a_failed_leg(tmp_path: Path) -> None:
    """No other one could go on, so nothing but the end tells of it."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start()
        agent, key, _, _ = await held(fleet, gateway)
        agent.feed.say(said.Began(key=key))
        await ended(gateway, agent, key, outcome="failed", output_tokens=1, fault=str(Fault.BROKE))
        assert value(gateway, "ballast_gateway_failed_legs_total", {"fault": "broke"}) == 1


async def test_a_request_is_in_flight_at_the_gateway_that_dispatched_it_alone(tmp_path: Path) -> None:
    """Sums over gateways are the fleet's; the others follow it."""
    async with view_fleet(tmp_path) as fleet:
        gateways = [await fleet.start() for _ in range(2)]
        agent, key, _, _ = await held(fleet, gateways[0])
        await until(lambda: RequestId(key) in gateways[1].driver.director.ledger.entries)
        shown = [[value(each, f"ballast_gateway_requests_{name}") for each in gateways] for name in COUNTS]
        assert shown == [[1, 0], [0, 1]]
        agent.feed.say(said.Ended(key=key, outcome="completed"))
        await until(
            lambda: not any(value(each, f"ballast_gateway_requests_{name}") for each in gateways for name in COUNTS)
        )
