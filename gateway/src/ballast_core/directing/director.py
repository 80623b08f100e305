"""The Director: events in, effects out. It owns the inventory and the ledger, and asks the policies.

Pure: it never asks for the time, and the same events give the same effects. One caller at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np

from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.survival_book import SurvivalSettings
from ballast_core.directing.learning import Learner
from ballast_core.directing.partitioner import Partitioner
from ballast_core.directing.placer import Placed, Placer
from ballast_core.directing.places import Places
from ballast_core.directing.queue import Queue
from ballast_core.directing.rescheduler import Rescheduler
from ballast_core.directing.timers import Timers
from ballast_core.model import (
    Binding,
    Endpoint,
    EndpointId,
    Observation,
    Outcome,
    RejectReason,
    Request,
    RequestId,
    Role,
    Stage,
)
from ballast_core.model.effects import Cancel, Dispatch, Effect, Handoff, Hold, Reject
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    Event,
    FirstToken,
    LengthPredicted,
    Migrated,
    MigrationFailed,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
    SegmentDone,
    TimerFired,
)
from ballast_core.policies.admission import Open
from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.queue.orders import Fcfs
from ballast_core.policies.suite import Suite
from ballast_core.profiles import HardwareProfile
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, Ledger, Phase

_FROM_PROGRESS = Belief.PROGRESS | Belief.LENGTHS | Belief.STEP_TIMES | Belief.RATES


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorSettings(Suite):
    """What the Director is told once. The policies of the suite decide; the rest bounds."""

    binding: Binding = Binding.LATE
    max_in_flight: int | None = None
    """Requests beyond this many are rejected as saturated; None sets no limit."""
    max_retries: int = 2
    """How often a request is dispatched anew after a failed leg."""
    hold_s: float = 0.0
    """How long a request waits for an endpoint to appear when there is none; 0 rejects at once."""
    profiles: Mapping[str, HardwareProfile]
    """Hardware by the name that endpoints give (`Endpoint.profile`); an unknown name is learned from a guess."""
    learn: Belief = Belief.NONE
    """Beliefs to learn beyond those that the policies read."""
    lengths: SurvivalSettings = field(default_factory=SurvivalSettings)
    """How output lengths are learned, and what is believed before."""

    @property
    def beliefs(self) -> Belief:
        """What is learned."""
        return self.needs | self.learn

    @property
    def follows_progress(self) -> bool:
        """Whether any decision may depend on `Progress`; a driver need not tell of it otherwise."""
        return bool(self.beliefs & _FROM_PROGRESS)

    def placement(self, stage: Stage) -> Placement:
        """The policy that places a stage."""
        return self.prefill if stage is Stage.PREFILL else self.decode


class Director:
    """Decides where each request is prefilled and decoded. See `ballast_core.model.events` for what to feed it."""

    def __init__(self, settings: DirectorSettings) -> None:
        self.settings = settings
        self.inventory = Inventory()
        self.ledger = Ledger(self.inventory.capacity)
        self.beliefs = Beliefs(settings.beliefs, settings.profiles, settings.lengths)
        self._learner = Learner(self.beliefs, self.inventory, self.ledger)
        placements = {stage: settings.placement(stage) for stage in Stage}
        self.admission = settings.admission or Open()
        self.places = Places(self.admission, self.inventory, self.ledger)
        self.placer = Placer(placements, self.inventory, self.ledger, self.beliefs, self.places)
        self._timers = Timers()
        self.queue = Queue(settings.queue or Fcfs(), self.beliefs, self.inventory)
        self.partitioner: Partitioner | None = None
        if settings.partition is not None:
            self.partitioner = Partitioner(
                settings.partition,
                settings.binding,
                inventory=self.inventory,
                ledger=self.ledger,
                learner=self._learner,
                placer=self.placer,
            )
        self.rescheduler: Rescheduler | None = None
        if settings.rescheduling is not None:
            self.rescheduler = Rescheduler(
                settings.rescheduling,
                self.inventory,
                self.ledger,
                self.beliefs,
                places=self.places,
                timers=self._timers,
                partitioner=self.partitioner,
            )

    def on_event(self, event: Event, now_s: float) -> list[Effect]:
        """Take in what happened at `now_s` (seconds on the driver's clock) and say what is to be done."""
        effects = self._take_in(event, now_s)
        return effects + self._serve(now_s) if self._waits_for_places() else effects

    def _take_in(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case EndpointObserved() | EndpointDraining() | EndpointLost():
                return self._on_endpoint(event, now_s)
            case SegmentDone():
                return self._segment_done(event.request_id, event.generated_tokens, now_s, computed=event.computed)
            case RequestArrived():
                return self._arrived(event.request, now_s) + self._wake(now_s)
            case Progress():
                self.on_progress([(now_s, event.request_id, event.generated_tokens)])
                return []
            case FirstToken():
                return self._with_entry(event.request_id, lambda e: self._first_token(e, now_s))
            case PrefillDone():
                return self._prefill_done(event.request_id, now_s)
            case RequestEnded():
                self._close(event.request_id, event.outcome, event.output_tokens, now_s)
                return []
            case ClientGone():
                open_until_now = self._close(event.request_id, Outcome.CANCELLED, 0, now_s)
                return [Cancel(event.request_id)] if open_until_now else []
            case DispatchFailed():
                return self._failed(event, now_s)
            case Migrated() | MigrationFailed() | LengthPredicted():
                return self._with_entry(event.request_id, lambda e: self._told(e, event, now_s))
            case TimerFired():
                again = self._timers.fired(now_s)
                moves = [] if self.rescheduler is None else self.rescheduler.on_timer(now_s)
                return self._serve(now_s) + moves + again
            case _:
                assert_never(event)

    def on_progress(self, reports: Iterable[tuple[float, RequestId, int]]) -> None:
        """`Progress` of many requests: (time, request, output tokens so far), as `on_event` for one after the other."""
        if not self._learner.reads_books:
            self._learner.progressed_all(self.ledger.progressed_all(reports, self._progressed))
            return
        entry_of, learned, booked = self.ledger.entries.get, self._learner.progressed, self.ledger.progressed
        decoding = Phase.DECODING
        for at_s, request_id, generated_tokens in reports:
            entry = entry_of(request_id)
            if entry is None:
                continue
            if entry.phase is decoding:
                learned(entry, generated_tokens, at_s)
                booked(entry, generated_tokens, at_s)
            else:  # its tokens may end its prefill
                self._progressed(entry, generated_tokens, at_s)

    def on_scrape(self, answers: Sequence[tuple[Endpoint, Observation]], now_s: float) -> list[Effect]:
        """`EndpointObserved` of many endpoints, each named once, as `on_event` for one after the other."""
        if not answers:
            return []
        known = [(slot, seen) for endpoint, seen in answers if (slot := self.inventory.slot_as(endpoint)) is not None]
        if len(known) < len(answers):
            return [
                effect for answer in answers for effect in self.on_event(EndpointObserved(answer[0], answer[1]), now_s)
            ]
        slots = np.array([slot for slot, _ in known], np.int64)
        observations = [seen for _, seen in known]
        self.inventory.observe_all(slots, observations)
        self.ledger.observed_all(slots, observations)
        self._learner.observed_all(slots.tolist(), now_s)
        return self._serve(now_s) if self._waits_for_places() else []

    # --- requests -----------------------------------------------------------------------------------------------

    def _arrived(self, request: Request, now_s: float) -> list[Effect]:
        limit = self.settings.max_in_flight
        if limit is not None and len(self.ledger) >= limit:
            return [
                Reject(request.id, RejectReason.SATURATED, f"{limit} requests are in flight, the limit; retry later")
            ]
        entry = self.ledger.open(request, now_s)
        self._learner.arrived(request, now_s)
        before = self._serve(now_s) if self._waits_for_places() else []
        return before + self._try(entry, now_s)

    def _try(self, entry: Entry, now_s: float) -> list[Effect]:
        """Dispatch a held request, or hold it on, or give it up."""
        dispatch = self._place_both(entry, now_s)
        if dispatch is not None:
            return [dispatch]
        until_s = self._may_wait_until_s(entry, now_s)
        if until_s <= now_s or self._is_full(entry):
            return self._give_up(entry)
        self.queue.add(entry, until_s, now_s)
        return [Hold(entry.request.id), self._timers.ask(until_s)]

    def _may_wait_until_s(self, entry: Entry, now_s: float) -> float:
        """For a place, where there are endpoints, from its arrival or its return; for an endpoint where there are none.

        One whose leg has failed waits for no endpoint.
        """
        if self.admission.bounded and self.placer.exist_for(entry):
            return (now_s if entry.failures else entry.arrived_s) + self.admission.max_wait_s
        return -np.inf if entry.failures else entry.arrived_s + self.settings.hold_s

    def _is_full(self, entry: Entry) -> bool:
        """Whether too many wait for one more; a request that was admitted before comes in."""
        return self.admission.bounded and not entry.failures and len(self.queue) >= self.admission.max_waiting

    def _give_up(self, entry: Entry) -> list[Effect]:
        request_id = entry.request.id
        self.ledger.close(request_id)
        if self.admission.bounded and self.placer.exist_for(entry):
            message = f"every endpoint is full and {len(self.queue)} other requests wait; retry later"
            return [Reject(request_id, RejectReason.SATURATED, message)]
        if entry.failures:
            tried = ", ".join(sorted(entry.avoid))
            return [
                Reject(request_id, RejectReason.UPSTREAM_FAILED, f"no endpoint is left to try after {tried} failed")
            ]
        missing = self.placer.missing_stage(entry.request)
        return [Reject(request_id, RejectReason.NO_ENDPOINTS, f"no {missing} endpoint is ready; retry later")]

    def _waits_for_places(self) -> bool:
        return self.admission.bounded and len(self.queue) > 0

    def _serve(self, now_s: float) -> list[Effect]:
        """Dispatch who waits, in the queue's order, while there are places; give up whose time is over."""
        effects: list[Effect] = []
        if len(self.queue) and self.places.any_free():
            for entry in self.queue.in_turn(now_s):
                dispatch = self._place_both(entry, now_s)
                if dispatch is not None:
                    self.queue.remove(entry.request.id)
                    effects.append(dispatch)
                    if not self.places.any_free():
                        break
        for entry in self.queue.expired(now_s):
            until_s = now_s if entry.failures else self._may_wait_until_s(entry, now_s)
            if until_s > now_s:  # what it waits for has changed
                self.queue.extend(entry.request.id, until_s)
                effects.append(self._timers.ask(until_s))
            else:
                self.queue.remove(entry.request.id)
                effects += self._give_up(entry)
        return effects

    def _place_both(self, entry: Entry, now_s: float) -> Dispatch | None:
        """Prefill first, because when it ends is when the decode endpoint's load counts."""
        cut = None if self.partitioner is None else self.partitioner.dispatch(entry, now_s)
        if cut is not None:
            first = self.inventory.slot_of((cut.prefill or cut.decode).id)
            assert first is not None
            return replace(cut, priority=self.queue.priority(entry, first, now_s))
        prefill = self.placer.place(Stage.PREFILL, entry, now_s) if self.placer.may_hand_off() else None
        handoff_s = None if prefill is None else self._prefill_s(prefill)
        decode = self.placer.place(Stage.DECODE, entry, now_s, handoff_s=handoff_s)
        if decode is None:
            return None
        endpoint = self.inventory.endpoint(decode.slot)
        if endpoint.role is Role.FLEXIBLE and Role.PREFILL not in self.inventory.ready_roles():
            prefill = None
        elif prefill is None:
            return None
        elif prefill.slot == decode.slot:
            prefill = None
        self.placer.chosen(Stage.DECODE, decode.slot)
        if prefill is not None:
            self.placer.chosen(Stage.PREFILL, prefill.slot)
        self._book(entry, prefill, decode, now_s)
        return Dispatch(
            entry.request.id,
            prefill=None if prefill is None else self.inventory.endpoint(prefill.slot),
            decode=endpoint,
            traces=(decode.trace,) if prefill is None else (prefill.trace, decode.trace),
            priority=self.queue.priority(entry, (prefill or decode).slot, now_s),
        )

    def _prefill_s(self, placed: Placed) -> float:
        """Expected time to the end of its prefill there; 0 where no policy asks."""
        return float(placed.view.prefill_s[placed.at]) if Belief.PREFILL_TIMES in self.beliefs.kinds else 0.0

    def _book(self, entry: Entry, prefill: Placed | None, decode: Placed, now_s: float) -> None:
        first = decode if prefill is None else prefill
        knows_prefixes = Belief.PREFIXES in self.beliefs.kinds
        self.ledger.assign(
            entry,
            None if prefill is None else prefill.slot,
            decode.slot,
            now_s,
            cached_tokens=int(first.view.matched_tokens[first.at]) if knows_prefixes else 0,
            prefill_s=self._prefill_s(first),
            class_slot=self._learner.class_slot(entry.request, now_s),
        )
        self._learner.dispatched(entry.request, first.slot, now_s)
        if self.partitioner is not None:
            self.partitioner.unplanned(entry)

    def _first_token(self, entry: Entry, now_s: float) -> None:
        self.queue.first_token(entry, now_s)
        self._prefill_over(entry, now_s)
        self._progressed(entry, 1, now_s)

    def _prefill_over(self, entry: Entry, now_s: float) -> None:
        slots = self._slots_of(entry)
        self._learner.prefilled(entry, now_s)
        self.ledger.prefilled(entry, now_s)
        self._release_if_gone(*slots)

    def _progressed(self, entry: Entry, generated_tokens: int, now_s: float) -> None:
        slots = self._slots_of(entry)
        self._learner.progressed(entry, generated_tokens, now_s)
        self.ledger.progressed(entry, generated_tokens, now_s)
        if len(slots) > 1:  # the first report of tokens may have ended its prefill
            self._release_if_gone(*slots)

    def _prefill_done(self, request_id: RequestId, now_s: float) -> list[Effect]:
        """Late binding: keep the decode endpoint unless another one is strictly better now, or it is gone."""
        entry = self.ledger.get(request_id)
        if entry is None or entry.decode_slot is None or entry.phase is not Phase.PREFILLING:
            return []
        if self.partitioner is not None and self.partitioner.planned(request_id):
            return self._segment_done(request_id, 0, now_s)
        kept = self.inventory.endpoint(entry.decode_slot)
        if self.settings.binding is Binding.EARLY:
            self._prefill_over(entry, now_s)
            return [Handoff(request_id, kept)]
        slots, old_slot = self._slots_of(entry), entry.decode_slot
        self._learner.prefilled(entry, now_s)
        self.ledger.prefilled(entry, now_s)
        self.ledger.unassign(entry)
        placed = self.placer.place(Stage.DECODE, entry, now_s, keep=old_slot, handoff_s=0.0)
        if placed is None:  # no ready endpoint is left: the one it had may still answer
            self._rebook(entry, old_slot, now_s)
            return [Handoff(request_id, kept)]
        if placed.slot != old_slot:
            self.placer.chosen(Stage.DECODE, placed.slot)
        self._rebook(entry, placed.slot, now_s)
        self._release_if_gone(*slots)
        return [Handoff(request_id, self.inventory.endpoint(placed.slot), (placed.trace,))]

    def _segment_done(
        self, request_id: RequestId, generated_tokens: int, now_s: float, *, computed: bool = True
    ) -> list[Effect]:
        entry = self.ledger.get(request_id)
        if self.partitioner is None or entry is None or not self.partitioner.to_come(request_id):
            return []
        self._progressed(entry, generated_tokens, now_s)
        slots = self._slots_of(entry)
        handoff = self.partitioner.segment_done(entry, now_s, computed=computed)
        self._release_if_gone(*slots)
        return [handoff]

    def _rebook(self, entry: Entry, decode_slot: int, now_s: float) -> None:
        class_slot = self._learner.class_slot(entry.request, now_s)
        self.ledger.assign(entry, None, decode_slot, now_s, class_slot=class_slot)
        self.ledger.prefilled(entry, now_s)
        if self.partitioner is not None:
            self.partitioner.unplanned(entry)

    def _failed(self, event: DispatchFailed, now_s: float) -> list[Effect]:
        entry = self.ledger.get(event.request_id)
        if entry is None:
            return []
        self.queue.remove(event.request_id)
        slots = self._slots_of(entry)
        self.ledger.unassign(entry)
        if self.partitioner is not None:
            self.partitioner.closed(event.request_id)
        entry.failures += 1
        entry.avoid.add(event.endpoint_id)
        self._release_if_gone(*slots)
        if entry.failures > self.settings.max_retries:
            self.ledger.close(event.request_id)
            tried = f"{entry.failures} attempts failed, the last on {event.endpoint_id} ({event.stage})"
            return [Reject(event.request_id, RejectReason.UPSTREAM_FAILED, tried)]
        return self._try(entry, now_s)

    def _close(self, request_id: RequestId, outcome: Outcome, output_tokens: int, now_s: float) -> bool:
        entry = self.ledger.get(request_id)
        if entry is None:
            return False
        slots = self._slots_of(entry)
        self._learner.ended(entry, outcome, output_tokens, now_s)
        self.queue.remove(request_id)
        if outcome is Outcome.COMPLETED:
            self.queue.completed(entry, now_s)
        self.ledger.close(request_id)
        if self.partitioner is not None:
            self.partitioner.closed(request_id)
        self._release_if_gone(*slots)
        return True

    def _wake(self, now_s: float) -> list[Effect]:
        return [] if self.rescheduler is None else self.rescheduler.wake(now_s)

    def _told(self, entry: Entry, event: Migrated | MigrationFailed | LengthPredicted, now_s: float) -> None:
        """A request runs at its target, or stays, or is foreseen to go on for so long."""
        if isinstance(event, LengthPredicted):
            self.ledger.foresee(entry, event.remaining_tokens)
        elif self.rescheduler is not None:
            slots = self._slots_of(entry)
            self.rescheduler.settled(entry, event, now_s)
            self._release_if_gone(*slots)

    def _with_entry(self, request_id: RequestId, change: Callable[[Entry], None]) -> list[Effect]:
        entry = self.ledger.get(request_id)
        if entry is not None:
            change(entry)
        return []

    # --- endpoints ----------------------------------------------------------------------------------------------

    def _on_endpoint(self, event: EndpointObserved | EndpointDraining | EndpointLost, now_s: float) -> list[Effect]:
        match event:
            case EndpointObserved():
                return self._observed(event, now_s)
            case EndpointDraining():
                return self._with_slot(event.endpoint_id, self.inventory.drain)
            case EndpointLost():
                return self._with_slot(event.endpoint_id, self._lose)

    def _observed(self, event: EndpointObserved, now_s: float) -> list[Effect]:
        slot, changed = self.inventory.put(event.endpoint)
        if self.inventory.capacity > len(self.ledger.foreign):
            self._grow()
        if changed:
            self.beliefs.add(slot, event.endpoint.profile)
        if event.observation is not None:
            self.inventory.observe(slot, event.observation)
            self.ledger.observed(slot, event.observation)
            self._learner.observed(slot, now_s)
        return self._serve(now_s) if changed else []

    def _grow(self) -> None:
        capacity = self.inventory.capacity
        self.ledger.resize(capacity)
        self.placer.grow(capacity)

    def _lose(self, slot: int) -> None:
        self.inventory.lose(slot)
        self.ledger.forget(slot)
        self.beliefs.lose_cache(slot)
        self._release_if_gone(slot)

    def _release_if_gone(self, *slots: int) -> None:
        for slot in slots:
            if self.ledger.is_idle(slot) and self.inventory.release(slot):
                self._learner.forget(slot)
                self.placer.forget(slot)
                if self.partitioner is not None:
                    self.partitioner.forget(slot)

    def _with_slot(self, endpoint_id: EndpointId, change: Callable[[int], None]) -> list[Effect]:
        slot = self.inventory.slot_of(endpoint_id)
        if slot is not None:
            change(slot)
        return []

    @staticmethod
    def _slots_of(entry: Entry) -> list[int]:
        """Every slot on whose books it is."""
        coming = None if entry.reservation is None else entry.reservation.decode_slot
        return [slot for slot in (entry.prefill_slot, entry.decode_slot, coming) if slot is not None]
