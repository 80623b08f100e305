"""What every registered placement promises in any state: costs that are numbers, and the same in any order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Request, Role, Stage
from ballast_core.policies.placement.registry import PLACEMENTS
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from tests.support.placement_states import State, asks, build, costs, states

quick = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
handoffs = st.sampled_from([None, 0.0, 0.7])
LOAD_POLICIES = [
    "least-requests",
    "least-requests-running",
    "least-tokens",
    "ils",
    "least-uncached-tokens",
    "predicted-ttft",
]

FOLLOWING = {
    name
    for name in PLACEMENTS
    if DirectorSettings(
        prefill=build_placement("random"), decode=build_placement(name), profiles=SHIPPED_PROFILES
    ).follows_progress
}


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
@quick
@given(state=states, request=asks, handoff_s=handoffs, data=st.data())
def test_costs_are_numbers_and_follow_their_candidates(
    name: str, state: State, request: Request, handoff_s: float | None, data: st.DataObject
) -> None:
    """Never NaN, at least one finite; asked again the same; reordered candidates get reordered costs."""
    order = data.draw(st.permutations(range(state.endpoints)))
    stage = Stage.DECODE if state.role is Role.DECODE else data.draw(st.sampled_from(Stage))
    policy, made = build_placement(name), build(state)
    straight = costs(policy, made, request, stage=stage, handoff_s=handoff_s)
    assert not np.isnan(straight).any()
    assert np.isfinite(straight).any()
    assert not np.isneginf(straight).any()
    assert costs(policy, made, request, stage=stage, handoff_s=handoff_s) == straight
    permuted = costs(policy, made, request, stage=stage, handoff_s=handoff_s, order=order)
    np.testing.assert_allclose(permuted, [straight[k] for k in order], rtol=1e-9)


@pytest.mark.parametrize("name", LOAD_POLICIES)
@quick
@given(state=states, request=asks, handoff_s=handoffs, data=st.data())
def test_less_load_never_costs_more(
    name: str, state: State, request: Request, handoff_s: float | None, data: st.DataObject
) -> None:
    """Without one of its requests an endpoint costs no more than with it."""
    if not state.flights:
        return
    gone = data.draw(st.integers(0, len(state.flights) - 1))
    lighter = replace(state, flights=[*state.flights[:gone], *state.flights[gone + 1 :]])
    policy, at = build_placement(name), state.flights[gone].at % state.endpoints
    before = costs(policy, state, request, handoff_s=handoff_s)[at]
    assert costs(policy, lighter, request, handoff_s=handoff_s)[at] <= before * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("name", sorted(set(PLACEMENTS) - FOLLOWING))
@quick
@given(state=states, request=asks, handoff_s=handoffs, data=st.data())
def test_who_does_not_ask_for_progress_does_not_look_at_it(
    name: str, state: State, request: Request, handoff_s: float | None, data: st.DataObject
) -> None:
    """A driver may leave out the tokens of running requests then: the costs are the same, however many there are."""
    stage = Stage.DECODE if state.role is Role.DECODE else data.draw(st.sampled_from(Stage))
    silent = [replace(flight, generated=flight.generated and 1) for flight in state.flights]
    policy = build_placement(name)
    heard = costs(policy, state, request, stage=stage, handoff_s=handoff_s)
    assert costs(policy, replace(state, flights=silent), request, stage=stage, handoff_s=handoff_s) == heard


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
def test_every_placement_says_what_it_is_for(name: str) -> None:
    """The reference page is made of these texts."""
    text = PLACEMENTS[name].__doc__ or ""
    assert len(text) > 80
    assert "cost" in text
