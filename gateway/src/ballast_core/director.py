"""The Director: events in, effects out. It owns the inventory and the ledger, and asks the policies.

Pure: it never asks for the time, and the same events give the same effects. One caller at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from ballast_core.decision import PlacementTrace
from ballast_core.effects import Cancel, Dispatch, Effect, Handoff, Hold, Reject, WakeAt
from ballast_core.events import (
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
from ballast_core.inventory import Candidates, Inventory
from ballast_core.ledger import Entry, Ledger, Phase
from ballast_core.model import Binding, EndpointId, RejectReason, Request, RequestId, Role, Stage
from ballast_core.policies.base import Placement
from ballast_core.view import IntArray, View


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorSettings:
    """What the Director is told once. Policies place; the rest bounds."""

    prefill: Placement
    decode: Placement
    binding: Binding = Binding.LATE
    max_in_flight: int | None = None
    """Requests beyond this many are rejected as saturated; None sets no limit."""
    max_retries: int = 2
    """How often a request is dispatched anew after a failed leg."""
    hold_s: float = 0.0
    """How long a request waits for an endpoint to appear when there is none; 0 rejects at once."""

    def placement(self, stage: Stage) -> Placement:
        """The policy that places a stage."""
        return self.prefill if stage is Stage.PREFILL else self.decode


@dataclass(frozen=True, slots=True)
class _Placed:
    slot: int
    trace: PlacementTrace


class Director:
    """Decides where each request is prefilled and decoded. See `ballast_core.events` for what to feed it."""

    def __init__(self, settings: DirectorSettings) -> None:
        self.settings = settings
        self.inventory = Inventory()
        self.ledger = Ledger(self.inventory.capacity)
        self._turns = {stage: np.zeros(self.inventory.capacity, np.int64) for stage in Stage}
        """When each slot was last chosen, as a running number: the tie-break."""
        self._turn = 0

    def on_event(self, event: Event, now_s: float) -> list[Effect]:
        """Take in what happened at `now_s` (seconds on the driver's clock) and say what is to be done."""
        match event:
            case RequestArrived():
                return self._arrived(event.request, now_s)
            case Progress():
                return self._with_entry(
                    event.request_id, lambda entry: self._progressed(entry, event.generated_tokens, now_s)
                )
            case EndpointObserved():
                return self._observed(event, now_s)
            case FirstToken():
                return self._with_entry(event.request_id, lambda e: self._first_token(e, now_s))
            case PrefillDone():
                return self._prefill_done(event.request_id, now_s)
            case RequestEnded():
                self._close(event.request_id)
                return []
            case ClientGone():
                return [Cancel(event.request_id)] if self._close(event.request_id) else []
            case DispatchFailed():
                return self._failed(event, now_s)
            case EndpointDraining():
                return self._with_slot(event.endpoint_id, self.inventory.drain)
            case EndpointLost():
                return self._with_slot(event.endpoint_id, self._lose)
            case TimerFired():
                return self._dispatch_held(now_s)
            case _:
                assert_never(event)

    # --- requests -----------------------------------------------------------------------------------------------

    def _arrived(self, request: Request, now_s: float) -> list[Effect]:
        limit = self.settings.max_in_flight
        if limit is not None and len(self.ledger) >= limit:
            return [
                Reject(request.id, RejectReason.SATURATED, f"{limit} requests are in flight, the limit; retry later")
            ]
        return self._try(self.ledger.open(request, now_s), now_s)

    def _try(self, entry: Entry, now_s: float) -> list[Effect]:
        """Dispatch a held request, or hold it on, or give it up."""
        dispatch = self._place_both(entry, now_s)
        if dispatch is not None:
            return [dispatch]
        request_id = entry.request.id
        deadline_s = entry.arrived_s + self.settings.hold_s
        if entry.failures == 0 and now_s < deadline_s:
            return [Hold(request_id), WakeAt(deadline_s)]
        self.ledger.close(request_id)
        if entry.failures:
            tried = ", ".join(sorted(entry.avoid))
            return [
                Reject(request_id, RejectReason.UPSTREAM_FAILED, f"no endpoint is left to try after {tried} failed")
            ]
        missing = self._missing_stage(entry.request)
        return [Reject(request_id, RejectReason.NO_ENDPOINTS, f"no {missing} endpoint is ready; retry later")]

    def _place_both(self, entry: Entry, now_s: float) -> Dispatch | None:
        decode = self._place(Stage.DECODE, entry, now_s)
        if decode is None:
            return None
        endpoint = self.inventory.endpoint(decode.slot)
        prefill: _Placed | None = None
        if endpoint.role is not Role.FLEXIBLE or self.inventory.has_dedicated_prefill():
            prefill = self._place(Stage.PREFILL, entry, now_s)
            if prefill is None:
                return None
            if prefill.slot == decode.slot:
                prefill = None
        self._chosen(Stage.DECODE, decode.slot)
        if prefill is not None:
            self._chosen(Stage.PREFILL, prefill.slot)
        self.ledger.assign(entry, None if prefill is None else prefill.slot, decode.slot, now_s)
        return Dispatch(
            entry.request.id,
            prefill=None if prefill is None else self.inventory.endpoint(prefill.slot),
            decode=endpoint,
            traces=(decode.trace,) if prefill is None else (prefill.trace, decode.trace),
        )

    def _first_token(self, entry: Entry, now_s: float) -> None:
        slots = self._slots_of(entry)
        self.ledger.prefilled(entry, now_s)
        self._release_if_gone(*slots)

    def _progressed(self, entry: Entry, generated_tokens: int, now_s: float) -> None:
        slots = self._slots_of(entry)
        self.ledger.progressed(entry, generated_tokens, now_s)
        if len(slots) > 1:  # the first report of tokens may have ended its prefill
            self._release_if_gone(*slots)

    def _prefill_done(self, request_id: RequestId, now_s: float) -> list[Effect]:
        """Late binding: keep the decode endpoint unless another one is strictly better now, or it is gone."""
        entry = self.ledger.get(request_id)
        if entry is None or entry.decode_slot is None or entry.phase is not Phase.PREFILLING:
            return []
        kept = self.inventory.endpoint(entry.decode_slot)
        if self.settings.binding is Binding.EARLY:
            self._first_token(entry, now_s)
            return [Handoff(request_id, kept)]
        slots, old_slot = self._slots_of(entry), entry.decode_slot
        self.ledger.unassign(entry)
        placed = self._place(Stage.DECODE, entry, now_s, keep=old_slot)
        if placed is None:  # no ready endpoint is left: the one it had may still answer
            self._rebook(entry, old_slot, now_s)
            return [Handoff(request_id, kept)]
        if placed.slot != old_slot:
            self._chosen(Stage.DECODE, placed.slot)
        self._rebook(entry, placed.slot, now_s)
        self._release_if_gone(*slots)
        return [Handoff(request_id, self.inventory.endpoint(placed.slot), (placed.trace,))]

    def _rebook(self, entry: Entry, decode_slot: int, now_s: float) -> None:
        self.ledger.assign(entry, None, decode_slot, now_s)
        self.ledger.prefilled(entry, now_s)

    def _failed(self, event: DispatchFailed, now_s: float) -> list[Effect]:
        entry = self.ledger.get(event.request_id)
        if entry is None:
            return []
        slots = self._slots_of(entry)
        self.ledger.unassign(entry)
        entry.failures += 1
        entry.avoid.add(event.endpoint_id)
        self._release_if_gone(*slots)
        if entry.failures > self.settings.max_retries:
            self.ledger.close(event.request_id)
            tried = f"{entry.failures} attempts failed, the last on {event.endpoint_id} ({event.stage})"
            return [Reject(event.request_id, RejectReason.UPSTREAM_FAILED, tried)]
        return self._try(entry, now_s)

    def _close(self, request_id: RequestId) -> bool:
        entry = self.ledger.get(request_id)
        if entry is None:
            return False
        slots = self._slots_of(entry)
        self.ledger.close(request_id)
        self._release_if_gone(*slots)
        return True

    def _with_entry(self, request_id: RequestId, change: Callable[[Entry], None]) -> list[Effect]:
        entry = self.ledger.get(request_id)
        if entry is not None:
            change(entry)
        return []

    # --- endpoints ----------------------------------------------------------------------------------------------

    def _observed(self, event: EndpointObserved, now_s: float) -> list[Effect]:
        slot, changed = self.inventory.put(event.endpoint)
        if self.inventory.capacity > len(self.ledger.foreign):
            self._grow()
        if event.observation is not None:
            self.inventory.observe(slot, event.observation)
            self.ledger.observed(slot, event.observation)
        return self._dispatch_held(now_s) if changed else []

    def _grow(self) -> None:
        capacity = self.inventory.capacity
        self.ledger.resize(capacity)
        for stage, turns in self._turns.items():
            self._turns[stage] = np.concatenate([turns, np.zeros(capacity - len(turns), np.int64)])

    def _dispatch_held(self, now_s: float) -> list[Effect]:
        """In order of arrival: dispatch what was held, or give it up when its time is over."""
        effects: list[Effect] = []
        for entry in [entry for entry in self.ledger if entry.phase is Phase.HELD]:
            effects += [effect for effect in self._try(entry, now_s) if not isinstance(effect, (Hold, WakeAt))]
        return effects

    def _lose(self, slot: int) -> None:
        self.inventory.lose(slot)
        self.ledger.forget(slot)
        self._release_if_gone(slot)

    def _release_if_gone(self, *slots: int) -> None:
        for slot in slots:
            if self.ledger.is_idle(slot) and self.inventory.release(slot):
                for turns in self._turns.values():
                    turns[slot] = 0

    def _with_slot(self, endpoint_id: EndpointId, change: Callable[[int], None]) -> list[Effect]:
        slot = self.inventory.slot_of(endpoint_id)
        if slot is not None:
            change(slot)
        return []

    # --- placement ----------------------------------------------------------------------------------------------

    def _place(self, stage: Stage, entry: Entry, now_s: float, keep: int | None = None) -> _Placed | None:
        """The best candidate for a stage, or None if there is none. Books nothing.

        Ties go to `keep` if it is among them, then to the least recently chosen, then to the smallest id.
        """
        candidates = self._allowed(self.inventory.candidates(stage), entry)
        if not candidates.endpoints:
            return None
        policy = self.settings.placement(stage)
        costs = policy.costs(self._view(stage, candidates, now_s), entry.request)
        lowest = costs.min()
        if not lowest < np.inf:
            return None
        tied = np.flatnonzero(costs == lowest)
        slots = candidates.slots[tied]
        best = int(tied[np.argmin(self._turns[stage][slots])])
        if keep is not None and keep in slots:
            best = int(tied[np.flatnonzero(slots == keep)[0]])
        chosen = candidates.endpoints[best]
        return _Placed(
            slot=int(candidates.slots[best]),
            trace=PlacementTrace(stage, policy.type, chosen.id, candidates.endpoints, costs),
        )

    def _view(self, stage: Stage, candidates: Candidates, now_s: float) -> View:
        slots: IntArray = candidates.slots
        return View(
            now_s=now_s,
            stage=stage,
            endpoints=candidates.endpoints,
            requests=self.ledger.requests[stage][slots] + self.ledger.foreign[slots],
            running_requests=self.inventory.running[slots],
            waiting_requests=self.inventory.waiting[slots],
            tokens=self.ledger.tokens[stage][slots],
            decoding_tokens=self.ledger.decoding_tokens[slots],
            kv_usage_ratio=self.inventory.kv_usage_ratio[slots],
            observation_age_s=now_s - self.inventory.observed_at_s[slots],
        )

    @staticmethod
    def _allowed(candidates: Candidates, entry: Entry) -> Candidates:
        subset, avoid = entry.request.subset, entry.avoid
        if subset is None and not avoid:
            return candidates
        kept = [
            k
            for k, endpoint in enumerate(candidates.endpoints)
            if endpoint.id not in avoid and (subset is None or endpoint.address in subset)
        ]
        return Candidates(tuple(candidates.endpoints[k] for k in kept), candidates.slots[kept])

    def _chosen(self, stage: Stage, slot: int) -> None:
        self._turn += 1
        self._turns[stage][slot] = self._turn

    def _missing_stage(self, request: Request) -> Stage:
        blank = Entry(request=request, arrived_s=0.0)
        decode = self._allowed(self.inventory.candidates(Stage.DECODE), blank)
        return Stage.PREFILL if decode.endpoints else Stage.DECODE

    @staticmethod
    def _slots_of(entry: Entry) -> list[int]:
        return [slot for slot in (entry.prefill_slot, entry.decode_slot) if slot is not None]
