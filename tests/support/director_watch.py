"""A Director under watch: each event is fed to it, and each of its answers is checked against an account of its own.

The numbers are those of the invariants in `tests/core/test_director_properties.py`. The account is kept from events and
effects alone, as a driver keeps it; the Director's own state is read only to be compared with it.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace

import numpy as np

from ballast_core.directing.director import Director
from ballast_core.directing.partitioner import Partitioner
from ballast_core.directing.rescheduler import Rescheduler
from ballast_core.directing.settings import DirectorSettings, SettingsChanged
from ballast_core.model import STAGE_ROLES, Binding, Endpoint, EndpointId, Outcome, Request, RequestId, Role, Stage
from ballast_core.model.effects import (
    Cancel,
    Dispatch,
    Effect,
    Handoff,
    Hold,
    Leave,
    Migrate,
    PulseChanged,
    Reject,
    WakeAt,
)
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    EndpointRestored,
    EndpointsHeard,
    EndpointsScraped,
    Event,
    LeadershipChanged,
    Migrated,
    MigrationFailed,
    MoveOrdered,
    PrefillDone,
    RequestAdopted,
    RequestArrived,
    RequestEnded,
    RequestMoved,
    RequestRedirected,
    SegmentDone,
    TimerFired,
)
from ballast_core.policies.admission import Bounded
from tests.support.recount import check_books, on_engine


@dataclass(slots=True)
class Life:
    """One request in flight, as its driver sees it."""

    request: Request
    waits_since_s: float
    """When it came, or came back after a failed leg."""
    held: bool = False
    dispatch: Dispatch | None = None
    """What runs of it; None while it waits."""
    segment: int = 0
    """Which segment of the dispatch runs."""
    decode: EndpointId | None = None
    """Where it decodes, or will."""
    prefilling: bool = False
    """Whether `PrefillDone` is to come."""
    tokens: int = 0
    """Output tokens that the client has got."""
    moving_to: EndpointId | None = None
    failed_on: set[EndpointId] = field(default_factory=set)

    @property
    def cut_at(self) -> int | None:
        """Position at which the segment that runs hands over; None if it is the last one, or there is none."""
        return self.dispatch.segments[self.segment].end_tokens if self.dispatch and self.cuts_to_come else None

    @property
    def cuts_to_come(self) -> int:
        """Segments after the one that runs."""
        return 0 if self.dispatch is None else max(len(self.dispatch.segments) - self.segment - 1, 0)

    @property
    def endpoint(self) -> EndpointId | None:
        """Where it runs now."""
        if self.dispatch is None:
            return None
        if self.dispatch.segments and self.cuts_to_come and not self.segment:
            return self.dispatch.segments[0].endpoint.id
        prefill = self.dispatch.prefill
        return prefill.id if self.prefilling and prefill is not None else self.decode


class Watch:
    """Feeds one Director, and raises `AssertionError` where an answer breaks an invariant."""

    def __init__(self, settings: DirectorSettings) -> None:
        self.settings = self._first = settings
        self._stayed = [0, 0]
        """What was in flight, and of that waited afresh, when the settings changed: new limits are for what comes."""
        self.director = Director(settings)
        self.now_s = 0.0
        self.lives: dict[RequestId, Life] = {}
        """Requests in flight by id."""
        self.adopted: dict[RequestId, Life] = {}
        """Those of other gateways; nothing waits among them."""
        self.leads = True
        self.arrived: Counter[RequestId] = Counter()
        self.finals: Counter[RequestId] = Counter()
        """Final answers: rejections, ends, and clients that went."""
        self.timers: list[float] = []
        """Times of timers that were asked for and have not fired, ascending."""
        self.ready: dict[EndpointId, Endpoint] = {}
        self.log: list[tuple[Event | SettingsChanged, float]] = []
        self.sound = True
        """False once an event has broken something: what would follow is of no interest."""
        self._given: list[object] = []
        """Effects of each event of the log, as plain values."""
        self._draining: dict[EndpointId, Endpoint] = {}
        self._was_ready: dict[EndpointId, Endpoint] = {}
        self._excess: Counter[EndpointId] = Counter()

    # --- events -------------------------------------------------------------------------------------------------

    def feed(self, event: Event | SettingsChanged, now_s: float) -> list[Effect]:
        """Feed the Director, and check what it answers and what it keeps."""
        assert now_s >= self.now_s, "a driver's clock does not go back"
        self.now_s, self.sound = now_s, False
        excess = self._excess_of(event)
        effects = self.director.on_event(event, now_s)
        self.log.append((event, now_s))
        self._given.append(plain(effects))
        if isinstance(event, SettingsChanged):
            self.settings, self._stayed = event.settings, [len(self.lives), self._waiting_afresh]
        before = self._take_event(event)
        self._take_where(event)
        for effect in effects:
            self._take_effect(effect, event, before)
        self._check_answer(event, before)
        check_books(self.director.ledger)
        if excess is not None:
            self._check_foreign(*excess)
        self._check_state()
        self._check_capacity(event, effects)
        self.sound = True
        return effects

    def _take_event(self, event: Event | SettingsChanged) -> Life | None:
        """Bring the account up to what has happened. Returns the life of the event's request, ended or not."""
        match event:
            case EndpointObserved() | EndpointsScraped() | EndpointDraining() | EndpointRestored() | EndpointLost():
                self._take_endpoints(event)
                return None
            case RequestArrived(request=request):
                assert request.id not in self.lives, "ids are unique among the requests in flight"
                self.arrived[request.id] += 1
                life = self.lives[request.id] = Life(request, self.now_s)
                return life
            case RequestAdopted(request=request):
                entry = self.director.ledger.get(request.id)
                if request.id not in self.lives and entry is not None:
                    life = self.adopted.setdefault(request.id, Life(request, self.now_s, decode=event.decode))
                    if entry.reservation is None:
                        life.moving_to = None
                    slot = self.director.inventory.slot_of(event.decode)
                    if slot is not None and entry.decode_slot == slot:
                        life.decode = event.decode
                return None
            case LeadershipChanged(leads=leads):
                self.leads = leads
                return None
            case TimerFired():
                if self.timers:
                    self.timers.pop(0)
                return None
        request_id = getattr(event, "request_id", None)
        other = None if request_id is None else self.adopted.get(request_id)
        if other is not None:
            self._take_event_of_other(other, event)
            return None
        known = None if request_id is None else self.lives.get(request_id)
        if known is not None:
            self._take_request_event(known, event)
        return known

    def _take_event_of_other(self, life: Life, event: Event | SettingsChanged) -> None:
        match event:
            case Migrated(target=target) if life.moving_to == target:
                life.decode, life.moving_to = target, None
            case MigrationFailed(target=target) if life.moving_to == target:
                life.moving_to = None
            case RequestRedirected(decode=decode):
                astray = self.director.ledger.entries[life.request.id].astray is not None
                life.decode, life.moving_to = None if astray else decode, None
            case RequestEnded() | ClientGone():
                del self.adopted[life.request.id]

    def _take_where(self, event: Event | SettingsChanged) -> None:
        """What others have decided: the Director follows, as far as it knows the place and the request decodes."""
        if isinstance(event, MoveOrdered):
            life = self.lives.get(event.request_id) or self.adopted.get(event.request_id)
            entry = self.director.ledger.get(event.request_id)
            if life is not None and life.moving_to is None and entry is not None and entry.reservation is not None:
                life.moving_to = event.target
        elif isinstance(event, RequestMoved):
            life = self.lives.get(event.request_id) or self.adopted.get(event.request_id)
            entry = self.director.ledger.get(event.request_id)
            if life is not None and entry is not None and entry.decode_slot is not None:
                there = self.director.inventory.endpoint(entry.decode_slot).id
                assert there in (life.decode, event.target), "1: moved to where nobody said"
                if there != life.decode:
                    life.decode, life.moving_to = there, None

    def _take_endpoints(
        self, event: EndpointObserved | EndpointsScraped | EndpointDraining | EndpointRestored | EndpointLost
    ) -> None:
        self._was_ready = dict(self.ready)
        match event:
            case EndpointDraining(endpoint_id=endpoint_id):
                if (drains := self.ready.pop(endpoint_id, None)) is not None:
                    self._draining[endpoint_id] = drains
            case EndpointRestored(endpoint_id=endpoint_id):
                if (restored := self._draining.pop(endpoint_id, None)) is not None:
                    self.ready[endpoint_id] = restored
            case EndpointLost(endpoint_id=endpoint_id):
                self.ready.pop(endpoint_id, None)
                self._draining.pop(endpoint_id, None)
                del self._excess[endpoint_id]
            case EndpointObserved(endpoint=endpoint):
                self._see(endpoint)
            case EndpointsScraped(answers=answers):
                for endpoint, _ in answers:
                    self._see(endpoint)

    def _see(self, endpoint: Endpoint) -> None:
        (self._draining if endpoint.id in self._draining else self.ready)[endpoint.id] = endpoint

    def _take_request_event(self, life: Life, event: Event | SettingsChanged) -> None:
        match event:
            case DispatchFailed(endpoint_id=endpoint_id):
                life.failed_on.add(endpoint_id)
                life.waits_since_s = self.now_s
                life.held = life.prefilling = False
                life.dispatch = life.decode = life.moving_to = None
                life.segment = life.tokens = 0
            case PrefillDone(bound=True) if life.dispatch is not None:
                life.prefilling, life.segment = False, 0
                life.dispatch = replace(life.dispatch, segments=())
            case Migrated(target=target) if life.moving_to == target:
                life.decode, life.moving_to = target, None
            case MigrationFailed(target=target) if life.moving_to == target:
                life.moving_to = None
            case RequestRedirected(prefill=prefill, decode=decode) if life.dispatch is not None:
                self._redirect(life, prefill, decode)
            case RequestEnded() | ClientGone():
                self._final(life)

    def _redirect(self, life: Life, prefill: EndpointId | None, decode: EndpointId) -> None:
        """It runs there, whole; where one of them is not known, nowhere as far as the books know."""
        inventory, entry = self.director.inventory, self.director.ledger.entries[life.request.id]
        assert life.dispatch is not None
        needed = {decode} if prefill is None or entry.decodes else {prefill, decode}
        lost = any(inventory.slot_of(one) is None for one in needed)
        assert (entry.astray is not None) == lost, f"1: {life.request.id}: lost sight of, or not"
        slot = None if prefill is None else inventory.slot_of(prefill)
        first = None if slot is None or prefill == decode else inventory.endpoint(slot)
        life.dispatch = replace(life.dispatch, prefill=first, segments=())
        life.decode, life.moving_to, life.segment = None if lost else decode, None, 0
        life.prefilling = not lost and first is not None and not entry.decodes

    def _final(self, life: Life) -> None:
        request_id = life.request.id
        self.finals[request_id] += 1
        del self.lives[request_id]
        assert self.finals[request_id] == self.arrived[request_id], f"3: {request_id} has two final answers"

    # --- effects ------------------------------------------------------------------------------------------------

    def _take_effect(self, effect: Effect, event: Event | SettingsChanged, of_event: Life | None) -> None:
        if isinstance(effect, WakeAt):
            assert effect.at_s >= self.now_s, "8: a timer in the past"
            bisect.insort(self.timers, effect.at_s)
            return
        if isinstance(effect, Cancel):
            assert isinstance(event, ClientGone), "3: cancelled by no client"
            assert of_event is not None, "3: cancelled after its end"
            assert of_event.request.id == effect.request_id, "3: another request is cancelled"
            return
        if isinstance(effect, PulseChanged):
            assert isinstance(event, EndpointsHeard), "9: the watch thinks at its ticks only"
            return
        other = self.adopted.get(effect.request_id)
        if other is not None:
            self._take_effect_on_other(other, effect, event)
            return
        life = self.lives.get(effect.request_id)
        assert life is not None, f"3: {effect} comes for a request that is not in flight"
        match effect:
            case Hold():
                assert not life.held, "3: held twice"
                assert life.dispatch is None, "3: held while it runs"
                life.held = True
            case Reject():
                assert life.dispatch is None, "3: rejected while it runs"
                self._final(life)
            case Dispatch():
                assert life.dispatch is None, "3: dispatched while it runs"
                self._check_dispatch(life, effect)
                life.held, life.dispatch, life.decode = False, effect, effect.decode.id
                life.prefilling = effect.prefill is not None and not effect.segments
            case Handoff():
                assert isinstance(event, PrefillDone | SegmentDone), "3: no leg has ended"
                assert of_event is life, "3: the leg of another request has ended"
                self._check_handoff(life, effect)
            case Leave():
                assert isinstance(event, EndpointsHeard), "9: a leg is left at no tick of the watch"
                assert effect.endpoint_id in (life.endpoint, life.decode), "9: a leg is left where none is"
            case Migrate():
                assert isinstance(event, TimerFired), "3: moved at no round"
                self._check_move(life, effect)
                life.moving_to = effect.target.id

    def _take_effect_on_other(self, life: Life, effect: Effect, event: Event | SettingsChanged) -> None:
        match effect:
            case Leave():
                assert isinstance(event, EndpointsHeard), "9: a leg is left at no tick of the watch"
            case Migrate():
                assert isinstance(event, TimerFired), "3: moved at no round"
                assert self.leads, "3: moved, and leads not"
                assert life.moving_to is None, "3: moved twice"
                assert life.request.movable, "2: moved, and may not"
                assert effect.source.id == life.decode != effect.target.id, f"2: moved from {effect.source}"
                assert self._may_take(life, effect.target, Stage.DECODE), f"2: moved to {effect.target}"
                life.moving_to = effect.target.id
            case _:
                raise AssertionError(f"3: {effect} decides about another gateway's request")

    def _may_take(self, life: Life, endpoint: Endpoint, stage: Stage) -> bool:
        """Whether it is ready just so, has the role, and is among those where the request may go."""
        known = [self.ready.get(endpoint.id)]
        if isinstance(self.log[-1][0], EndpointsScraped):  # decisions may come before an endpoint's own answer
            known.append(self._was_ready.get(endpoint.id))
        subset = life.request.subset
        return (
            endpoint in known
            and endpoint.role in STAGE_ROLES[stage]
            and endpoint.id not in life.failed_on
            and self._serves(life.request.model, endpoint)
            and (subset is None or endpoint.address in subset)
        )

    def _serves(self, model: str, endpoint: Endpoint) -> bool:
        slot = self.director.inventory.slot_of(endpoint.id)
        return slot is None or self.director.placer.models.serves(model, slot)

    def _may_stand_in(self, life: Life, endpoint: Endpoint, stage: Stage) -> bool:
        """Whether it may take the other stage, and no endpoint may take this one."""
        (other,) = set(Stage) - {stage}
        states = (self.ready, self._was_ready) if isinstance(self.log[-1][0], EndpointsScraped) else (self.ready,)
        return self._may_take(life, endpoint, other) and any(
            not any(self._may_take(life, one, stage) for one in state.values()) for state in states
        )

    def _check_dispatch(self, life: Life, dispatch: Dispatch) -> None:
        first = dispatch.decode if dispatch.prefill is None else dispatch.prefill
        alone = dispatch.prefill is None and any(self._may_stand_in(life, first, stage) for stage in Stage)
        assert alone or self._may_take(life, first, Stage.PREFILL), f"2: prefill on {first}"
        assert alone or self._may_take(life, dispatch.decode, Stage.DECODE), f"2: decode on {dispatch.decode}"
        for segment in dispatch.segments:
            assert self._may_take(life, segment.endpoint, Stage.DECODE), f"2: a segment on {segment.endpoint}"
            assert segment.endpoint.role is Role.FLEXIBLE, f"2: a segment on {segment.endpoint}"

        self._check_fallbacks(life, dispatch)

    def _check_fallbacks(self, life: Life, dispatch: Dispatch) -> None:
        """As a driver may use them: each may take the stage, nothing is said against it, none is named twice."""
        inventory = self.director.inventory
        doubtful = inventory.shunned | inventory.suspected | inventory.on_trial
        for stage, named in ((Stage.DECODE, dispatch.fallbacks), (Stage.PREFILL, dispatch.prefill_fallbacks)):
            assert len(named) <= self.settings.fallbacks, "2: more fall-backs than asked for"
            assert not (named and dispatch.segments), "2: fall-backs of a cut request"
            taken = {dispatch.decode.id, *([] if dispatch.prefill is None else [dispatch.prefill.id])}
            assert len(taken | {one.id for one in named}) == len(taken) + len(named), "2: an endpoint is named twice"
            for one in named:
                alone = dispatch.prefill is None and any(self._may_stand_in(life, one, each) for each in Stage)
                assert alone or self._may_take(life, one, stage), f"2: {stage} may fall back to {one}"
                assert self._slot(one.id) not in doubtful, f"2: {stage} may fall back to {one}, which is in doubt"

    def _check_handoff(self, life: Life, handoff: Handoff) -> None:
        """To an endpoint that may take it; else to the one it had: bound early, or as no other one is left."""
        assert life.dispatch is not None, "3: handed on while it waits"
        cut, target = bool(life.cuts_to_come), handoff.decode
        planned = life.dispatch.segments[life.segment + 1].endpoint.id if cut else life.decode
        if not self._may_take(life, target, Stage.DECODE):
            early = self.settings.binding is Binding.EARLY and target.id == planned
            if not early:
                prefill, gone = life.dispatch.prefill, life.decode not in self.ready
                back = not cut and gone and prefill is not None and target.id == prefill.id
                known = cut and life.endpoint is not None and self.director.inventory.slot_of(life.endpoint) is not None
                assert back or target.id == (life.endpoint if known else life.decode), f"2: handed on to {target}"
                others = [
                    one
                    for one in self.ready.values()
                    if self._may_take(life, one, Stage.DECODE) and (not cut or one.role is Role.FLEXIBLE)
                ]
                assert self._bounded is not None or not others, f"2: kept on {target} while {others} may take it"
        life.decode, life.prefilling = target.id, False
        life.segment += cut
        life.moving_to = None

    def _check_move(self, life: Life, move: Migrate) -> None:
        request = life.request
        assert self.leads, "3: moved, and leads not"
        assert life.dispatch is not None, "3: moved while it waits"
        assert life.moving_to is None, "3: moved twice"
        assert not life.cuts_to_come, "2: moved before its cut"
        assert request.movable, "2: moved, and may not"
        assert (request.subset, life.failed_on) == (None, set()), "2: moved, and may not go everywhere"
        assert self._may_take(life, move.target, Stage.DECODE), f"2: moved to {move.target}"
        assert move.source.id == life.decode != move.target.id, f"2: moved from {move.source} to {move.target}"

    # --- state --------------------------------------------------------------------------------------------------

    def _check_answer(self, event: Event | SettingsChanged, life: Life | None) -> None:
        """A request that came, or came back, is dispatched, held or rejected by the same event."""
        if isinstance(event, RequestArrived | DispatchFailed) and life is not None:
            in_flight = life.request.id in self.lives
            assert in_flight == (life.held or life.dispatch is not None), "3: neither dispatched, held nor rejected"

    def _check_state(self) -> None:
        director = self.director
        ledger, inventory = director.ledger, director.inventory
        assert ledger.entries.keys() == self.lives.keys() | self.adopted.keys(), "3: the books differ from what runs"
        assert ledger.own == len(self.lives), "3: others' requests count as ours"
        for request_id, life in self.adopted.items():
            slot = ledger.entries[request_id].decode_slot
            astray = ledger.entries[request_id].astray is not None
            assert astray == (slot is None), f"1: {request_id} waits, and is another gateway's"
            assert (None if slot is None else inventory.endpoint(slot).id) == life.decode, f"1: {request_id}: not there"
        waiting = {}
        for request_id, life in self.lives.items():
            slot = ledger.entries[request_id].decode_slot
            assert (None if slot is None else inventory.endpoint(slot).id) == life.decode, f"1: {request_id}: not there"
            assert (request_id in director.queue) == life.held == (life.dispatch is None), "3: waits, and does not"
            if life.held:
                waiting[request_id] = director.queue.waiting[request_id].until_s
        assert len(director.queue) == len(waiting), "3: the queue holds a request that is over"
        for request_id, until_s in waiting.items():
            assert until_s in self.timers or not until_s > self.now_s, f"8: no timer for {request_id}"
        if isinstance(director.partitioner, Partitioner):
            assert set(director.partitioner.book) == {
                request_id for request_id in self.lives if director.partitioner.planned(request_id)
            }, "1: the book is not that of the plans"

    @property
    def _waiting_afresh(self) -> int:
        return sum(life.held and not life.failed_on for life in self.lives.values())

    @property
    def _bounded(self) -> Bounded | None:
        admission = self.settings.admission
        return admission if isinstance(admission, Bounded) else None

    def _check_capacity(self, event: Event | SettingsChanged, effects: Iterable[Effect]) -> None:
        limit, bounded = self.settings.max_in_flight, self._bounded
        fresh, stayed = self._waiting_afresh, self._stayed
        self._stayed = [min(stayed[0], len(self.lives)), min(stayed[1], fresh)]
        assert limit is None or len(self.lives) <= max(limit, stayed[0]), "6: more in flight than the limit"
        if bounded is None:
            return
        assert fresh <= max(bounded.max_waiting, stayed[1]), "6: more wait than the limit"
        at_once = isinstance(event, EndpointsScraped)
        for effect in effects:
            if isinstance(effect, Dispatch):
                decodes = [effect.decode]
                self._check_limit(Stage.PREFILL, effect.prefill or effect.decode, bounded.max_prefill_requests, at_once)
                if effect.segments:
                    self._check_limit(Stage.PREFILL, effect.decode, bounded.max_prefill_requests, at_once)
            elif isinstance(effect, Migrate):
                decodes = [effect.target]
            else:
                continue
            for endpoint in decodes:
                self._check_limit(Stage.DECODE, endpoint, bounded.max_decode_requests, at_once)
                slot = self._slot(endpoint.id)
                kv = self.director.inventory.kv_usage_ratio[slot]
                assert at_once or bounded.max_kv_ratio == 1 or kv < bounded.max_kv_ratio, f"6: no KV is left: {effect}"

    def _check_limit(self, stage: Stage, endpoint: Endpoint, limit: int, at_once: bool) -> None:
        """`at_once`: what others have there may have been seen after the decision."""
        ledger, slot = self.director.ledger, self._slot(endpoint.id)
        foreign = 0 if at_once else ledger.foreign[slot]
        assert ledger.requests[stage][slot] + foreign <= limit, f"6: too many on {endpoint.id} for {stage}"

    def _slot(self, endpoint_id: EndpointId) -> int:
        slot = self.director.inventory.slot_of(endpoint_id)
        assert slot is not None
        return slot

    def _excess_of(self, event: Event | SettingsChanged) -> tuple[EndpointId, int] | None:
        """Of one scraped endpoint: how many requests it reports beyond ours."""
        if not isinstance(event, EndpointObserved) or event.observation is None:
            return None
        slot = self.director.inventory.slot_of(event.endpoint.id)
        ours = 0 if slot is None else on_engine(self.director.ledger, slot)
        return event.endpoint.id, max(event.observation.running + event.observation.waiting - ours, 0)

    def _check_foreign(self, endpoint_id: EndpointId, excess: int) -> None:
        assert self.director.ledger.foreign[self._slot(endpoint_id)] <= excess, "1: foreign requests that are ours"

    # --- the end ------------------------------------------------------------------------------------------------

    def fire(self, late_s: float = 0.0) -> None:
        """The next timer fires."""
        self.feed(TimerFired(), max(self.now_s, self.timers[0] + late_s))

    def finish(self, *, lose_first: bool = False) -> None:
        """What waits gets its answer by timers alone; all else ends. Then nothing may be left."""
        rounds = 1 + 40 * len(self.lives)
        while any(life.held for life in self.lives.values()):
            assert self.timers, "8: waits without a timer"
            assert rounds, "8: waits for ever"
            rounds -= 1
            self.fire()
        steps = [self._end_all, self._lose_all]
        for step in reversed(steps) if lose_first else steps:
            step()
        rounds = 2 * len(self.timers)
        while self.timers:
            assert rounds, "8: timers are asked for without end"
            rounds -= 1
            self.fire()
        assert self.finals == self.arrived, "3: a request without a final answer"
        self._check_nothing_left()
        self._check_replay()

    def _end_all(self) -> None:
        for request_id in list(self.lives):
            if request_id in self.lives:
                self.feed(RequestEnded(request_id, Outcome.COMPLETED, self.lives[request_id].tokens), self.now_s)
        for request_id in list(self.adopted):
            self.feed(RequestEnded(request_id, Outcome.COMPLETED), self.now_s)
        while self.lives:  # those that were held again by a failure, or waited for what has ended
            self.feed(ClientGone(next(iter(self.lives))), self.now_s)

    def _lose_all(self) -> None:
        for endpoint_id in [*self.ready, *self._draining]:
            self.feed(EndpointLost(endpoint_id), self.now_s)

    def _check_nothing_left(self) -> None:
        """Invariant 5."""
        director = self.director
        ledger, queue = director.ledger, director.queue
        left = (len(ledger), len(director.inventory), ledger.flights.count, len(queue), len(director._timers._asked_s))
        assert left == (0,) * 5, f"5: {left} are left"
        assert not queue._rooms, "5: an empty room stays"
        for sums in (*ledger.requests.values(), *ledger.tokens.values(), ledger.uncached_tokens, ledger.uncached_pairs):
            assert not sums.any(), "5: something stays on the books"
        for sums in (ledger.decoding_requests, ledger.decoding_tokens, ledger._on_engine, ledger.foreign):
            assert not sums.any(), "5: something stays on the books"
        if isinstance(director.partitioner, Partitioner):
            book = director.partitioner.book
            assert (len(book), director.partitioner._runs) == (0, {}), "5: a plan stays"
            assert not any(book.busy(slot) for slot in range(director.inventory.capacity)), "5: works stay"
        if isinstance(director.rescheduler, Rescheduler):
            mover = director.rescheduler
            kept = {*mover._moving, *mover._stays_until_s, *mover._failed_until_s}
            assert not kept, f"5: moves of {kept} are remembered"

    def _check_replay(self) -> None:
        """Invariant 4: a fresh Director gives the same effects, also when they are looked at after its last event."""
        fresh = Director(self._first)
        again = [fresh.on_event(event, now_s) for event, now_s in self.log]
        for (event, _), before, after in zip(self.log, self._given, again, strict=True):
            assert plain(after) == before, f"4: {event} is answered otherwise"


def plain(value: object) -> object:
    """A value of events, effects or traces with every field, arrays and numbers that are none included, comparable."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Endpoint | Request):
        return value
    if is_dataclass(value):
        return type(value).__name__, *(plain(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, list | tuple):
        return tuple(plain(each) for each in value)
    return repr(value)
