"""The Director: events in, effects out. It owns the inventory and the ledger, and calls the policies.

Pure: it reads no clock, and the same events give the same effects. One caller at a time.

It passes each event to the part that it concerns: `Admitter` (requests that arrive or wait), `Dispatcher` (hand-offs
and cuts), `Bookings` (progress and ends), `Rescheduler` (migrations). They share `inventory`, `ledger` and `beliefs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.directing.admitter import Admitter
from ballast_core.directing.bookings import Bookings, slots_of
from ballast_core.directing.capacity import Capacity
from ballast_core.directing.dispatcher import Dispatcher
from ballast_core.directing.learning import Learner
from ballast_core.directing.partitioner import NoPartitioner, Partitioner
from ballast_core.directing.placer import Placer
from ballast_core.directing.queue import Queue
from ballast_core.directing.rescheduler import NoRescheduler, Rescheduler
from ballast_core.directing.settings import DirectorSettings
from ballast_core.directing.timers import Timers
from ballast_core.model import EndpointId, Outcome, RejectReason, Request, RequestId, Stage
from ballast_core.model.effects import Cancel, Effect, Handoff, Reject
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    EndpointsScraped,
    Event,
    FirstToken,
    LengthPredicted,
    Migrated,
    MigrationFailed,
    PrefillDone,
    Progress,
    ProgressBatch,
    RequestArrived,
    RequestEnded,
    RequestEvent,
    SegmentDone,
    TimerFired,
)
from ballast_core.model.observations import Observations
from ballast_core.policies.admission import Open
from ballast_core.policies.queue.orders import Fcfs
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, Ledger, Phase


class Director:
    """Decides where each request is prefilled and decoded. `ballast_core.model.events` lists its events."""

    def __init__(self, settings: DirectorSettings) -> None:
        self.settings = settings
        self.inventory = Inventory()
        self.ledger = Ledger(self.inventory.capacity)
        self.beliefs = Beliefs(settings.beliefs, settings.profiles, settings.lengths)
        admission = settings.admission or Open()
        inventory, ledger, timers = self.inventory, self.ledger, Timers()
        self._timers = timers
        self._learner = learner = Learner(self.beliefs, inventory, ledger)
        self.capacity = Capacity(admission, inventory, ledger)
        placements = {stage: settings.placement(stage) for stage in Stage}
        self.placer = placer = Placer(placements, inventory, ledger, self.beliefs, self.capacity)
        self.queue = Queue(settings.queue or Fcfs(), self.beliefs, inventory)
        self.partitioner = (
            NoPartitioner()
            if settings.partition is None
            else Partitioner(
                settings.partition,
                settings.binding,
                inventory=inventory,
                ledger=ledger,
                learner=learner,
                placer=placer,
            )
        )
        self.rescheduler = (
            NoRescheduler()
            if settings.rescheduling is None
            else Rescheduler(
                settings.rescheduling,
                inventory,
                ledger,
                self.beliefs,
                capacity=self.capacity,
                timers=timers,
                partitioner=self.partitioner,
            )
        )
        self._bookings = Bookings(inventory, ledger, learner=learner, placer=placer, partitioner=self.partitioner)
        self._dispatcher = Dispatcher(
            settings.binding,
            inventory,
            placer=placer,
            partitioner=self.partitioner,
            queue=self.queue,
            bookings=self._bookings,
        )
        self._admitter = Admitter(
            admission,
            ledger,
            hold_s=settings.hold_s,
            placer=placer,
            dispatcher=self._dispatcher,
            queue=self.queue,
            capacity=self.capacity,
            timers=timers,
        )

    def on_event(self, event: Event, now_s: float) -> list[Effect]:
        """Process an event that happened at `now_s` (seconds on the driver's clock); returns what is to be done.

        Raises ValueError for a request whose id is in flight already.
        """
        match event:
            case ProgressBatch():
                self._progress(event.reports)
                return []
            case EndpointsScraped():
                return self._scraped(event.answers, now_s)
            case EndpointObserved() | EndpointDraining() | EndpointLost():
                effects = self._on_endpoint(event, now_s)
            case TimerFired():
                again = self._timers.fired(now_s)
                moves = self.rescheduler.on_timer(now_s)
                effects = self._admitter.serve(now_s) + moves + again
            case RequestArrived():
                effects = self._arrived(event.request, now_s) + self.rescheduler.wake(now_s)
            case _:
                entry = self.ledger.get(event.request_id)
                effects = [] if entry is None else self._on_request(entry, event, now_s)
        return effects + self._admitter.serve(now_s) if self._admitter.serves else effects

    # --- requests -----------------------------------------------------------------------------------------------

    def _arrived(self, request: Request, now_s: float) -> list[Effect]:
        limit = self.settings.max_in_flight
        if limit is not None and len(self.ledger) >= limit:
            return [
                Reject(request.id, RejectReason.SATURATED, f"{limit} requests are in flight, the limit; retry later")
            ]
        entry = self.ledger.open(request, now_s)
        self._learner.arrived(request, now_s)
        before = self._admitter.serve(now_s) if self._admitter.serves else []
        return before + self._admitter.admit(entry, now_s)

    def _on_request(self, entry: Entry, event: RequestEvent, now_s: float) -> list[Effect]:
        match event:
            case PrefillDone():
                return _if_any(self._dispatcher.prefill_done(entry, now_s))
            case SegmentDone(generated_tokens=tokens, computed=computed):
                return _if_any(self._dispatcher.segment_done(entry, tokens, now_s, computed=computed))
            case FirstToken():
                self.queue.first_token(entry, now_s)
                self._bookings.prefilled(entry, now_s)
                self._bookings.progressed(entry, 1, now_s)
            case Progress():
                self._progress([(now_s, entry.request.id, event.generated_tokens)])
            case LengthPredicted():
                self.ledger.hint(entry, event.remaining_tokens)
            case Migrated() | MigrationFailed():
                slots = slots_of(entry)
                self.rescheduler.settled(entry, event, now_s)
                self._bookings.release(*slots)
            case DispatchFailed():
                return self._failed(entry, event, now_s)
            case RequestEnded():
                self._close(entry, event.outcome, event.output_tokens, now_s)
            case ClientGone():
                self._close(entry, Outcome.CANCELLED, 0, now_s)
                return [Cancel(entry.request.id)]
            case _:
                assert_never(event)
        return []

    def _progress(self, reports: Iterable[tuple[float, RequestId, int]]) -> None:
        if not self._learner.reads_books:
            self._learner.progressed_all(self.ledger.progressed_all(reports, self._bookings.progressed))
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
            else:  # the tokens may imply the end of its prefill
                self._bookings.progressed(entry, generated_tokens, at_s)

    def _failed(self, entry: Entry, event: DispatchFailed, now_s: float) -> list[Effect]:
        self.queue.remove(event.request_id)
        entry.failures += 1
        entry.avoid.add(event.endpoint_id)
        self._bookings.failed(entry)
        if entry.failures > self.settings.max_retries:
            self.ledger.close(event.request_id)
            tried = f"{entry.failures} attempts failed, the last on {event.endpoint_id} ({event.stage})"
            return [Reject(event.request_id, RejectReason.UPSTREAM_FAILED, tried)]
        return self._admitter.admit(entry, now_s)

    def _close(self, entry: Entry, outcome: Outcome, output_tokens: int, now_s: float) -> None:
        self.queue.remove(entry.request.id)
        if outcome is Outcome.COMPLETED:
            self.queue.completed(entry, now_s)
        self._bookings.ended(entry, outcome, output_tokens, now_s)

    # --- endpoints ----------------------------------------------------------------------------------------------

    def _on_endpoint(self, event: EndpointObserved | EndpointDraining | EndpointLost, now_s: float) -> list[Effect]:
        match event:
            case EndpointObserved():
                return self._observed(event, now_s)
            case EndpointDraining():
                self._with_slot(event.endpoint_id, self.inventory.drain)
            case EndpointLost():
                self._with_slot(event.endpoint_id, self._lose)
        return []

    def _observed(self, event: EndpointObserved, now_s: float) -> list[Effect]:
        slot, changed = self.inventory.put(event.endpoint)
        if self.inventory.capacity > len(self.ledger.foreign):
            self.ledger.resize(self.inventory.capacity)
            self.placer.grow(self.inventory.capacity)
        if changed:
            self.beliefs.add(slot, event.endpoint.profile)
        if event.observation is not None:
            self.inventory.observe(slot, event.observation)
            self.ledger.observed(slot, event.observation)
            self._learner.observed(slot, now_s)
        return self._admitter.serve(now_s) if changed else []

    def _scraped(self, answers: Observations, now_s: float) -> list[Effect]:
        if not len(answers):
            return []
        slots = self.inventory.slots_as(answers.endpoints)
        if slots is None:
            return [effect for one in answers for effect in self.on_event(EndpointObserved(*one), now_s)]
        self.inventory.observe_all(slots, answers)
        self.ledger.observed_all(slots, answers)
        self._learner.observed_all(slots.tolist(), now_s)
        return self._admitter.serve(now_s) if self._admitter.serves else []

    def _lose(self, slot: int) -> None:
        self.inventory.lose(slot)
        self.ledger.forget(slot)
        self.beliefs.lose_cache(slot)
        self._bookings.release(slot)

    def _with_slot(self, endpoint_id: EndpointId, change: Callable[[int], None]) -> None:
        slot = self.inventory.slot_of(endpoint_id)
        if slot is not None:
            change(slot)


def _if_any(handoff: Handoff | None) -> list[Effect]:
    return [] if handoff is None else [handoff]
