"""Regret: prefills are judged at their end by what the other candidates promised when they were placed."""

from __future__ import annotations

import pytest

from ballast_core.beliefs.hindsight import Hindsight
from ballast_core.directing.director import Director
from ballast_core.model import Fault, Outcome, RequestId, Stage
from ballast_core.model.events import DispatchFailed, PrefillDone, RequestArrived, RequestEnded
from ballast_core.policies.placement.ballast import Ballast
from ballast_core.policies.placement.placements import LeastRequests
from tests.support.core_builders import director, only_dispatch, request


def hindsight(of: Director) -> Hindsight:
    return of.beliefs.hindsight


def test_regret_is_the_real_time_above_the_best_other_candidates_promise() -> None:
    """Two equal prefill endpoints, one of them busy: the idle one is chosen, and takes far longer than the busy one
    was expected to."""
    d = director(names=("p0", "p1", "d0"), policy=Ballast())
    first = only_dispatch(d.on_event(RequestArrived(request("long", 4000)), 0.0))
    second = only_dispatch(d.on_event(RequestArrived(request("short", 1000)), 0.0))
    assert first.prefill is not None
    assert second.prefill is not None
    assert first.prefill.id != second.prefill.id
    plan = d.ledger.entries[RequestId("short")].prefill
    assert plan.other_s > plan.predicted_s > 0, "the other one has 4,000 tokens before these"
    d.on_event(PrefillDone(RequestId("short")), 60.0)
    found = hindsight(d)
    assert (found.judged, found.observed_s, found.predicted_s) == (1, 60.0, plan.predicted_s)
    assert found.regret_s == pytest.approx(60.0 - plan.other_s)


def test_a_choice_that_was_no_worse_is_not_regretted_and_makes_up_for_no_other() -> None:
    found = Hindsight()
    found.judge(predicted_s=1.0, observed_s=0.5, other_s=2.0)
    found.judge(predicted_s=1.0, observed_s=4.0, other_s=3.0)
    assert (found.judged, found.predicted_s, found.observed_s, found.other_s) == (2, 2.0, 4.5, 5.0)
    assert found.regret_s == 1.0


@pytest.mark.parametrize("names", [("p0", "d0"), ("f0",)])
def test_where_there_was_no_choice_there_is_no_regret(names: tuple[str, ...]) -> None:
    d = director(names=names, policy=Ballast())
    d.on_event(RequestArrived(request()), 0.0)
    d.on_event(PrefillDone(RequestId("r")), 60.0)
    assert hindsight(d).judged == 0


def test_a_prefill_that_never_ended_is_not_judged() -> None:
    """One that failed, and one whose client left."""
    d = director(names=("p0", "p1", "d0"), policy=Ballast())
    dispatch = only_dispatch(d.on_event(RequestArrived(request("a")), 0.0))
    assert dispatch.prefill is not None
    d.on_event(DispatchFailed(RequestId("a"), Stage.PREFILL, dispatch.prefill.id, Fault.BROKE, 0), 1.0)
    d.on_event(RequestArrived(request("b")), 1.0)
    d.on_event(RequestEnded(RequestId("b"), Outcome.FAILED, 0), 2.0)
    assert hindsight(d).judged == 0


def test_a_policy_that_reads_no_prefill_times_is_not_judged() -> None:
    d = director(policy=LeastRequests())
    d.on_event(RequestArrived(request()), 0.0)
    d.on_event(PrefillDone(RequestId("r")), 60.0)
    assert hindsight(d).judged == 0


def test_the_best_other_is_the_least_of_all_but_the_chosen() -> None:
    """Whether the chosen one is expected to end first or not."""
    d = director(names=("p0", "p1", "p2", "d0"), policy=Ballast())
    for number, tokens in enumerate((8000, 4000, 2000, 500)):
        d.on_event(RequestArrived(request(f"r{number}", tokens)), 0.0)
    plans = [d.ledger.entries[RequestId(f"r{number}")].prefill for number in range(4)]
    assert plans[0].other_s == plans[0].predicted_s, "all idle, all alike"
    assert plans[3].predicted_s < plans[3].other_s < plans[0].predicted_s
