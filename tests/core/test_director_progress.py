"""Progress told in batches: the same books, beliefs and decisions as one event for each report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Outcome, RequestId, Role, Stage
from ballast_core.model.events import (
    EndpointObserved,
    FirstToken,
    PrefillDone,
    Progress,
    ProgressBatch,
    RequestArrived,
    RequestEnded,
)
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from tests.support.core_builders import endpoint, observation, request
from tests.support.recount import check_books

pytestmark = pytest.mark.rotating(4, each=True)

REQUESTS = tuple(f"r{k}" for k in range(5))
CROWD = tuple(f"r{k}" for k in range(40))
"""So many that a batch of one report each is taken as arrays."""

reports = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.3]), st.sampled_from([*REQUESTS, "unknown"]), st.integers(0, 200)),
    max_size=60,
)


def started(handed_off: int, learn: Belief, names: tuple[str, ...] = REQUESTS) -> Director:
    """Requests placed at 0 s; the first few of them decode."""
    placement = build_placement("least-requests")
    made = Director(DirectorSettings(prefill=placement, decode=placement, learn=learn, profiles=SHIPPED_PROFILES))
    for name in ("p0", "d0", "d1"):
        made.on_event(EndpointObserved(endpoint(name), observation()), 0.0)
    for k, name in enumerate(names):
        made.on_event(RequestArrived(request(name)), 0.0)
        if k < handed_off:
            made.on_event(PrefillDone(RequestId(name)), 0.5)
    return made


@pytest.mark.parametrize("learn", [Belief.ALL, Belief.PROGRESS | Belief.LENGTHS | Belief.RATES])
@settings(deadline=None)
@given(handed_off=st.integers(0, len(REQUESTS)), gaps=reports)
def test_a_batch_is_as_good_as_its_events(learn: Belief, handed_off: int, gaps: list[tuple[float, str, int]]) -> None:
    """Late reports, unknown requests, and tokens that end a prefill among them."""
    now_s, told = 1.0, []
    for gap_s, name, tokens in gaps:
        now_s += gap_s
        told.append((now_s, RequestId(name), tokens))
    check(started(handed_off, learn), started(handed_off, learn), [told], now_s)


@pytest.mark.parametrize("learn", [Belief.ALL, Belief.PROGRESS | Belief.LENGTHS | Belief.RATES])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_large_batch_of_a_report_each_is_as_good_as_its_events(learn: Belief, data: st.DataObject) -> None:
    """Taken as arrays, with late reports, unknown requests and others' load; unless a request has moved."""
    one_by_one, at_once = (started(len(CROWD), learn, CROWD) for _ in range(2))
    now_s, batches = 1.5, list[list[tuple[float, RequestId, int]]]()
    for _ in range(4):
        batch = []
        for name in data.draw(st.permutations([*CROWD, "unknown"])):
            now_s += data.draw(st.sampled_from([0.0, 0.001, 0.01]))
            batch.append((now_s, RequestId(name), data.draw(st.integers(0, 200))))
        batches.append(batch)
    moves, waits = data.draw(st.booleans()), data.draw(st.booleans())
    for made in (one_by_one, at_once):
        made.on_event(ProgressBatch([(1.0, RequestId(name), 1 + k) for k, name in enumerate(CROWD)]), 1.0)
        moved = made.ledger.get(RequestId("r7"))
        assert moved is not None
        assert moved.decode_slot is not None
        if moves:
            made.ledger.move(moved, {1: 2, 2: 1}[moved.decode_slot], 1.0)
        if waits:
            made.on_event(EndpointObserved(endpoint("d1"), observation(at_s=1.0, waiting=3)), 1.0)
    if not moves:
        assert at_once.ledger.gaps(batches[0]) is not None
    check(one_by_one, at_once, batches, now_s)


def check(
    one_by_one: Director, at_once: Director, batches: list[list[tuple[float, RequestId, int]]], now_s: float
) -> None:
    """Both know the same after these reports."""
    for told in batches:
        for at_s, request_id, tokens in told:
            assert one_by_one.on_event(Progress(request_id, tokens), at_s) == []
        assert at_once.on_event(ProgressBatch(told), now_s) == []
    check_books(at_once.ledger)
    assert list(one_by_one.ledger) == list(at_once.ledger)
    for column in ("generated_tokens", "progress_at_s", "gap_from_s", "first_token_at_s", "decoding"):
        np.testing.assert_array_equal(
            getattr(one_by_one.ledger.flights, column), getattr(at_once.ledger.flights, column)
        )
    for director in (one_by_one, at_once):
        for name in ("d0", "d1"):
            director.on_event(EndpointObserved(endpoint(name), observation(at_s=now_s + 2.0)), now_s + 2.0)
    assert one_by_one.beliefs.rates.pool_tokens_per_s(now_s) == at_once.beliefs.rates.pool_tokens_per_s(now_s)
    slots, loads = np.arange(3), np.full(3, 20.0)
    np.testing.assert_array_equal(
        one_by_one.beliefs.step_times.predict_s(slots, loads, 100 * loads),
        at_once.beliefs.step_times.predict_s(slots, loads, 100 * loads),
    )
    np.testing.assert_array_equal(one_by_one.ledger.tokens[Stage.DECODE], at_once.ledger.tokens[Stage.DECODE])
    np.testing.assert_array_equal(one_by_one.ledger.decoding_tokens, at_once.ledger.decoding_tokens)
    assert one_by_one.beliefs.rates.tokens_per_s(slots, now_s).tolist() == (
        at_once.beliefs.rates.tokens_per_s(slots, now_s).tolist()
    )


@pytest.mark.parametrize("decodes", [4, len(CROWD)], ids=["one by one", "as arrays"])
def test_a_prompt_that_was_computed_in_between_is_no_slow_decode(decodes: int) -> None:
    """A colocated engine computes a prompt of a second in every other gap; its decode steps are as the profile says."""
    placement, hardware = build_placement("ballast"), SHIPPED_PROFILES["h20-qwen3-32b"]
    made = Director(DirectorSettings(prefill=placement, decode=placement, learn=Belief.ALL, profiles=SHIPPED_PROFILES))
    engine = replace(endpoint("c0", Role.FLEXIBLE), profile=hardware.name)
    made.on_event(EndpointObserved(engine, observation()), 0.0)
    names = [RequestId(name) for name in CROWD[:decodes]]
    for name in names:
        made.on_event(RequestArrived(request(name, 1000)), 0.0)
        made.on_event(FirstToken(name), 0.5)
    now_s, context, tokens = 1.0, 1000.0 * decodes, 1
    made.on_event(ProgressBatch([(now_s, name, tokens) for name in names]), now_s)
    for turn in range(120):
        gap_s = 16 * hardware.step_s(decodes, context + decodes * (tokens + 8), 0.0, decodes)
        if turn % 2:
            made.on_event(RequestArrived(request(f"prompt-{turn}", 8000)), now_s)
            made.on_event(FirstToken(RequestId(f"prompt-{turn}")), now_s + 1.0)
            made.on_event(RequestEnded(RequestId(f"prompt-{turn}"), Outcome.COMPLETED, 1), now_s + 1.0)
            gap_s += 1.0
        now_s, tokens = now_s + gap_s, tokens + 16
        made.on_event(ProgressBatch([(now_s, name, tokens) for name in names]), now_s)
        made.on_event(EndpointObserved(engine, observation(at_s=now_s, running=decodes)), now_s)
    held = context + decodes * tokens
    learned_s = made.beliefs.step_times.predict_s(np.array([0]), np.array([float(decodes)]), np.array([held]))[0]
    assert learned_s == pytest.approx(hardware.step_s(decodes, held, 0.0, decodes), rel=0.05)
