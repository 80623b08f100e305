"""Suites in the simulator: any policies that go together serve a workload together, and each is felt."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import parse_policies, with_parts
from ballast_sim.simulation.runs.experiment import Outcome, RunSpec, Setup, run

TOLD = "shortest-prompt:engine_priority=true"
BOUNDED = "bounded:max_prefill_requests=2"


def served(parts: Mapping[str, str], shape: str = "4F@h20-qwen3-32b", *, stepwise: bool = False) -> Outcome:
    fleet = FleetSettings(known_limits=False, engine_policy="priority")
    source = WorkloadSource(workload="chat", rate_rps=8.0, limit=60)
    setup = Setup(machines=parse_shape(shape), shape=shape, source=source, fleet=fleet)
    (choice,) = with_parts(parse_policies("ballast"), parts)
    return run(RunSpec(setup=setup, policy=choice), stepwise=stepwise)


def times(outcome: Outcome) -> object:
    return [outcome.figures[name] for name in ("ttft_s", "tpot_s", "e2e_s", "throughput_tok_s")]


@pytest.mark.parametrize(
    "parts",
    [
        {"queue": "shortest-prompt", "admission": BOUNDED},
        {"queue": TOLD},
        {"queue": TOLD, "partition": "fixed:at=ratio,ratio=0.6"},
        {"queue": "uniboost", "admission": BOUNDED, "partition": "libra"},
        {"admission": BOUNDED, "rescheduling": "ares:theta=0"},
        {"queue": "las", "admission": BOUNDED, "partition": "fixed", "rescheduling": "ares:theta=0"},
    ],
    ids="-".join,
)
def test_policies_of_several_kinds_serve_every_request_together(parts: dict[str, str]) -> None:
    """The same figures whether engine steps are computed one by one or not."""
    outcome = served(parts)
    assert outcome.figures["completed"] == outcome.figures["requests"] == 60
    assert times(served(parts, stepwise=True)) == times(outcome)


@pytest.mark.parametrize(
    "parts", [{"queue": TOLD}, {"queue": "shortest-prompt", "admission": BOUNDED}, {"partition": "fixed"}]
)
def test_a_part_that_is_named_is_felt(parts: dict[str, str]) -> None:
    """On a fleet with a queue, figures are others than without it."""
    assert times(served(parts, "2F@h20-qwen3-32b")) != times(served({}, "2F@h20-qwen3-32b"))
