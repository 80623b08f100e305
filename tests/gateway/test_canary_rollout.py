"""A canary behind real gateways: its share of the requests to the one, and both sides counted apart."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ballast_api.attainment_report import CanaryReport, Tally, read_report, together
from ballast_api.gateway_settings import GatewaySettings
from ballast_core.model.canary import Canary
from ballast_gateway.settings_file import News
from ballast_sim.engine_sim.options import KvTransfer
from tests.support.engine_sim import engine_sim, misbehave
from tests.support.gateway_kit import RunningGateway, post, raw_exchange, running_gateway

REVISIONS = {"p0": "new", "d0": "new", "p1": "old", "d1": "old"}
WEIGHT = 0.3
REQUESTS = 40


async def ask(gateway: RunningGateway, request_id: str) -> int:
    body = {"model": "m", "prompt": list(range(2, 22)), "max_tokens": 3, "stream": True}
    (answer,) = await raw_exchange(
        gateway.port, post("/v1/completions", body, f"x-request-id: {request_id}"), answers=1
    )
    return answer.status


def canary_of(gateway: RunningGateway) -> CanaryReport:
    found = read_report(gateway.gateway.attainment.report()).canary
    assert found is not None
    return found


def use(gateway: RunningGateway, **canary: Any) -> None:
    data = gateway.gateway.settings.dump() | {"canary": canary}
    gateway.gateway.hear(News("hash", GatewaySettings.parse(data)))


async def test_gateways_send_a_canary_its_share_and_count_both_sides(tmp_path: Path) -> None:
    """By the rule alone, at both gateways; P and D of one revision. What fails on the canary counts there, although
    another revision serves the retry; with weight 0 it gets nothing."""
    more: dict[str, Any] = {
        "model": {"servedNames": ["m"]},
        "canary": {"revision": "new", "weight": WEIGHT},
        "objectives": [{"name": "all", "e2eS": 60.0}],
        "health": {"failuresInARow": 1000, "retryRatio": 1.0},
    }
    async with AsyncExitStack() as stack:
        servers, addresses = {}, {}
        for name in REVISIONS:
            role = KvTransfer("kv_producer" if name[0] == "p" else "kv_consumer")
            server, _ = await stack.enter_async_context(engine_sim(role=role, misbehave_api=("127.0.0.1", 0)))
            servers[name], addresses[name] = server, f"127.0.0.1:{server.port}"
        gateways = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            running = running_gateway(tmp_path / name, addresses, revisions=REVISIONS, **more)
            gateways.append(await stack.enter_async_context(running))

        ids = [f"r{number}" for number in range(REQUESTS)]
        canary = Canary("new", WEIGHT)
        chosen = [each for each in ids if canary.takes(each)]
        assert 5 <= len(chosen) <= 20
        for gateway in gateways:
            assert await asyncio.gather(*(ask(gateway, each) for each in ids)) == [200] * REQUESTS
            pairs = {each["request_id"]: (each["prefill"], each["decode"]) for each in gateway.requests()}
            assert pairs == {each: ("p0", "d0") if each in chosen else ("p1", "d1") for each in ids}
            counts = canary_of(gateway)
            served, rest = Tally(len(chosen), 0, 0), Tally(REQUESTS - len(chosen), 0, 0)
            assert (counts.canary.served, counts.others.served) == (served, rest)
            assert (counts.canary.objectives, counts.others.objectives) == ({"all": served}, {"all": rest})

        await misbehave(servers["d0"], {"fault": "status", "status": 500, "scope": {"paths": ["/v1/*"]}})
        assert await asyncio.gather(*(ask(gateways[0], each) for each in ids)) == [200] * REQUESTS
        found = canary_of(gateways[0])
        assert found.canary.served == Tally(len(chosen), len(chosen), 0)
        assert found.others.served == Tally(2 * (REQUESTS - len(chosen)), 0, 0)

        use(gateways[0], revision="new", weight=0.0)
        assert await asyncio.gather(*(ask(gateways[0], each) for each in chosen)) == [200] * len(chosen)
        assert canary_of(gateways[0]).canary == found.canary  # counts go on, and it got nothing

        both = read_report(together([read_report(each.gateway.attainment.report()) for each in gateways])).canary
        assert both is not None
        assert both.canary.served == Tally(2 * len(chosen), len(chosen), 0)
        use(gateways[0], revision="newer", weight=WEIGHT)
        assert canary_of(gateways[0]).others.served == Tally(0, 0, 0)
