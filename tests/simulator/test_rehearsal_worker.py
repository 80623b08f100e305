"""A rehearsal that the operator asks for: what it makes of recorded rows, and what it refuses."""

from __future__ import annotations

import json

import pytest

from ballast_api.rehearsal_job import RehearsalJob, job_bytes, read_job
from ballast_core.attainment import Objective
from ballast_core.policies.scaling.ballast import BallastScaling
from ballast_sim.simulation.autoscaling.worker import answer, recorded_rows, tightest
from tests.support.recorded_rows import rows
from tests.support.scaling import inputs, split, traffic

pytestmark = pytest.mark.rotating(4, each=True)


def job(lines: list[bytes]) -> RehearsalJob:
    """At time 0."""
    return RehearsalJob(
        proposal=BallastScaling(candidates=1).propose(inputs(split(2, 2), traffic(4.0))), rows=tuple(lines)
    )


def changed(lines: list[bytes], **fields: object) -> list[bytes]:
    """The rows with other fields."""
    return [json.dumps(json.loads(line) | fields).encode() for line in lines]


def test_a_job_arrives_as_it_was_sent() -> None:
    asked = job(rows(0.0, 1.0))
    sent = job_bytes(asked)
    assert int.from_bytes(sent[:8], "big") == len(sent) - 8
    assert read_job(sent[8:]) == asked


def test_a_fleet_that_is_large_enough_meets_its_objective() -> None:
    [found] = answer(job(rows(0.0, 1.0))).rehearsals
    assert found.requests > 100
    assert found.attainment == 1.0


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "hardly a request is recorded"),
        ([b"no JSON"], "recorded traffic cannot be replayed"),
        ([b"[]"], "recorded traffic cannot be replayed"),
        (changed(rows(0.0, 1.0), arrival_s="soon"), "recorded traffic cannot be replayed"),
        (changed(rows(0.0, 1.0), input_tokens=10**9), "recorded traffic cannot be replayed"),
        (changed(rows(0.0, 1.0), output_tokens=0), "recorded requests do not tell how long their outputs were"),
        (changed(rows(0.0, 1.0), outcome="invalid"), "hardly a request is recorded"),
    ],
    ids=["empty", "no JSON", "no row", "no time", "too long", "no lengths", "not served"],
)
def test_what_cannot_be_replayed_is_a_problem_and_never_an_error(lines: list[bytes], problem: str) -> None:
    found = answer(job(lines))
    assert found.rehearsals == ()
    assert problem in found.problem


def test_rows_come_in_order_and_only_those_that_engines_had() -> None:
    lines = rows(0.0, 1.0)
    found = recorded_rows([lines[1], lines[0], *changed(lines[2:3], outcome="rejected")])
    assert [each.arrival_s for each in found] == [-119.5, -118.5]


def test_of_several_classes_the_tightest_threshold_of_each_kind_counts() -> None:
    found = tightest([Objective("a", ttft_s=2.0, tpot_s=0.1), Objective("b", ttft_s=1.0, e2e_s=30.0)])
    assert (found.ttft_s, found.tpot_s, found.e2e_s) == (1.0, 0.1, 30.0)
