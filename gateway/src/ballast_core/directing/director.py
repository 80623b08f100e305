"""The Director: events in, effects out. It owns the inventory and the ledger, and calls the policies.

Pure: it reads no clock, and the same events give the same effects. One caller at a time.

It passes each event to the part that it concerns: `Admitter` (requests that arrive or wait), `Dispatcher` (hand-offs
and cuts), `Bookings` (progress and ends), `Rescheduler` (migrations), `Adoption` (other gateways' requests). They share
`inventory`, `ledger` and `beliefs`. New settings are an event, too (`SettingsChanged`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.directing.admitter import Admitter
from ballast_core.directing.adoption import Adoption
from ballast_core.directing.bookings import Bookings
from ballast_core.directing.capacity import Capacity
from ballast_core.directing.dispatcher import Dispatcher
from ballast_core.directing.learning import Learner
from ballast_core.directing.outcomes import Outcomes
from ballast_core.directing.partitioner import Partitioner
from ballast_core.directing.placer import Placer
from ballast_core.directing.queue import Queue
from ballast_core.directing.rescheduler import NoRescheduler, Rescheduler
from ballast_core.directing.settings import DirectorSettings, SettingsChanged
from ballast_core.directing.timers import Timers
from ballast_core.directing.watch import Watch
from ballast_core.model import Outcome, RejectReason, ShedCause, Stage
from ballast_core.model.effects import Cancel, Effect, Reject
from ballast_core.model.events import (
    CacheReported,
    CacheReportsBegun,
    CacheReportsEnded,
    ClientGone,
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    EndpointRestored,
    EndpointsHeard,
    EndpointsScraped,
    Event,
    FirstToken,
    LeadershipChanged,
    LegFailed,
    LengthPredicted,
    Migrated,
    MigrationFailed,
    ModelsObserved,
    MoveOrdered,
    PrefillDone,
    Progress,
    ProgressBatch,
    RequestAdopted,
    RequestArrived,
    RequestEnded,
    RequestMoved,
    RequestRedirected,
    SegmentDone,
    TimerFired,
)
from ballast_core.policies.admission import Open
from ballast_core.policies.queue.orders import Fcfs
from ballast_core.state.departures import Departures
from ballast_core.state.health import Health
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, Ledger, Phase

_DECODING = Phase.DECODING  # found faster than a member of an Enum
_BATCHES = frozenset(
    {ProgressBatch, EndpointsScraped, CacheReportsBegun, CacheReported, CacheReportsEnded, ModelsObserved}
)
"""Events that serve waiting requests by themselves, or not at all."""


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
        self.capacity = Capacity(admission, inventory, ledger, self.beliefs)
        placements = {stage: settings.placement(stage) for stage in Stage}
        self.health = health = Health(settings.health, inventory)
        self.placer = placer = Placer(
            placements, inventory, ledger, self.beliefs, capacity=self.capacity, health=health
        )
        placer.canary = settings.canary
        self.outcomes = outcomes = Outcomes(
            settings.health, settings.max_retries, inventory, ledger, health=health, placer=placer
        )
        self.queue = Queue(settings.queue or Fcfs(), self.beliefs, inventory, placer.models.lacking)
        self.partitioner = Partitioner(
            settings.partition, settings.binding, inventory=inventory, ledger=ledger, learner=learner, placer=placer
        )
        self._leads = True
        self.departures = Departures()
        self.rescheduler = self._rescheduling()
        self._bookings = Bookings(
            inventory, ledger, learner=learner, placer=placer, partitioner=self.partitioner, outcomes=outcomes
        )
        self._adoption = Adoption(
            inventory,
            ledger,
            learner=learner,
            placer=placer,
            partitioner=self.partitioner,
            outcomes=outcomes,
            bookings=self._bookings,
        )
        self._dispatcher = Dispatcher(
            settings.binding,
            inventory,
            placer=placer,
            partitioner=self.partitioner,
            queue=self.queue,
            bookings=self._bookings,
            health=health,
            fallbacks=settings.fallbacks,
        )
        self._admitter = Admitter(
            admission,
            ledger,
            hold_s=settings.hold_s,
            startup_s=settings.startup_s,
            placer=placer,
            dispatcher=self._dispatcher,
            queue=self.queue,
            capacity=self.capacity,
            timers=timers,
        )
        self.watch = (
            None
            if settings.watch is None
            else Watch(
                settings.watch,
                inventory,
                ledger,
                self.beliefs,
                health=health,
                max_retries=settings.max_retries,
                follows_progress=settings.follows_progress,
            )
        )
        self._serves = self._admitter.serves
        self._entry_of = self.ledger.entries.get
        self._of_request: Mapping[type, Callable[[Entry, Any, float], list[Effect]]] = {
            PrefillDone: self._prefill_done,
            SegmentDone: self._segment_done,
            FirstToken: self._first_token,
            Progress: self._progressed,
            DispatchFailed: self._failed,
            RequestEnded: self._ended,
            ClientGone: self._client_gone,
            Migrated: self._settled,
            MigrationFailed: self._settled,
            RequestRedirected: self._redirected,
            LengthPredicted: self._length_predicted,
            LegFailed: self._adoption.leg_failed,
            MoveOrdered: self._move_ordered,
            RequestMoved: self._moved,
        }
        self._of_fleet: Mapping[type, Callable[[Any, float], list[Effect]]] = {
            RequestArrived: self._arrived,
            RequestAdopted: self._adopted,
            ProgressBatch: self._all_progressed,
            EndpointObserved: self._observed,
            EndpointsScraped: self._scraped,
            EndpointDraining: self._drain,
            EndpointRestored: self._restore,
            EndpointLost: self._lost,
            EndpointsHeard: self._heard,
            CacheReportsBegun: self._reports_begun,
            CacheReported: self._reported,
            CacheReportsEnded: self._reports_ended,
            LeadershipChanged: self._leadership_changed,
            ModelsObserved: self._models_observed,
            SettingsChanged: self._settings_changed,
            TimerFired: self._timer_fired,
        }

    def _rescheduling(self) -> NoRescheduler | Rescheduler:
        policy = self.settings.moves
        if policy is None:
            return NoRescheduler(self.inventory, self.ledger, self.partitioner)
        return Rescheduler(
            policy,
            self.inventory,
            self.ledger,
            self.beliefs,
            capacity=self.capacity,
            timers=self._timers,
            partitioner=self.partitioner,
            models=self.placer.models,
            draining_only=self.settings.rescheduling is None,
        )

    def on_event(self, event: Event | SettingsChanged, now_s: float) -> list[Effect]:
        """Process an event that happened at `now_s` (seconds on the driver's clock); returns what is to be done.

        Raises ValueError for a request whose id is in flight already, and for settings that cannot change.
        """
        if now_s >= self.health.wakes_s:
            self.health.wake(now_s)
        kind = type(event)
        of_request = self._of_request.get(kind)
        if of_request is not None:
            entry = self._entry_of(event.request_id)  # type: ignore[union-attr]
            effects = [] if entry is None else of_request(entry, event, now_s)
        else:
            effects = self._of_fleet[kind](event, now_s)
            if kind in _BATCHES:
                return effects
        if self._serves:
            effects += self._admitter.serve(now_s)
        return effects

    @property
    def expected_wait_s(self) -> float:
        """Expected seconds until what waits now has been dispatched; 0 if nothing waits."""
        return self._admitter.expected_wait_s

    # --- requests -----------------------------------------------------------------------------------------------

    def _arrived(self, event: RequestArrived, now_s: float) -> list[Effect]:
        request, limit = event.request, self.settings.max_in_flight
        if limit is not None and self.ledger.own >= limit:
            message = f"{limit} requests are in flight, the limit; retry later"
            reason, cause = RejectReason.SATURATED, ShedCause.IN_FLIGHT
            effects: list[Effect] = [self._admitter.rejected(request, reason, message, now_s, cause)]
        else:
            entry = self.ledger.open(request, now_s)
            self._learner.arrived(request, now_s)
            self.outcomes.budget.arrived(now_s)
            effects = self._admitter.serve(now_s) if self._serves else []
            effects += self._admitter.admit(entry, now_s)
        effects += self.rescheduler.wake(now_s)
        return effects

    def _adopted(self, event: RequestAdopted, now_s: float) -> list[Effect]:
        self._adoption.adopt(event, now_s)
        return self.rescheduler.wake(now_s)

    def _moved(self, entry: Entry, event: RequestMoved, now_s: float) -> list[Effect]:
        left = entry.decode_slot
        if self._adoption.moved(entry, event, now_s):
            if left in self.inventory.leaving:
                self.departures.moved(entry)
            self.rescheduler.moved(entry, now_s)
        return []

    def _move_ordered(self, entry: Entry, event: MoveOrdered, now_s: float) -> list[Effect]:
        self._adoption.ordered(entry, event, now_s)
        self.rescheduler.ordered(entry)
        return []

    def _leadership_changed(self, event: LeadershipChanged, now_s: float) -> list[Effect]:
        self._leads = event.leads
        return self.rescheduler.leads(event.leads, now_s)

    def _prefill_done(self, entry: Entry, event: PrefillDone, now_s: float) -> list[Effect]:
        if event.computed:
            self.outcomes.prefilled(entry, now_s)
        if event.bound or entry.adopted:
            self._adoption.prefilled(entry, now_s)
            return []
        handoff = self._dispatcher.prefill_done(entry, now_s)
        return [] if handoff is None else [handoff]

    def _segment_done(self, entry: Entry, event: SegmentDone, now_s: float) -> list[Effect]:
        if event.computed:
            self.outcomes.prefilled(entry, now_s)
        handoff = self._dispatcher.segment_done(entry, event.generated_tokens, now_s, computed=event.computed)
        return [] if handoff is None else [handoff]

    def _first_token(self, entry: Entry, event: FirstToken, now_s: float) -> list[Effect]:
        if not entry.adopted:
            self.queue.first_token(entry, now_s)
        self.outcomes.decoded(entry, now_s)
        if entry.decode_slot is not None and not entry.root:
            entry.root = self.placer.models.root(entry.request.model, entry.decode_slot)
        if entry.phase is not _DECODING:
            self._bookings.prefilled(entry, now_s)
        self._bookings.progressed(entry, 1, now_s)
        return []

    def _progressed(self, entry: Entry, event: Progress, now_s: float) -> list[Effect]:
        self._bookings.progressed(entry, event.generated_tokens, now_s)
        return []

    def _all_progressed(self, event: ProgressBatch, now_s: float) -> list[Effect]:
        self._bookings.progressed_all(event.reports)
        return []

    def _length_predicted(self, entry: Entry, event: LengthPredicted, now_s: float) -> list[Effect]:
        self.ledger.hint(entry, event.remaining_tokens)
        return []

    def _settled(self, entry: Entry, event: Migrated | MigrationFailed, now_s: float) -> list[Effect]:
        if type(event) is Migrated and entry.decode_slot in self.inventory.leaving:
            self.departures.moved(entry)
        self.rescheduler.settled(entry, event, now_s)
        self._bookings.release_lost()
        return []

    def _redirected(self, entry: Entry, event: RequestRedirected, now_s: float) -> list[Effect]:
        self.outcomes.unreachable(entry, event.unreachable, now_s)
        if event.request_id not in self.queue:
            self._dispatcher.redirected(entry, event, now_s)
        return []

    def _failed(self, entry: Entry, event: DispatchFailed, now_s: float) -> list[Effect]:
        if entry.adopted:
            return self._adoption.leg_failed(entry, event, now_s)
        self.queue.remove(event.request_id)
        entry.failures += 1
        entry.avoid |= {event.endpoint_id}
        final = self.outcomes.failed(entry, event, now_s)
        was_leaving = entry.decode_slot in self.inventory.leaving
        self._bookings.failed(entry)
        if final is None:
            effects = self._admitter.admit(entry, now_s)
        else:
            self.ledger.close(event.request_id)
            effects = [self._admitter.rejected(entry.request, *final, now_s)]
        if was_leaving and any(type(each) is Reject and each.request_id == event.request_id for each in effects):
            self.departures.ended(entry, Outcome.FAILED)
        return effects

    def _ended(self, entry: Entry, event: RequestEnded, now_s: float) -> list[Effect]:
        self.outcomes.ended(entry, event, now_s)
        self._close(entry, event.outcome, event.output_tokens, now_s)
        return []

    def _client_gone(self, entry: Entry, event: ClientGone, now_s: float) -> list[Effect]:
        self._close(entry, Outcome.CANCELLED, 0, now_s)
        return [] if entry.adopted else [Cancel(entry.request.id)]

    def _close(self, entry: Entry, outcome: Outcome, output_tokens: int, now_s: float) -> None:
        self.queue.remove(entry.request.id)
        if outcome is Outcome.COMPLETED and not entry.adopted:
            self.queue.completed(entry, output_tokens, now_s)
        if self.health.probes:
            self.health.left(entry.request.id)
        if self.inventory.leaving and self._ends_leaving(entry):
            self.departures.ended(entry, outcome)
        self._bookings.ended(entry, outcome, output_tokens, now_s)

    def _ends_leaving(self, entry: Entry) -> bool:
        """Whether it runs on an endpoint that drains, or ran there until its leg failed and runs nowhere now."""
        slots = {entry.decode_slot}
        if entry.decode_slot is None:
            slots = {self.inventory.slot_of(endpoint_id) for endpoint_id in entry.avoid}
        return not self.inventory.leaving.isdisjoint(slots)

    def _timer_fired(self, event: TimerFired, now_s: float) -> list[Effect]:
        again = self._timers.fired(now_s)
        moves = self.rescheduler.on_timer(now_s)
        return self._admitter.serve(now_s) + moves + again

    def _settings_changed(self, event: SettingsChanged, now_s: float) -> list[Effect]:
        old, new = self.settings, event.settings
        fixed = (new.binding, new.lengths, new.watch is None) == (old.binding, old.lengths, old.watch is None)
        if not fixed:
            raise ValueError("binding, lengths and whether there is a watch cannot change while a Director decides")
        self.settings = new
        self.beliefs.use(new.beliefs, new.profiles)
        self._learner.use(new.beliefs)
        self.outcomes.use(new.health, new.max_retries)
        self.capacity.use(new.admission or Open())
        self.placer.use({stage: new.placement(stage) for stage in Stage})
        if new.queue != old.queue:
            self.queue.use(new.queue or Fcfs(), now_s)
        if (new.partition, new.profiles) != (old.partition, old.profiles):  # planners remember what profiles predict
            self.partitioner.use(new.partition)
        self._dispatcher.fallbacks = new.fallbacks
        self.placer.canary = new.canary
        self._admitter.use(new.admission or Open(), hold_s=new.hold_s, startup_s=new.startup_s)
        self._serves = self._admitter.serves
        if self.watch is not None and new.watch is not None:
            self.watch.use(new.watch, self.beliefs, max_retries=new.max_retries, follows_progress=new.follows_progress)
        effects = self._admitter.serve(now_s)
        if new.moves != old.moves:
            self.rescheduler = self._rescheduling()
            effects += self.rescheduler.leads(self._leads, now_s)
        return effects

    # --- endpoints ----------------------------------------------------------------------------------------------

    def _observed(self, event: EndpointObserved, now_s: float) -> list[Effect]:
        slot, changed = self.inventory.put(event.endpoint)
        if event.draining:
            self.inventory.drain(slot)
        if self.inventory.capacity > len(self.ledger.foreign):
            self.ledger.resize(self.inventory.capacity)
            self.placer.grow(self.inventory.capacity)
            self._learner.grow(self.inventory.capacity)
            self.health.grow(self.inventory.capacity)
        if changed:
            self.beliefs.add(slot, event.endpoint.profile)
            self.beliefs.reported.place(slot, event.endpoint.id)
            self.health.appeared(slot, event.endpoint)
        if event.observation is not None:
            self.inventory.observe(slot, event.observation)
            self.ledger.observed(slot, event.observation)
            self._learner.observed(slot, now_s)
        if changed or event.observation is not None:
            self.capacity.observed(np.array([slot]))
        return self._admitter.serve(now_s) if changed else []

    def _scraped(self, event: EndpointsScraped, now_s: float) -> list[Effect]:
        answers = event.answers
        if not len(answers):
            return []
        slots = self.inventory.slots_as(answers.endpoints)
        if slots is None:
            return [effect for one in answers for effect in self.on_event(EndpointObserved(*one), now_s)]
        self.inventory.observe_all(slots, answers)
        self.ledger.observed_all(slots, answers)
        self._learner.observed_all(slots, now_s)
        self.capacity.observed(slots)
        return self._admitter.serve(now_s) if self._serves else []

    def _heard(self, event: EndpointsHeard, now_s: float) -> list[Effect]:
        return [] if self.watch is None else self.watch.heard(event.signs, now_s)

    def _reports_begun(self, event: CacheReportsBegun, now_s: float) -> list[Effect]:
        self._learner.reports_begun(event)
        return []

    def _reported(self, event: CacheReported, now_s: float) -> list[Effect]:
        self._learner.reported(event, now_s)
        return []

    def _reports_ended(self, event: CacheReportsEnded, now_s: float) -> list[Effect]:
        self.beliefs.reported.end(event.endpoint_id)
        return []

    def _models_observed(self, event: ModelsObserved, now_s: float) -> list[Effect]:
        slot = self.inventory.slot_of(event.endpoint_id)
        if slot is not None and self.placer.models.said(slot, event.models):
            self.beliefs.reported.serve(self.placer.models.adapters)
            self.queue.regroup()
        return []

    def _drain(self, event: EndpointDraining, now_s: float) -> list[Effect]:
        slot = self.inventory.slot_of(event.endpoint_id)
        if slot is not None:
            self.inventory.drain(slot)
            self.health.keep_share()
        return self.rescheduler.wake(now_s)

    def _restore(self, event: EndpointRestored, now_s: float) -> list[Effect]:
        slot = self.inventory.slot_of(event.endpoint_id)
        if slot is None or not self.inventory.restore(slot):
            return []
        self.health.keep_share()
        return self._admitter.serve(now_s)

    def _lost(self, event: EndpointLost, now_s: float) -> list[Effect]:
        slot = self.inventory.slot_of(event.endpoint_id)
        if slot is not None:
            self.inventory.lose(slot)
            self.ledger.forget(slot)
            self.beliefs.lose_cache(slot)
            self.health.keep_share()
            self._bookings.release_lost()
        return []
