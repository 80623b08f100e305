"""The Director with a bounded number of places: who waits, who goes, who is turned away."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.directing.director import Director
from ballast_core.directing.fair_room import FairRank, FairRoom
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Binding, EndpointId, Outcome, RejectReason, Request, RequestId, Stage
from ballast_core.model.effects import Cancel, Dispatch, Effect, Handoff, Hold, Reject, WakeAt
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    EndpointsScraped,
    Event,
    FirstToken,
    ModelsObserved,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
    TimerFired,
)
from ballast_core.model.observations import Observations
from ballast_core.model.served_models import ServedModels
from ballast_core.policies.admission import Admission, Bounded
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.policies.queue.protocol import Work
from ballast_core.policies.queue.ranking import rank
from ballast_core.policies.queue.registry import QUEUE_ORDERS
from ballast_core.policies.registry import QUEUE_ORDER, build
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.inventory import Candidates
from ballast_core.state.ledger import Entry, Phase
from tests.support.core_builders import endpoint, observation, only_dispatch, request

SMALL = Bounded(max_prefill_requests=1, max_decode_requests=2, max_waiting=4, max_wait_s=8.0)


def bounded(
    names: tuple[str, ...] = ("p0", "d0"),
    *,
    order: str = "fcfs",
    admission: Admission = SMALL,
    binding: Binding = Binding.LATE,
    hold_s: float = 0.0,
    parameters: dict[str, object] | None = None,
) -> Director:
    made = Director(
        DirectorSettings(
            prefill=LeastRequests(),
            decode=LeastRequests(),
            queue=build(QUEUE_ORDER, order, parameters),
            admission=admission,
            binding=binding,
            hold_s=hold_s,
            profiles=SHIPPED_PROFILES,
        )
    )
    for name in names:
        made.on_event(EndpointObserved(endpoint(name)), 0.0)
    return made


def arrive(d: Director, name: str, now_s: float, tokens: int = 100, **fields: object) -> list[Effect]:
    asked = replace(request(name, tokens), **fields)  # type: ignore[arg-type]
    return d.on_event(RequestArrived(asked), now_s)


def dispatched(effects: list[Effect]) -> list[str]:
    return [effect.request_id for effect in effects if isinstance(effect, Dispatch)]


def wakes(effects: list[Effect]) -> list[WakeAt]:
    return [effect for effect in effects if isinstance(effect, WakeAt)]


def done(name: str) -> RequestEnded:
    return RequestEnded(RequestId(name), Outcome.COMPLETED, 1)


def test_who_finds_no_place_waits_until_one_is_free() -> None:
    """The end of a prefill frees the place of the prefill stage."""
    d = bounded()
    assert dispatched(arrive(d, "a", 0.0)) == ["a"]
    assert arrive(d, "b", 1.0) == [Hold(RequestId("b")), WakeAt(9.0)]
    effects = d.on_event(PrefillDone(RequestId("a")), 2.0)
    assert isinstance(effects[0], Handoff)
    assert dispatched(effects) == ["b"]
    d.on_event(PrefillDone(RequestId("b")), 3.0)
    arrive(d, "c", 3.0)
    assert dispatched(d.on_event(FirstToken(RequestId("a")), 4.0)) == []
    assert dispatched(d.on_event(done("a"), 5.0)) == ["c"]


@pytest.mark.parametrize(
    "frees",
    [
        done("a"),
        ClientGone(RequestId("a")),
        FirstToken(RequestId("a")),
        Progress(RequestId("a"), 3),
        EndpointObserved(endpoint("f1")),
    ],
)
def test_every_way_in_which_a_place_gets_free(frees: Event) -> None:
    """On endpoints that do both, and by one more of them."""
    d = bounded(("f0",))
    arrive(d, "a", 0.0)
    arrive(d, "b", 0.0)
    assert dispatched(d.on_event(frees, 1.0)) == ["b"]


def test_what_others_send_takes_places_too() -> None:
    """Foreign requests count once they were seen twice; when they go, who waits goes on."""
    d = bounded(("f0",))
    for at in (1.0, 2.0):
        d.on_event(EndpointsScraped(Observations.of([(endpoint("f0"), observation(running=5, at_s=at))])), at)
    assert isinstance(arrive(d, "a", 3.0)[0], Hold)
    assert d.on_event(TimerFired(), 3.5) == [WakeAt(11.0)]
    assert dispatched(
        d.on_event(EndpointsScraped(Observations.of([(endpoint("f0"), observation(running=0, at_s=4.0))])), 4.0)
    ) == ["a"]


def test_full_memory_is_no_place() -> None:
    """max_kv_ratio looks at the last observation."""
    d = bounded(("f0",), admission=replace(SMALL, max_kv_ratio=0.8))
    full = replace(observation(at_s=1.0), kv_usage_ratio=0.8)
    d.on_event(EndpointObserved(endpoint("f0"), full), 1.0)
    assert isinstance(arrive(d, "a", 1.0)[0], Hold)
    room = replace(full, kv_usage_ratio=0.7, observed_at_s=2.0)
    assert dispatched(d.on_event(EndpointObserved(endpoint("f0"), room), 2.0)) == ["a"]


def test_too_many_are_turned_away_and_so_is_who_waited_too_long() -> None:
    """Both as saturated, which is a 429 at the edge."""
    d = bounded()
    arrive(d, "a", 0.0)
    for number in range(4):
        assert isinstance(arrive(d, f"w{number}", float(number))[0], Hold)
    (effect,) = arrive(d, "late", 4.0)
    assert isinstance(effect, Reject)
    assert effect.reason is RejectReason.SATURATED
    assert "4 other requests wait" in effect.message
    assert d.on_event(TimerFired(), 7.9) == [WakeAt(8.0)]
    (effect,) = d.on_event(TimerFired(), 8.0)
    assert isinstance(effect, Reject)
    assert (effect.request_id, effect.reason) == ("w0", RejectReason.SATURATED)
    assert dispatched(d.on_event(done("a"), 8.5)) == ["w1"]


def test_each_who_waits_is_woken_for_however_early_timers_fire() -> None:
    """Every timer but those that were asked for anew fires half a millisecond too soon: all are told in the end."""
    d, fires_s = bounded(), list[float]()
    arrive(d, "a", 0.0)
    fires_s += [each.at_s - 5e-4 for name in "wxyz" for each in wakes(arrive(d, name, ord(name) * 1e-4))]
    told = list[str]()
    while fires_s:
        now_s = min(fires_s)
        fires_s.remove(now_s)
        effects = d.on_event(TimerFired(), now_s)
        told += [each.request_id for each in effects if isinstance(each, Reject)]
        fires_s += [each.at_s for each in wakes(effects)]
    assert told == list("wxyz")


def test_priority_then_order() -> None:
    """The request's own priority first, then the queue's order: here the shortest prompt."""
    d = bounded(("f0",), order="shortest-prompt")
    arrive(d, "first", 0.0)
    arrive(d, "long", 0.1, 900)
    arrive(d, "short", 0.2, 50)
    arrive(d, "urgent", 0.3, 5000, priority=-1)
    went = []
    for last in ("first", "urgent", "short"):
        went += dispatched(d.on_event(done(last), 1.0))
    assert went == ["urgent", "short", "long"]


def test_a_deadline_orders_by_the_objective() -> None:
    """edf: arrival + objective, and five seconds where there is none."""
    d = bounded(("f0",), order="edf")
    arrive(d, "first", 0.0)
    arrive(d, "none", 0.1)
    arrive(d, "tight", 0.2, ttft_objective_s=1.0)
    arrive(d, "loose", 0.3, ttft_objective_s=7.0)
    went = []
    for last in ("first", "tight", "none"):
        went += dispatched(d.on_event(done(last), 1.0))
    assert went == ["tight", "none", "loose"]


def test_a_failed_request_comes_back_at_its_old_rank() -> None:
    """It waits anew, past the limit on who waits, and for as long as any other."""
    d = bounded(("f0", "f1"), admission=replace(SMALL, max_waiting=1))
    assert only_dispatch(arrive(d, "a", 0.0)).decode.id == "f0"
    assert only_dispatch(arrive(d, "b", 0.5)).decode.id == "f1"
    arrive(d, "c", 1.0)
    effects = d.on_event(DispatchFailed(RequestId("a"), Stage.DECODE, EndpointId("f0")), 20.0)
    assert effects[:2] == [Hold(RequestId("a")), WakeAt(28.0)]
    assert [(each.request_id, each.decode.id) for each in effects[2:] if isinstance(each, Dispatch)] == [("c", "f0")]
    dispatch = only_dispatch(d.on_event(done("b"), 21.0))
    assert (dispatch.request_id, dispatch.decode.id) == ("a", "f1")


def test_a_request_for_few_endpoints_holds_nobody_up() -> None:
    """Those that may go elsewhere go, though they rank behind it."""
    d = bounded(("f0", "f1"))
    only_f0 = frozenset({"f0:8000"})
    arrive(d, "a", 0.0, subset=only_f0)
    arrive(d, "b", 0.1)
    arrive(d, "picky", 0.2, subset=only_f0)
    arrive(d, "other", 0.3)
    effects = d.on_event(done("b"), 1.0)
    assert dispatched(effects) == ["other"]
    assert dispatched(d.on_event(done("a"), 2.0)) == ["picky"]


def two_models() -> Director:
    """One endpoint for each, with a place."""
    d = bounded(("f0", "f1"))
    for name, model in (("f0", "large"), ("f1", "small")):
        d.on_event(ModelsObserved(EndpointId(name), ServedModels(frozenset({model}))), 0.0)
    return d


def test_a_request_for_a_model_whose_endpoints_are_full_holds_no_other_model_up() -> None:
    """Neither what comes nor what waits, whoever came first."""
    d = two_models()
    assert only_dispatch(arrive(d, "a", 0.0, model="large")).decode.id == "f0"
    arrive(d, "b", 0.1, model="large")
    assert only_dispatch(arrive(d, "c", 0.2, model="small")).decode.id == "f1"
    arrive(d, "d", 0.3, model="small")
    assert dispatched(d.on_event(done("c"), 1.0)) == ["d"]
    assert dispatched(d.on_event(done("a"), 2.0)) == ["b"]


def test_a_request_with_ejected_endpoints_alone_does_not_wait_for_those_of_others() -> None:
    """They are all that it has, and one of them is free."""
    d = two_models()
    ejected = d.inventory.slot_of(EndpointId("f0"))
    assert ejected is not None
    d.health.lose(ejected, "it is silent", 0.0)
    assert only_dispatch(arrive(d, "a", 0.1, model="small")).decode.id == "f1"
    arrive(d, "waits", 0.2, model="small")
    assert dispatched(arrive(d, "b", 0.3, model="large")) == ["b"]
    assert dispatched(arrive(d, "full", 0.4, model="large")) == []
    assert dispatched(d.on_event(done("b"), 0.5)) == ["full"]
    assert dispatched(d.on_event(done("a"), 0.6)) == ["waits"]


def test_what_waits_is_grouped_anew_when_an_endpoint_serves_other_models() -> None:
    """One that no endpoint serves any more does not hold up those with which it waited until then."""
    d = bounded(("f0",))
    arrive(d, "a", 0.0)
    arrive(d, "gone", 0.1, model="large")
    arrive(d, "served", 0.2, model="small")
    d.on_event(ModelsObserved(EndpointId("f0"), ServedModels(frozenset({"small"}))), 0.3)
    assert dispatched(d.on_event(done("a"), 1.0)) == ["served"]


def test_each_room_is_looked_at_a_few_times_however_many_models_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty models on as many flexible endpoints, all full: an event costs no square of them, an arrival next to
    nothing."""
    models = [f"m{number}" for number in range(20)]
    d = bounded(tuple(f"f{model}" for model in models), admission=replace(SMALL, max_waiting=100))
    for model in models:
        d.on_event(ModelsObserved(EndpointId(f"f{model}"), ServedModels(frozenset({model}))), 0.0)
    for model in models:
        assert dispatched(arrive(d, f"runs-{model}", 0.0, model=model))
        arrive(d, f"waits-{model}", 0.1, model=model)
    looks: list[object] = []
    first_rank, stand_ins = FairRoom.first_rank, d.placer.stand_ins

    def ranked(room: FairRoom) -> FairRank | None:
        looks.append(room)
        return first_rank(room)

    def stands_in(entry: Entry) -> Candidates | None:
        looks.append(entry)
        return stand_ins(entry)

    monkeypatch.setattr(FairRoom, "first_rank", ranked)
    monkeypatch.setattr(d.placer, "stand_ins", stands_in)
    arrive(d, "one-more", 0.2, model="m0")
    assert looks == []
    assert dispatched(d.on_event(done("runs-m19"), 1.0)) == ["waits-m19"]
    assert len(looks) <= 2 * len(models)


def test_waiting_for_an_endpoint_becomes_waiting_for_a_place() -> None:
    """Endpoints appear and are full: then the longer time of the two counts."""
    d = bounded((), hold_s=2.0)
    d.on_event(EndpointObserved(endpoint("f0")), 0.0)
    arrive(d, "a", 0.0)
    d.on_event(EndpointLost(EndpointId("f0")), 0.5)
    assert arrive(d, "b", 1.0) == [Hold(RequestId("b")), WakeAt(3.0)]
    d.on_event(EndpointObserved(endpoint("f0")), 2.0)
    assert d.on_event(TimerFired(), 3.0) == [WakeAt(9.0)]
    assert dispatched(d.on_event(done("a"), 4.0)) == ["b"]


def test_one_that_comes_back_at_the_same_time_is_rejected_once() -> None:
    """Its client went and asked again under the same id, all at one time: both waits had the same end."""
    d = bounded((), hold_s=2.0)
    assert arrive(d, "a", 0.0) == [Hold(RequestId("a")), WakeAt(2.0)]
    d.on_event(ClientGone(RequestId("a")), 0.0)
    assert arrive(d, "a", 0.0) == [Hold(RequestId("a")), WakeAt(2.0)]
    (effect,) = d.on_event(TimerFired(), 2.0)
    assert isinstance(effect, Reject)
    assert d.on_event(TimerFired(), 2.0) == []


def test_all_endpoints_gone_while_many_wait() -> None:
    """At the end of its time each is told what is the matter then."""
    d = bounded()
    arrive(d, "a", 0.0)
    arrive(d, "b", 0.0)
    for name in ("d0", "p0"):
        d.on_event(EndpointDraining(EndpointId(name)), 1.0)
    (effect,) = d.on_event(TimerFired(), 8.0)
    assert isinstance(effect, Reject)
    assert effect.reason is RejectReason.NO_ENDPOINTS


def test_who_waits_for_a_prefill_goes_to_a_decode_endpoint_when_all_prefills_are_gone() -> None:
    """At once, as far as there is room for both stages."""
    d = bounded(("p0", "d0", "d1"))
    arrive(d, "a", 0.0)
    arrive(d, "b", 0.0)
    effect = only_dispatch(d.on_event(EndpointLost(EndpointId("p0")), 1.0))
    assert (effect.prefill, effect.decode.id) == (None, "d1")
    assert len(d.queue) == 0


def test_what_is_waited_for_in_vain_is_forgotten() -> None:
    """A client that leaves while it waits: cancelled once, never dispatched."""
    d = bounded()
    arrive(d, "a", 0.0)
    arrive(d, "b", 0.0)
    assert d.on_event(ClientGone(RequestId("b")), 1.0) == [Cancel(RequestId("b"))]
    assert dispatched(d.on_event(done("a"), 2.0)) == []
    assert len(d.queue) == 0


def test_engines_are_told_what_the_order_says() -> None:
    """floor(1000 (arrival - b)) from the first one on; nothing unless asked for."""
    silent = bounded(("f0",), order="uniboost", admission=replace(SMALL, max_prefill_requests=99))
    assert only_dispatch(arrive(silent, "a", 50.0)).priority is None
    order: dict[str, object] = {"engine_priority": True, "adaptive": False, "gamma_per_s": 1.0}
    d = bounded(("f0",), order="uniboost", admission=Bounded(max_prefill_requests=99), parameters=order)
    rate = float(d.beliefs.prefill_times.tokens_per_s(d.inventory.candidates(Stage.DECODE).slots)[0])
    tokens = 16384
    told = [only_dispatch(arrive(d, name, at, tokens)).priority for name, at in (("a", 50.0), ("b", 51.5))]
    assert told[0] is not None
    boost_ms = -1000 * math.log(1 - math.exp(-tokens / rate))
    assert told == [math.floor(-boost_ms), math.floor(1500 - boost_ms)]
    urgent = only_dispatch(arrive(d, "c", 52.0, tokens, priority=-1)).priority
    assert urgent is not None
    assert urgent < -(10**10)


# --- under any sequence of events -----------------------------------------------------------------------------------

NAMES = ("p0", "p1", "d0", "f0")
REQUESTS = tuple(f"r{k}" for k in range(9))
_endpoints, _requests = st.sampled_from(NAMES), st.sampled_from(REQUESTS)
_subsets = st.sampled_from([None, None, None, frozenset({"p0:8000", "d0:8000"}), frozenset({"f0:8000"})])
Step: TypeAlias = Callable[[Director, float], Event | None]


def _of_dispatched(make: Callable[[Entry], Event]) -> st.SearchStrategy[Step]:
    """Something happens to one of the requests that are not waiting."""

    def step(number: int) -> Step:
        def event(d: Director, _: float) -> Event | None:
            going = [entry for entry in d.ledger if entry.phase is not Phase.HELD]
            return make(going[number % len(going)]) if going else None

        return event

    return st.builds(step, st.integers(0, 8))


def _fails(entry: Entry, d_name: str) -> Event:
    return DispatchFailed(entry.request.id, Stage.DECODE, EndpointId(d_name))


_arrives: st.SearchStrategy[Step] = st.builds(
    lambda n, tokens, own, subset: (
        lambda _d, _t: RequestArrived(
            Request(RequestId(n), prompt_tokens=tokens, priority=own, subset=subset, expected_output_tokens=tokens % 97)
        )
    ),
    _requests,
    st.integers(1, 5000),
    st.integers(-1, 1),
    _subsets,
)
_goes_on: st.SearchStrategy[Step] = st.one_of(
    _of_dispatched(lambda entry: PrefillDone(entry.request.id)),
    _of_dispatched(lambda entry: FirstToken(entry.request.id)),
    _of_dispatched(lambda entry: RequestEnded(entry.request.id, Outcome.COMPLETED, 9)),
    _of_dispatched(lambda entry: _fails(entry, "d0")),
)
_anything: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda n: lambda _d, _t: PrefillDone(RequestId(n)), _requests),
    st.builds(lambda n: lambda _d, _t: Progress(RequestId(n), 7), _requests),
    st.builds(lambda n: lambda _d, _t: ClientGone(RequestId(n)), _requests),
    st.builds(
        lambda n, e: lambda _d, _t: DispatchFailed(RequestId(n), Stage.DECODE, EndpointId(e)), _requests, _endpoints
    ),
    st.builds(
        lambda e, r: lambda _d, t: EndpointObserved(endpoint(e), observation(running=r, at_s=t)),
        _endpoints,
        st.integers(0, 3),
    ),
    st.builds(lambda e: lambda _d, _t: EndpointObserved(endpoint(e)), _endpoints),
    st.builds(lambda e: lambda _d, _t: EndpointDraining(EndpointId(e)), _endpoints),
    st.builds(lambda e: lambda _d, _t: EndpointLost(EndpointId(e)), _endpoints),
    st.just(lambda _d, _t: TimerFired()),
)
_steps = st.lists(st.one_of(_arrives, _arrives, _goes_on, _goes_on, _anything), max_size=60)
_crowd = st.lists(_arrives, min_size=8, max_size=16)


class Watcher:
    """What must hold after every event."""

    def __init__(self, d: Director) -> None:
        self.d = d
        self.open: set[str] = set()

    def feed(self, event: Event, now_s: float) -> None:
        if isinstance(event, RequestArrived):
            self.open.add(event.request.id)
        effects = self.d.on_event(event, now_s)
        for effect in effects:
            if isinstance(effect, Dispatch):
                assert effect.request_id in self.open
            if isinstance(effect, Reject):
                self.open.remove(effect.request_id)
        if isinstance(event, (RequestEnded, ClientGone)) and event.request_id in self.open:
            self.open.remove(event.request_id)
            assert isinstance(event, RequestEnded) or effects[0] == Cancel(event.request_id)
        assert {entry.request.id for entry in self.d.ledger} == self.open
        held = {entry.request.id for entry in self.d.ledger if entry.phase is Phase.HELD}
        assert {name for name in self.open if RequestId(name) in self.d.queue} == held
        assert len(self.d.queue) == len(held)
        self._places_are_kept()
        self._nobody_was_passed_over(effects)

    def _places_are_kept(self) -> None:
        requests = self.d.ledger.requests
        assert (requests[Stage.PREFILL] <= SMALL.max_prefill_requests).all()
        assert (requests[Stage.DECODE] <= SMALL.max_decode_requests).all()

    def _nobody_was_passed_over(self, effects: list[Effect]) -> None:
        """Who was dispatched ranks before everybody who waits and may go to the same endpoints."""
        went = [self.d.ledger.get(each.request_id) for each in effects if isinstance(each, Dispatch)]
        for entry in went:
            assert entry is not None
            mine = self._rank(entry.request, entry.arrived_s)
            for other in self.d.ledger:
                if other.phase is Phase.HELD and (other.request.subset, other.avoid) == (
                    entry.request.subset,
                    entry.avoid,
                ):
                    assert mine < self._rank(other.request, other.arrived_s)

    def _rank(self, asked: Request, arrived_s: float) -> tuple[int, float, float, str]:
        work = Work(
            arrived_s, asked.prompt_tokens, expected_output_tokens=asked.expected_output_tokens, priority=asked.priority
        )
        return rank(self.d.queue.order, asked.id, work, self.d.queue.service)


@pytest.mark.rotating(3)
@pytest.mark.parametrize("order", sorted(QUEUE_ORDERS))
@settings(max_examples=60, deadline=None)
@given(crowd=_crowd, steps=_steps, binding=st.sampled_from(Binding))
def test_nobody_is_lost_doubled_or_passed_over(
    order: str, crowd: list[Step], steps: list[Step], binding: Binding
) -> None:
    """Each request ends in exactly one way, places are never exceeded, and the order is kept."""
    d = bounded(("p0", "d0"), order=order, binding=binding, hold_s=3.0)
    watcher = Watcher(d)
    script = crowd + steps
    for k, make in enumerate(script):
        now_s = 0.5 * k
        event = make(d, now_s)
        if event is None or (isinstance(event, RequestArrived) and event.request.id in watcher.open):
            continue
        watcher.feed(event, now_s)
    end_s = 0.5 * len(script)
    for name in sorted(watcher.open):
        if RequestId(name) not in d.queue:
            watcher.feed(done(name), end_s)
    watcher.feed(TimerFired(), end_s + 100)
    for name in sorted(watcher.open):
        watcher.feed(done(name), end_s + 100)
    assert len(d.ledger) == len(d.queue) == 0
    assert not d.queue._rooms
