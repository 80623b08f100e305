"""Prompts of tens of thousands of tokens, for which attention is most of the work: what is believed and decided."""

from __future__ import annotations

import random

import pytest

from ballast_sim.calibration import predict_and_measure
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import Load, WorkloadSource
from ballast_sim.simulation.policies.choice import parse_policies
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, build_fleet
from ballast_sim.workloads.request import WorkloadRequest


@pytest.mark.parametrize("shape", ["1P@h20-llama3-8b,1D@h20-llama3-8b", "1C@h20-llama3-8b"])
def test_the_wait_behind_long_prompts_is_predicted(shape: str) -> None:
    """Ten at once, a minute's queue; one that shares its last step with the next one ends up to a chunk later."""
    requests = tuple(
        WorkloadRequest(arrival_s=0.01 * number, input_tokens=20_000 + 4_000 * number, output_tokens=2)
        for number in range(10)
    )
    predicted = predict_and_measure(parse_shape(shape), Load(requests, {}), parse_policies("ballast")[0])
    assert predicted.prefill_time.predictions == len(requests)
    assert predicted.prefill_time.p50_ratio is not None
    assert predicted.prefill_time.p90_ratio is not None
    assert predicted.prefill_time.p50_ratio < 0.03
    assert predicted.prefill_time.p90_ratio < 0.1


def latencies(policy: str, requests: tuple[WorkloadRequest, ...]) -> tuple[float, float]:
    """Mean TTFT and the worst hundredth's TPOT on four endpoints that do both, in seconds."""
    shape = "4C@h20-llama3-8b"
    setup = Setup(machines=parse_shape(shape), shape=shape, source=WorkloadSource(workload="random"))
    fleet = build_fleet(RunSpec(setup=setup, policy=parse_policies(policy)[0]), Load(requests, {}))
    fleet.run()
    assert all(record.completed for record in fleet.records)
    ttft_s = [record.ttft_s for record in fleet.records if record.ttft_s is not None]
    tpot_s = sorted(record.tpot_s for record in fleet.records if record.tpot_s is not None)
    return sum(ttft_s) / len(ttft_s), tpot_s[len(tpot_s) * 99 // 100]


def test_ballast_keeps_long_prompts_from_short_ones_where_both_are_prefilled_among_decodes() -> None:
    """One prompt in twenty takes 18 s. Who counts requests sends others behind it, and has its decodes wait for it."""
    rng = random.Random(0)
    requests, at_s = [], 0.0
    for _ in range(400):
        at_s += rng.expovariate(1.2)
        tokens = 60_000 if rng.random() < 0.05 else rng.randint(300, 3_000)
        output_tokens = 2 + int(rng.expovariate(1 / 200))
        requests += [WorkloadRequest(arrival_s=at_s, input_tokens=tokens, output_tokens=output_tokens)]
    counted, weighed = (
        latencies("least-requests/least-requests", tuple(requests)),
        latencies("ballast", tuple(requests)),
    )
    assert weighed[0] < 0.8 * counted[0]
    assert weighed[1] < 0.8 * counted[1]
