"""The oracle: `ballast` that is told how long every output will be, and nobody else is."""

from __future__ import annotations

import numpy as np
import pytest

from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import Load, WorkloadSource
from ballast_sim.simulation.policies.choice import PolicyChoiceError, parse_policies
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, build_fleet
from ballast_sim.workloads.request import WorkloadRequest

SHAPE = "1P@a100-qwen3-32b,2D@h20-qwen3-32b"
LONG, SHORT = 6000, 40


def decoded_on(policy: str) -> list[str | None]:
    """Where each request went: alternately long and short ones, then, in the middle of it all, one more."""
    [pair] = parse_policies(policy)
    setup = Setup(machines=parse_shape(SHAPE), shape=SHAPE, source=WorkloadSource(workload="random"))
    lengths = [LONG if number % 2 == 0 else SHORT for number in range(24)]
    arrivals = [
        WorkloadRequest(arrival_s=0.4 * number, input_tokens=300, output_tokens=length)
        for number, length in enumerate(lengths)
    ]
    fleet = build_fleet(RunSpec(setup=setup, policy=pair), Load(tuple(arrivals), {}))
    fleet.run()
    assert all(record.completed for record in fleet.records)
    return [record.decode for record in fleet.records]


def test_it_tells_long_from_short_before_they_are() -> None:
    """Counting requests cannot: alternating arrivals put most of the long ones on one endpoint."""
    for policy, worst in (("oracle", 7), ("round-robin", 12)):
        places = decoded_on(policy)
        long = [place for number, place in enumerate(places) if number % 2 == 0]
        most = max(long.count(place) for place in set(long))
        assert (most <= worst) if policy == "oracle" else (most == worst)


def test_only_the_oracle_is_told_lengths() -> None:
    setup = Setup(machines=parse_shape(SHAPE), shape=SHAPE, source=WorkloadSource(workload="random"))
    for policy, told in (("oracle", True), ("ballast", False), ("least-requests/oracle", True)):
        [pair] = parse_policies(policy)
        fleet = build_fleet(
            RunSpec(setup=setup, policy=pair),
            Load((WorkloadRequest(arrival_s=0.0, input_tokens=100, output_tokens=77),), {}),
        )
        fleet.run()
        assert fleet.settings.known_limits is told
        tables = fleet.director.beliefs.lengths.tables(fleet.kernel.now_s)
        assert (float(tables.survival(np.array([4000.0]))[0]) > 0.999) is told


def test_it_may_place_both_stages_and_is_named_like_any_other() -> None:
    [pair] = parse_policies("oracle/oracle")
    assert pair.placements == "oracle/oracle"
    with pytest.raises(PolicyChoiceError, match="did you mean oracle"):
        parse_policies("oracel")
