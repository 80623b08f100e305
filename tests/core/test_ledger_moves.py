"""Requests that move between endpoints: after any sequence of changes the books are what the requests add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import RequestId, Stage
from ballast_core.model.events import EndpointObserved, FirstToken, Progress, ProgressBatch, RequestArrived
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.age_histograms import AgeHistograms
from ballast_core.state.ledger import Entry, Ledger, Phase
from tests.support.core_builders import endpoint, observation, request
from tests.support.recount import check_books, on_engine

SLOTS = 4
NAMES = tuple(f"r{k}" for k in range(6))

STEPS = ("open", "assign", "prefilled", "progress", "reserve", "release", "move", "unassign", "close", "observe")

Step = tuple[str, str, int, int]
"""What to do, with which request, a slot and a number of tokens."""

steps = st.lists(
    st.tuples(
        st.sampled_from([*STEPS, "progress"]),
        st.sampled_from(NAMES),
        st.integers(0, SLOTS - 1),
        st.integers(0, 400),
    ),
    max_size=120,
)


def apply(ledger: Ledger, what: Step, now_s: float) -> None:
    """Do it, if it makes sense now."""
    step, name, slot, tokens = what
    if step == "observe":
        check_foreign(ledger, slot, tokens)
        return
    entry = ledger.get(RequestId(name))
    if entry is None:
        if step == "open":
            ledger.open(replace(request(name, 1 + tokens), max_output_tokens=500), now_s)
    elif step == "assign" and entry.phase is Phase.HELD:
        ledger.assign(
            entry,
            None if tokens % 2 else (slot + 1) % SLOTS,
            slot,
            now_s,
            cached_tokens=(tokens * 7) % 100,
            class_slot=tokens % 3,
            prefill_tokens=None if tokens % 5 else tokens // 2,
        )
    elif step == "prefilled":
        ledger.prefilled(entry, now_s)
    elif step == "progress":
        ledger.progressed(entry, tokens, now_s)
    elif step == "reserve" and entry.phase is Phase.DECODING and entry.reservation is None:
        if entry.decode_slot != slot:
            ledger.reserve(entry, slot, now_s, move_s=0.5)
    elif step == "release":
        ledger.release(entry)
    elif step == "move" and entry.decode_slot is not None:
        ledger.move(entry, slot, now_s)
    elif step == "unassign":
        ledger.unassign(entry)
    elif step == "close":
        ledger.close(entry.request.id)


def check_foreign(ledger: Ledger, slot: int, others: int) -> None:
    """Requests that an endpoint reports twice beyond ours are of others; those that it prefills or decodes are ours."""
    seen = observation(running=on_engine(ledger, slot), waiting=others)
    for _ in range(2):
        ledger.observed(slot, seen)
    assert ledger.foreign[slot] == others


def totals(histograms: AgeHistograms) -> dict[int, tuple[Sequence[float], int]]:
    histograms.update()
    return {
        each.group: (np.concatenate([each.counts.sum(axis=1), np.zeros(SLOTS)])[:SLOTS].tolist(), each.total)
        for each in histograms
    }


@given(steps)
def test_the_sums_are_those_of_the_requests(script: list[Step]) -> None:
    """After each change; the age histograms are followed all along and counted anew at the end."""
    ledger = Ledger(SLOTS)
    followed = ledger.age_histograms
    for number, what in enumerate(script):
        apply(ledger, what, float(number))
        check_books(ledger)
        if number % 7 == 0:
            followed.update()
    assert totals(followed) == totals(AgeHistograms(ledger.flights))
    for name in NAMES:
        ledger.close(RequestId(name))
    assert all(ledger.is_idle(slot) for slot in range(SLOTS))
    assert ledger.flights.count == 0


def decoding(ledger: Ledger, name: str = "r0", slot: int = 0) -> Entry:
    entry = ledger.open(replace(request(name, 100), max_output_tokens=500), 0.0)
    ledger.assign(entry, 3, slot, 0.0)
    ledger.prefilled(entry, 1.0)
    ledger.progressed(entry, 40, 2.0)
    return entry


def test_a_reservation_is_a_decode_on_its_way_in() -> None:
    """It holds what the request holds now, may still generate what that may, and comes when the move is done."""
    ledger = Ledger(SLOTS)
    entry = decoding(ledger)
    ledger.reserve(entry, 1, 2.0, move_s=0.25)
    assert (ledger.requests[Stage.DECODE][:2].tolist(), ledger.tokens[Stage.DECODE][:2].tolist()) == ([1, 1], [140] * 2)
    assert ledger.decoding_requests[:2].tolist() == [1, 0]
    assert entry.reservation is not None
    row = entry.reservation.row
    assert not ledger.flights.decoding[row]
    assert (ledger.flights.handoff_at_s[row], ledger.flights.limit_tokens[row]) == (2.25, 460)
    ledger.progressed(entry, 60, 2.2)
    ledger.move(entry, 1, 2.3)
    assert (ledger.requests[Stage.DECODE][:2].tolist(), ledger.tokens[Stage.DECODE][:2].tolist()) == ([0, 1], [0, 160])
    assert ledger.decoding_tokens[:2].tolist() == [0, 160]
    assert ledger.flights.count == 1


def test_what_cannot_move_is_refused() -> None:
    """A held request has nowhere to come from; one moves to one other place at a time."""
    ledger = Ledger(SLOTS)
    held = ledger.open(request("held"), 0.0)
    with pytest.raises(ValueError, match="held"):
        ledger.move(held, 1, 0.0)
    with pytest.raises(ValueError, match="does not decode"):
        ledger.reserve(held, 1, 0.0)
    entry = decoding(ledger)
    with pytest.raises(ValueError, match="slot 0"):
        ledger.reserve(entry, 0, 2.0)
    ledger.reserve(entry, 1, 2.0)
    with pytest.raises(ValueError, match="does not decode"):
        ledger.reserve(entry, 2, 2.0)


def test_the_gap_across_a_move_teaches_nothing() -> None:
    """It holds the pause of the move, and tokens of two endpoints."""
    director = Director(
        DirectorSettings(prefill=LeastRequests(), decode=LeastRequests(), learn=Belief.RATES, profiles=SHIPPED_PROFILES)
    )
    for name in ("p0", "d0", "d1"):
        director.on_event(EndpointObserved(endpoint(name)), 0.0)
    director.on_event(RequestArrived(request("r0")), 0.0)
    director.on_event(FirstToken(RequestId("r0")), 1.0)
    director.on_event(Progress(RequestId("r0"), 31), 2.0)
    entry = director.ledger.get(RequestId("r0"))
    assert entry is not None
    assert entry.decode_slot is not None
    before = director.beliefs.rates.pool_tokens_per_s(2.0)
    director.ledger.move(entry, {1: 2, 2: 1}[entry.decode_slot], 2.5)
    director.on_event(ProgressBatch([(9.0, RequestId("r0"), 41)]), 9.0)
    assert director.beliefs.rates.pool_tokens_per_s(2.0) == before
    director.on_event(ProgressBatch([(10.0, RequestId("r0"), 141)]), 10.0)
    assert director.beliefs.rates.pool_tokens_per_s(10.0) > before
