"""SIBYL against Algorithm 1 in plain Python with its errata mended, and each erratum by itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ballast_core import kernel
from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.directing.director import Director
from ballast_core.model import Request, Role, Stage
from ballast_core.policies.placement.sibyl import Sibyl
from ballast_core.policies.registry import build_placement
from tests.support.placement_states import NOW_S, Flight, State, ask, asks, build, costs, states

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def projected(made: Director, at: int, tau_s: float, switches: Sibyl) -> float:
    """Algorithm 1 for one endpoint: lines 5 to 19, one request after the other."""
    slot = int(made.inventory.candidates(Stage.DECODE).slots[at])
    survival, v_sys = made.beliefs.lengths.tables(NOW_S), made.beliefs.rates.pool_tokens_per_s(NOW_S)

    def surviving(later: float, now: float, limit: float) -> float:
        if later >= limit:
            return 0.0
        return float(survival.survival(np.array([later]))[0] / survival.survival(np.array([now]))[0])

    load = 0.0
    for entry in made.ledger:
        if entry.decode_slot != slot:
            continue
        prompt, row = entry.request.prompt_tokens, entry.row
        limit = float("inf") if entry.request.max_output_tokens is None else float(entry.request.max_output_tokens)
        flights = made.ledger.flights
        if flights.decoding[row]:
            now_tokens = entry.generated_tokens
            decoded_s = float(flights.progress_at_s[row] - flights.first_token_at_s[row])
            rate = (max(now_tokens - 1, 0) + v_sys) / (decoded_s + 1.0)
            later = now_tokens + rate * (tau_s - NOW_S)
            probability = 1.0 if switches.prob_at_one else surviving(later, now_tokens, limit)
            load += 0.0 if switches.without_type_one else (prompt + later) * probability
            continue
        start_s = max(NOW_S, float(flights.handoff_at_s[row]))
        gap = (tau_s - start_s) * v_sys
        if tau_s >= start_s:
            probability = 1.0 if switches.prob_at_one else surviving(gap, 0.0, limit)
            load += 0.0 if switches.without_type_two else (prompt + gap) * probability
        elif not switches.without_type_three:
            load += max(0.0, prompt + gap)
    return load


@quick
@given(
    state=states,
    request=asks,
    handoff_s=st.floats(0, 4),
    switches=st.builds(
        Sibyl,
        prob_at_one=st.booleans(),
        without_type_one=st.booleans(),
        without_type_two=st.booleans(),
        without_type_three=st.booleans(),
    ),
)
def test_costs_are_those_of_algorithm_1(state: State, request: Request, handoff_s: float, switches: Sibyl) -> None:
    """On random fleets, with any of appendix J's switches; 0 / 0 of a vanished curve apart."""
    made = build(state)
    expected = [projected(made, at, NOW_S + handoff_s, switches) for at in range(state.endpoints)]
    assert costs(switches, made, request, handoff_s=handoff_s) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_types_2_and_3_meet_at_the_prompts_length() -> None:
    """Erratum, line 17: as printed the penalty would grow with distance. Both tend to l_in as tau_k -> tau."""

    def cost(due_s: float) -> float:
        state = State(endpoints=1, flights=[Flight(prompt=400, generated=None, due_s=due_s)])
        return costs(Sibyl(), state, handoff_s=2.0)[0]

    assert cost(2.0) == pytest.approx(400)
    assert cost(2.0 - 1e-6) == pytest.approx(cost(2.0 + 1e-6), abs=0.01)
    later = [cost(due_s) for due_s in (2.0, 4.0, 8.0, 12.0, 60.0)]
    assert later == sorted(later, reverse=True)
    assert later[-1] == 0.0


def test_running_requests_count() -> None:
    """Erratum, line 19: outside both loops as printed, so that running requests would never be added."""
    state = State(endpoints=2, flights=[Flight(at=0, prompt=5000), Flight(at=1, prompt=1000, generated=None)])
    first, second = costs(Sibyl(), state, handoff_s=0.0)
    assert first == pytest.approx(5000)
    assert second == pytest.approx(1000)


def test_every_boundary_learns_so_that_the_curve_can_fall() -> None:
    """Erratum, Eq. 4: limited to l <= L the curve would only climb. With all L = 100, nobody outlives 200."""
    state = State(endpoints=1, flights=[Flight(prompt=400, generated=200, decoding_s=10.0)], ended=[100] * 400)
    survival = build(state).beliefs.lengths.tables(NOW_S)
    assert survival.survival(np.array([200.0]))[0] < 0.01
    assert survival.survival(np.array([60.0]))[0] > 0.95


def test_pending_requests_are_expected_when_their_real_queue_lets_them() -> None:
    """Erratum, line 11: one that is overdue is expected now, not in the past."""
    state = State(endpoints=1, flights=[Flight(prompt=400, generated=None, due_s=-5.0)])
    assert costs(Sibyl(), state, handoff_s=0.0)[0] == pytest.approx(400)


def test_a_limit_that_will_be_reached_ends_the_load() -> None:
    """max_tokens is the request's own: survival beyond it is 0."""
    flights = [Flight(prompt=400, generated=100, decoding_s=2.0, limit=110)]
    assert costs(Sibyl(), State(endpoints=1, flights=flights), handoff_s=1.0)[0] == 0.0
    assert costs(Sibyl(), State(endpoints=1, flights=flights), handoff_s=0.0)[0] == pytest.approx(500)


def test_switches_leave_out_what_they_name() -> None:
    """One request of each type; request_level counts all three."""
    flights = [
        Flight(prompt=1000, generated=50),
        Flight(prompt=200, generated=None, due_s=0.5),
        Flight(prompt=300, generated=None, due_s=2.0),
    ]
    made = build(State(endpoints=1, flights=flights))
    whole = costs(Sibyl(), made, handoff_s=1.0)[0]
    parts = [
        whole - costs(without, made, handoff_s=1.0)[0]
        for without in (Sibyl(without_type_one=True), Sibyl(without_type_two=True), Sibyl(without_type_three=True))
    ]
    assert sum(parts) == pytest.approx(whole)
    assert all(part > 0 for part in parts)
    assert [later < earlier for earlier, later in itertools.pairwise(parts)] == [True, False]
    assert costs(Sibyl(prob_at_one=True), made, handoff_s=1.0)[0] > whole
    assert costs(Sibyl(request_level=True), made, handoff_s=1.0) == [3]


def test_prefill_goes_where_it_ends_first() -> None:
    """SIBYL says nothing of prefill placement."""
    state = State(endpoints=2, role=Role.PREFILL, queued=(9000, 0), hardware=("a100-qwen3-32b",))
    first, second = costs(Sibyl(), state, ask(1000), stage=Stage.PREFILL)
    assert first > second > 0


@pytest.mark.parametrize("compiled", [True, False])
def test_the_estimator_decides_what_a_cut_request_teaches(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests are cut at 100 tokens: for the paper's moving average they ended there."""
    if not compiled:
        monkeypatch.setattr(kernel, "active", lambda: None)
    survived = {}
    for estimator in ("kaplan-meier", "ema"):
        policy = build_placement("sibyl", {"estimator": estimator})
        beliefs = Beliefs(policy.needs, {})
        for number in range(3000):
            beliefs.lengths.ended(None, 100.0, censored=True, now_s=float(number))
        tables = beliefs.lengths.tables(4000.0)
        survived[estimator] = float(tables.survival(np.array([150.0]))[0])
    assert survived["ema"] < 0.01
    assert survived["kaplan-meier"] > 0.3


def test_another_estimator_begins_anew_and_the_same_one_goes_on() -> None:
    beliefs = Beliefs(Sibyl(estimator="ema").needs, {})
    slot = beliefs.lengths.slot("chat", 0.0)

    def known() -> float:
        return float(beliefs.lengths.tables(1.0).survival(np.array([200.0]), slot)[0])

    fresh = known()
    for _ in range(2000):
        beliefs.lengths.ended("chat", 1000.0, censored=False, now_s=0.0)
    learned = float(beliefs.lengths.tables(2.0).survival(np.array([200.0]), slot)[0])
    assert learned > 0.95 > fresh
    beliefs.use(Sibyl(estimator="ema").needs, {})
    assert float(beliefs.lengths.tables(3.0).survival(np.array([200.0]), slot)[0]) == learned
    beliefs.use(Sibyl().needs, {})
    assert beliefs.lengths.slot("chat", 4.0) == slot
    assert float(beliefs.lengths.tables(4.0).survival(np.array([200.0]), slot)[0]) == pytest.approx(fresh, abs=0.05)


def test_an_unknown_estimator_is_named() -> None:
    with pytest.raises(ValueError, match="estimator: must be kaplan-meier or ema, not 'mean'"):
        Sibyl(estimator="mean")  # type: ignore[arg-type]
