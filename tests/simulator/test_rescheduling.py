"""ARES in a simulated fleet: its moves happen, even out the load, and leaping engines give the run of stepping ones."""

from __future__ import annotations

import numpy as np
import pytest

from ballast_sim.simulation.figures.balance import Balance
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import parse_policies, with_parts
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, build_fleet, run
from ballast_sim.workloads import generate

pytestmark = pytest.mark.rotating(4, each=True)

SHAPE = "1P@a100-qwen3-32b,4D@a100-qwen3-32b"


def spec(
    rescheduling: str, *, physics: str = "vllm", lengths: str = "oracle", outputs: str = "sharegpt-32k"
) -> RunSpec:
    choice = with_parts(parse_policies("ils"), {"rescheduling": rescheduling})[0]
    fleet = FleetSettings(known_limits=False, physics=physics, length_hints=LengthHints.parse(lengths))
    source = WorkloadSource(workload=outputs, rate_rps=0.3, duration_s=150.0)
    return RunSpec(setup=Setup(machines=parse_shape(SHAPE), shape=SHAPE, source=source, fleet=fleet), policy=choice)


@pytest.mark.parametrize("physics", ["vllm", "ares-linear"])
def test_moves_even_out_the_load(physics: str) -> None:
    still = run(spec("none", physics=physics)).figures
    moved = run(spec("ares", physics=physics)).figures
    assert still["migrations"] == 0
    assert isinstance(moved["migrations"], int)
    assert moved["migrations"] > 0
    assert moved["completed"] == moved["requests"] == still["completed"]
    assert moved["broken"] == 0
    for name in ("kv_imbalance", "step_variance_ms2"):
        before, after = still[name], moved[name]
        assert isinstance(before, float)
        assert isinstance(after, float)
        assert after < before


def test_leaping_engines_reschedule_as_stepping_ones_do() -> None:
    """With predictions that change as requests age, which the Director hears of with their progress."""
    told = spec("ares:interval_s=0.5,min_stay_s=1", lengths="ares", outputs="libra-reasoning")
    load = told.setup.source.load(0, 1.0)
    coarse, stepped = build_fleet(told, load), build_fleet(told, load, stepwise=True)
    for fleet in (coarse, stepped):
        fleet.run()
    assert sum(record.migrations for record in coarse.records) > 0
    assert coarse.records == stepped.records
    assert coarse.migrations.figures == stepped.migrations.figures


def test_balance_is_the_variance_over_endpoints() -> None:
    """One request on one of two endpoints: the variance of (step, 0), and tokens whose deviation is their mean."""
    shape = "1P@a100-qwen3-32b,2D@a100-qwen3-32b"
    setup = Setup(machines=parse_shape(shape), shape=shape, source=WorkloadSource(workload="chat", limit=1))
    fleet = build_fleet(RunSpec(setup=setup, policy=parse_policies("ils")[0]), setup.source.load(0, 1.0))
    fleet.run(until_s=fleet.records[0].arrival_s + 1.5)
    balance = Balance()
    balance.sample(fleet)
    ((machine, running, tokens), (_, others, _)) = sorted(fleet.world.decode_loads(), key=lambda load: -load[1])
    assert (running, others) == (1, 0)
    steps_ms = [1e3 * machine.profile.step_s(1, tokens, 0.0, 1), 0.0]
    assert balance.figures() == {"step_variance_ms2": float(np.var(steps_ms)), "kv_imbalance": pytest.approx(1.0)}


def test_the_32k_workload_has_the_papers_lengths() -> None:
    """ARES, table 2, ShareGPT."""
    drawn = generate("sharegpt-32k", duration_s=1e9, limit=20_000)
    outputs = np.array([request.output_tokens for request in drawn])
    inputs = np.array([request.input_tokens for request in drawn])
    assert np.percentile(outputs, 90) == pytest.approx(32_670, rel=0.01)
    for values, mean, median in ((outputs, 7542, 1536), (inputs, 305, 36)):
        assert values.mean() == pytest.approx(mean, rel=0.06)
        assert np.median(values) == pytest.approx(median, rel=0.12)
