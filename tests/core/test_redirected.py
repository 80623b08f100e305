"""`RequestRedirected`: a request runs elsewhere, by no decision of the Director. Books follow, beliefs are unharmed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, Fault, Outcome, RequestId, Stage
from ballast_core.model.effects import Handoff
from ballast_core.model.events import (
    DispatchFailed,
    EndpointLost,
    EndpointObserved,
    FirstToken,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
    RequestRedirected,
)
from ballast_core.policies.admission import Bounded
from tests.support.core_builders import director, endpoint, only_dispatch, request
from tests.support.recount import check_books

R = RequestId("r")


def learning(*names: str) -> Director:
    """A Director that learns all there is, with these endpoints."""
    made = Director(replace(director(()).settings, learn=Belief.ALL))
    for name in names:
        made.on_event(EndpointObserved(endpoint(name)), 0.0)
    return made


def moved(decode: str, prefill: str | None = None) -> RequestRedirected:
    return RequestRedirected(R, None if prefill is None else EndpointId(prefill), EndpointId(decode))


def booked(on: Director, stage: Stage) -> dict[str, int]:
    """Requests by endpoint."""
    check_books(on.ledger)
    names = {on.inventory.slot_of(name): str(name) for name in on.inventory.known()}
    return {names[slot]: int(count) for slot, count in enumerate(on.ledger.requests[stage]) if count}


def test_a_prefilling_request_is_booked_where_it_runs_now() -> None:
    """Both stages, and what was to be computed."""
    on = director(("p0", "p1", "d0", "d1"))
    on.on_event(RequestArrived(request(prompt_tokens=300)), 0.0)
    assert on.on_event(moved("d1", "p1"), 1.0) == []
    assert (booked(on, Stage.PREFILL), booked(on, Stage.DECODE)) == ({"p1": 1}, {"d1": 1})
    slot = on.inventory.slot_of(EndpointId("p1"))
    assert on.ledger.uncached_tokens[slot] == 300
    (handoff,) = on.on_event(PrefillDone(R), 2.0)
    assert isinstance(handoff, Handoff)
    assert handoff.decode.id == "d1"


def test_a_decoding_request_takes_its_tokens_along() -> None:
    """Prompt and output so far are load of the endpoint where it is."""
    on = director(("f0", "f1"))
    on.on_event(RequestArrived(request(prompt_tokens=300)), 0.0)
    on.on_event(Progress(R, 20), 1.0)
    on.on_event(moved("f1"), 1.0)
    on.on_event(Progress(R, 25), 2.0)
    assert booked(on, Stage.PREFILL) == {}
    slot = on.inventory.slot_of(EndpointId("f1"))
    assert slot is not None
    assert on.ledger.decode_load(slot)[:2] == (1, 325)


@pytest.mark.parametrize("tokens", [0, 20], ids=["prefilling", "decoding"])
def test_what_runs_where_nothing_is_known_counts_nowhere(tokens: int) -> None:
    """Until it is known where, and then with all that it had; its end is its end."""
    on = director(("f0", "f1"))
    on.on_event(RequestArrived(request(prompt_tokens=300)), 0.0)
    if tokens:
        on.on_event(Progress(R, tokens), 0.5)
    on.on_event(moved("nowhere"), 1.0)
    assert (booked(on, Stage.PREFILL), booked(on, Stage.DECODE), len(on.ledger)) == ({}, {}, 1)
    on.on_event(Progress(R, tokens + 1), 1.5)
    assert booked(on, Stage.DECODE) == {}
    on.on_event(moved("f1"), 2.0)
    assert (booked(on, Stage.PREFILL), booked(on, Stage.DECODE)) == ({} if tokens else {"f1": 1}, {"f1": 1})
    assert on.ledger.entries[R].generated_tokens == tokens
    on.on_event(Progress(R, tokens + 30), 3.0)
    assert on.ledger.tokens[Stage.DECODE].sum() == 330 + tokens
    on.on_event(RequestEnded(R, Outcome.COMPLETED, tokens + 30), 4.0)
    assert (booked(on, Stage.DECODE), len(on.ledger)) == ({}, 0)


def test_the_slot_of_a_lost_endpoint_is_free_when_its_last_request_is_elsewhere() -> None:
    """The old endpoint is kept no longer than it is booked."""
    on = director(("f0", "f1"))
    first = only_dispatch(on.on_event(RequestArrived(request()), 0.0)).decode.id
    on.on_event(EndpointLost(first), 1.0)
    on.on_event(moved("f1" if first == "f0" else "f0"), 1.0)
    assert on.inventory.slot_of(first) is None


def test_the_end_of_a_prefill_that_began_elsewhere_teaches_nothing() -> None:
    """When it began there, and what was cached, is not known."""
    ratios = []
    for redirected in (False, True):
        on = learning("p0", "p1", "d0")
        first = only_dispatch(on.on_event(RequestArrived(request(prompt_tokens=4000)), 0.0)).prefill
        assert first is not None
        if redirected:
            on.on_event(moved("d0", "p1" if first.id == "p0" else "p0"), 9.0)
        before = str(on.beliefs.prefill_times.__dict__)
        on.on_event(PrefillDone(R), 10.0)
        ratios.append(str(on.beliefs.prefill_times.__dict__) == before)
    assert ratios == [False, True]


def test_a_prefill_that_stays_where_it_is_teaches_what_it_took() -> None:
    """Only the decode endpoint is another one."""
    on = learning("p0", "d0", "d1")
    on.on_event(RequestArrived(request(prompt_tokens=4000)), 0.0)
    on.on_event(moved("d1", "p0"), 5.0)
    entry = on.ledger.entries[R]
    assert (entry.prefill.known, entry.prefill.dispatched_s) == (True, 0.0)
    assert booked(on, Stage.DECODE) == {"d1": 1}


def test_the_gap_before_the_first_token_elsewhere_measures_no_endpoint() -> None:
    """It holds the time of going there."""
    on = learning("f0", "f1")
    on.on_event(RequestArrived(request()), 0.0)
    on.on_event(FirstToken(R), 1.0)
    on.on_event(moved("f1"), 1.0)
    slots = np.arange(on.inventory.capacity)
    before = on.beliefs.rates.tokens_per_s(slots, 50.0).tolist()
    on.on_event(Progress(R, 2), 50.0)
    assert on.beliefs.rates.tokens_per_s(slots, 50.0).tolist() == before


def test_tokens_that_were_counted_are_not_counted_again() -> None:
    """The survival curve hears of each token once, also of those from before it was out of sight."""
    on = learning("f0", "f1")
    on.on_event(RequestArrived(request()), 0.0)
    on.on_event(Progress(R, 40), 1.0)
    on.on_event(EndpointObserved(endpoint("f0"), None), 2.0)
    on.ledger.flights.counted_tokens[on.ledger.entries[R].row] = 40
    on.on_event(moved("nowhere"), 3.0)
    assert on.ledger.entries[R].counted_tokens == 40
    on.on_event(moved("f1"), 4.0)
    assert on.ledger.entries[R].counted_tokens == 40


def test_a_request_that_waits_stays_in_its_queue() -> None:
    """It runs nowhere."""
    settings = replace(director(()).settings, admission=Bounded(max_decode_requests=1, max_wait_s=10.0))
    on = Director(settings)
    on.on_event(EndpointObserved(endpoint("f0")), 0.0)
    on.on_event(RequestArrived(request("other")), 0.0)
    on.on_event(RequestArrived(request()), 0.0)
    on.on_event(moved("f0"), 1.0)
    assert R in on.queue
    assert booked(on, Stage.DECODE) == {"f0": 1}


def test_a_leg_that_fails_out_of_sight_is_sent_again() -> None:
    """It is dispatched as after any other failure."""
    on = director(("f0", "f1"))
    on.on_event(RequestArrived(request()), 0.0)
    on.on_event(moved("nowhere"), 1.0)
    again = on.on_event(DispatchFailed(R, Stage.DECODE, EndpointId("nowhere"), Fault.BROKE), 2.0)
    assert only_dispatch(again).decode.id in {"f0", "f1"}
    assert sum(booked(on, Stage.DECODE).values()) == 1


def test_an_outcome_counts_for_the_endpoint_where_it_came_about() -> None:
    """Whole answers too, whose end is the first that is heard of them."""
    on = director(("f0", "f1", "f2"))
    on.on_event(RequestArrived(request()), 0.0)
    on.on_event(moved("f2"), 1.0)
    on.on_event(RequestEnded(R, Outcome.FAILED, fault=Fault.ERROR), 2.0)
    assert [on.health.report(EndpointId(name)).failed_legs for name in ("f0", "f1", "f2")] == [0, 0, 1]
