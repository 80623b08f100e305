"""Properties of the Director under any sequence of events.

1. Conservation: what is booked per endpoint and stage is what the requests in flight add up to; never negative.
2. No dispatch to an endpoint that is not ready, of the wrong role, or on which the request failed before.
3. Each request gets at most one final answer (rejection), and none after its end.
4. Replay: the same events give the same effects.
5. Nothing leaks: when all requests have ended and all endpoints are lost, no slot is in use.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from ballast_core.directing.director import Director
from ballast_core.model import STAGE_ROLES, EndpointId, Outcome, RequestId, Stage
from ballast_core.model.effects import Dispatch, Effect, Handoff, Reject
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    Event,
    FirstToken,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
    TimerFired,
)
from ballast_core.state.inventory import Readiness
from ballast_core.state.ledger import Phase
from tests.support.core_builders import director, endpoint, observation, request

NAMES = ("p0", "p1", "d0", "d1", "f0")
REQUESTS = tuple(f"r{k}" for k in range(6))

_endpoints, _requests = st.sampled_from(NAMES), st.sampled_from(REQUESTS)
_events: st.SearchStrategy[Callable[[float], Event]] = st.one_of(
    st.builds(lambda n, p: lambda _: RequestArrived(request(n, p)), _requests, st.integers(1, 1000)),
    st.builds(lambda n: lambda _: PrefillDone(RequestId(n)), _requests),
    st.builds(lambda n: lambda _: FirstToken(RequestId(n)), _requests),
    st.builds(lambda n, g: lambda _: Progress(RequestId(n), g), _requests, st.integers(0, 500)),
    st.builds(lambda n: lambda _: RequestEnded(RequestId(n), Outcome.COMPLETED), _requests),
    st.builds(lambda n: lambda _: ClientGone(RequestId(n)), _requests),
    st.builds(
        lambda n, s, e: lambda _: DispatchFailed(RequestId(n), s, EndpointId(e)),
        _requests,
        st.sampled_from(list(Stage)),
        _endpoints,
    ),
    st.builds(
        lambda e, r: lambda t: EndpointObserved(endpoint(e), observation(running=r, at_s=t)),
        _endpoints,
        st.integers(0, 9),
    ),
    st.builds(lambda e: lambda _: EndpointObserved(endpoint(e)), _endpoints),
    st.builds(lambda e: lambda _: EndpointDraining(EndpointId(e)), _endpoints),
    st.builds(lambda e: lambda _: EndpointLost(EndpointId(e)), _endpoints),
    st.just(lambda _: TimerFired()),
)


def run(script: list[Callable[[float], Event]], check: Callable[[Director, Event, list[Effect]], None]) -> list[Effect]:
    """Feed the script, one event a second, and check after each; a request id is not reused while in flight."""
    d = director(names=("p0", "d0"), hold_s=3.0)
    log: list[Effect] = []
    for k, make in enumerate(script):
        event = make(float(k))
        if isinstance(event, RequestArrived) and d.ledger.get(event.request.id) is not None:
            continue
        effects = d.on_event(event, float(k))
        check(d, event, effects)
        log += effects
    return log


def check_books(d: Director, _event: Event, _effects: list[Effect]) -> None:
    booked = {(stage, slot): [0, 0] for stage in Stage for slot in range(d.inventory.capacity)}
    for entry in d.ledger:
        if entry.phase is Phase.HELD:
            continue
        assert entry.decode_slot is not None
        decode = booked[Stage.DECODE, entry.decode_slot]
        decode[0] += 1
        decode[1] += entry.request.prompt_tokens + entry.generated_tokens
        if entry.phase is Phase.PREFILLING:
            slot = entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot
            booked[Stage.PREFILL, slot][0] += 1
            booked[Stage.PREFILL, slot][1] += entry.request.prompt_tokens
        row = entry.row
        flights = d.ledger.flights
        assert (flights.slot[row], flights.prompt_tokens[row]) == (entry.decode_slot, entry.request.prompt_tokens)
        assert flights.generated_tokens[row] == entry.generated_tokens
        assert flights.decoding[row] == (entry.phase is Phase.DECODING)
    assert d.ledger.flights.count == sum(entry.phase is not Phase.HELD for entry in d.ledger)
    assert (d.ledger.decoding_tokens >= 0).all()
    for (stage, slot), (requests, tokens) in booked.items():
        assert d.ledger.requests[stage][slot] == requests
        assert d.ledger.tokens[stage][slot] == tokens


def check_dispatches(d: Director, event: Event, effects: list[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, Reject):
            assert d.ledger.get(effect.request_id) is None
        if not isinstance(effect, Dispatch):
            continue
        entry = d.ledger.get(effect.request_id)
        assert entry is not None
        for stage, chosen in ((Stage.PREFILL, effect.prefill), (Stage.DECODE, effect.decode)):
            if chosen is None:
                continue
            slot = d.inventory.slot_of(chosen.id)
            assert slot is not None
            assert d.inventory.readiness(slot) is Readiness.READY
            assert chosen.role in STAGE_ROLES[stage]
            assert chosen.id not in entry.avoid
    if isinstance(event, PrefillDone):
        assert all(isinstance(effect, Handoff) for effect in effects)


@given(st.lists(_events, max_size=60))
def test_the_books_balance_after_every_event(script: list[Callable[[float], Event]]) -> None:
    """Invariant 1."""
    run(script, check_books)


@given(st.lists(_events, max_size=60))
def test_only_ready_endpoints_of_the_right_role_are_dispatched_to(script: list[Callable[[float], Event]]) -> None:
    """Invariants 2 and 3."""
    run(script, check_dispatches)


@given(st.lists(_events, max_size=40))
def test_the_same_events_give_the_same_effects(script: list[Callable[[float], Event]]) -> None:
    """Invariant 4. Traces hold arrays, so the effects are compared by what they name."""

    def names(effects: list[Effect]) -> list[str]:
        return [
            f"{type(e).__name__} {getattr(e, 'request_id', '')} {getattr(e, 'prefill', '')} {getattr(e, 'decode', '')}"
            for e in effects
        ]

    assert names(run(script, lambda *_: None)) == names(run(script, lambda *_: None))


@given(st.lists(_events, max_size=40))
def test_nothing_is_left_when_all_is_over(script: list[Callable[[float], Event]]) -> None:
    """Invariant 5."""
    d = director(names=("p0", "d0"), hold_s=3.0)
    for k, make in enumerate(script):
        event = make(float(k))
        if not (isinstance(event, RequestArrived) and d.ledger.get(event.request.id) is not None):
            d.on_event(event, float(k))
    for name in REQUESTS:
        d.on_event(ClientGone(RequestId(name)), 1000.0)
    for name in (*NAMES, "p0", "d0"):
        d.on_event(EndpointLost(EndpointId(name)), 1000.0)
    assert len(d.ledger) == 0
    assert len(d.inventory) == 0
