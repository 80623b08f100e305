"""A scrape told at once: the same books, readiness and decisions as one event for each endpoint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import EndpointId, Observation, RequestId
from ballast_core.model.events import (
    CacheReported,
    CacheReportsBegun,
    ClientGone,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    EndpointsScraped,
    PrefillDone,
    ProgressBatch,
    RequestArrived,
)
from ballast_core.model.kv_reports import BlocksStored
from ballast_core.model.observations import Observations
from ballast_core.model.prompt_tokens import PromptTokens, packed
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from tests.support.core_builders import endpoint, observation, request

NAMES = ("p0", "d0", "d1", "d2")

answers = st.dictionaries(
    st.sampled_from([*NAMES, "d9"]),
    st.builds(
        Observation,
        st.floats(0.0, 20.0),
        running=st.integers(0, 9),
        waiting=st.integers(0, 9),
        kv_usage_ratio=st.floats(0.0, 1.0),
    ),
)
changes = st.lists(st.tuples(st.sampled_from([EndpointLost, EndpointDraining]), st.sampled_from(NAMES)), max_size=2)


def started() -> Director:
    placement = build_placement("ballast")
    made = Director(
        DirectorSettings(prefill=placement, decode=placement, learn=Belief.ALL, hold_s=60.0, profiles=SHIPPED_PROFILES)
    )
    for name in NAMES:
        made.on_event(EndpointObserved(endpoint(name), observation()), 0.0)
    for k in range(4):
        made.on_event(RequestArrived(request(f"r{k}")), 0.0)
        made.on_event(PrefillDone(RequestId(f"r{k}")), 0.5)
    made.on_event(ProgressBatch([(1.0, RequestId(f"r{k}"), 10 + k) for k in range(4)]), 1.0)
    return made


@pytest.mark.rotating(3)
@settings(deadline=None)
@given(rounds=st.lists(st.tuples(changes, answers), max_size=4))
def test_a_scrape_is_as_good_as_its_events(rounds: list[tuple[list[tuple[type, str]], dict[str, Observation]]]) -> None:
    """Endpoints that are new, lost or draining, and answers that are older than what is known, among them."""
    one_by_one, at_once = started(), started()
    for number, (lost, seen) in enumerate(rounds):
        now_s = 2.0 + 5.0 * number
        for director in (one_by_one, at_once):
            for kind, name in lost:
                director.on_event(kind(EndpointId(name)), now_s)
            director.on_event(RequestArrived(request(f"n{number}")), now_s)
        told = [(endpoint(name), answer) for name, answer in seen.items()]
        effects = [effect for answer in told for effect in one_by_one.on_event(EndpointObserved(*answer), now_s)]
        assert [str(effect) for effect in at_once.on_event(EndpointsScraped(Observations.of(told)), now_s)] == [
            str(effect) for effect in effects
        ]
        for column in ("observed_at_s", "running", "waiting", "kv_usage_ratio"):
            np.testing.assert_array_equal(getattr(one_by_one.inventory, column), getattr(at_once.inventory, column))
        np.testing.assert_array_equal(one_by_one.ledger.foreign, at_once.ledger.foreign)
        np.testing.assert_array_equal(one_by_one.ledger.flights.counted_tokens, at_once.ledger.flights.counted_tokens)
    slots, loads = np.arange(4), np.full(4, 20.0)
    np.testing.assert_array_equal(
        one_by_one.beliefs.step_times.predict_s(slots, loads, 100 * loads),
        at_once.beliefs.step_times.predict_s(slots, loads, 100 * loads),
    )


def test_scrapes_end_what_was_only_expected_of_an_endpoint_that_reports_its_blocks() -> None:
    """The client left before its prompt was computed, and nothing else is sent there."""
    director, ids = started(), list(range(100))
    p0, asked = EndpointId("p0"), replace(request("asked"), tokens=PromptTokens.of(ids))
    one_block = BlocksStored((b"1",), None, packed([7] * 16), 16)
    director.on_event(CacheReportsBegun(p0, 0, 1000), 2.0)
    director.on_event(CacheReported(p0, 0, (one_block,)), 2.0)
    director.on_event(RequestArrived(asked), 3.0)
    director.on_event(ClientGone(asked.id), 3.1)
    slots = director.inventory.known_slots()
    assert director.beliefs.cached_tokens(asked, slots).max() == 96
    director.on_event(EndpointsScraped(Observations.of([(endpoint("d0"), observation(at_s=40.0))])), 40.0)
    assert director.beliefs.cached_tokens(asked, slots).max() == 0
