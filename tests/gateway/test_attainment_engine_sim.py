"""Attainment as gateways count it, against what independent clients measure, over engines that slow down and break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ballast_api.attainment_report import ObjectiveReport, read_report, summed
from ballast_core.attainment import Counts, Threshold
from ballast_sim.engine_sim.options import KvTransfer
from ballast_sim.load import LoadSettings, run_load
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.workloads import WorkloadRequest
from tests.support.engine_sim import engine_sim, misbehave
from tests.support.gateway_kit import RunningGateway, running_gateway

TTFT_S, TPOT_S = 60.0, 0.25
"""A prompt takes some 10 ms here and a token some 3 ms; one that trickles, some 0.8 s."""
SLOW = {"fault": "trickle", "pause_s": 0.2, "size": 64}
OBJECTIVES = [{"name": "all", "ttftS": TTFT_S, "tpotS": TPOT_S}]


async def load(gateways: list[RunningGateway], requests: int, tokens: int = 5) -> tuple[int, int]:
    """Requests one after the other, to the gateways in turn: how many met the objective, by their clients."""
    met = 0
    for number in range(requests):
        one = [WorkloadRequest(arrival_s=0.0, input_tokens=40, output_tokens=tokens)]
        url = gateways[number % len(gateways)].url
        objective = Objective(ttft_s=TTFT_S, tpot_s=TPOT_S)
        report = await run_load(LoadSettings(url=url, model="m", objective=objective, seed=number), one)
        met += round(report.attainment or 0.0)
    return met, requests - met


def reports(gateways: list[RunningGateway]) -> list[ObjectiveReport]:
    return [each for one in gateways for each in read_report(one.gateway.attainment.report()).objectives]


@pytest.mark.rotating(2)
async def test_two_gateways_together_count_what_their_clients_measured(tmp_path: Path) -> None:
    """Prompt ones within; slow ones outside by their TPOT alone; failed ones outside all."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    more: dict[str, Any] = {
        "model": {"servedNames": ["m"]},
        "objectives": OBJECTIVES,
        "limits": {"maxRetries": 0},
        "health": {"failuresInARow": 1000},
        "watch": {"enabled": False},
    }
    async with (
        engine_sim(role=KvTransfer("kv_producer")) as (prefill, _),
        engine_sim(role=KvTransfer("kv_consumer"), misbehave_api=("127.0.0.1", 0)) as (decode, _),
        running_gateway(
            tmp_path / "a", {"p0": f"127.0.0.1:{prefill.port}", "d0": f"127.0.0.1:{decode.port}"}, **more
        ) as first,
        running_gateway(
            tmp_path / "b", {"p0": f"127.0.0.1:{prefill.port}", "d0": f"127.0.0.1:{decode.port}"}, **more
        ) as second,
    ):
        fleet = [first, second]
        prompt = await load(fleet, 20)
        await misbehave(decode, {"fault": "status", "status": 500, "scope": {"paths": ["/v1/*"]}})
        failed = await load(fleet, 5)
        await misbehave(decode, SLOW)
        slow = await load(fleet, 4, tokens=3)
        assert (prompt, failed, slow) == ((20, 0), (0, 5), (0, 4))
        found = {each: summed(reports(fleet), 300, each) for each in Threshold}
        assert found == {
            Threshold.TTFT: Counts(24, 5),
            Threshold.TPOT: Counts(20, 9),
            Threshold.E2E: Counts(),
            Threshold.JOINT: Counts(20, 9),
        }
        assert [summed(reports([one]), 300, Threshold.JOINT).requests for one in fleet] == [15, 14]
