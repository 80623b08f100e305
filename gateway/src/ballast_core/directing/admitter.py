"""Admits requests: dispatches, holds or rejects each one, and dispatches held ones when capacity frees up."""

from __future__ import annotations

import numpy as np

from ballast_core.directing.capacity import Capacity
from ballast_core.directing.dispatcher import Dispatcher
from ballast_core.directing.placer import Placer
from ballast_core.directing.queue import Queue
from ballast_core.directing.timers import Timers
from ballast_core.model import RejectReason
from ballast_core.model.effects import Effect, Hold, Reject
from ballast_core.policies.admission import Admission
from ballast_core.state.ledger import Entry, Ledger


class Admitter:
    """Applies one admission policy. Times are seconds on the Director's clock."""

    def __init__(
        self,
        admission: Admission,
        ledger: Ledger,
        *,
        hold_s: float,
        placer: Placer,
        dispatcher: Dispatcher,
        queue: Queue,
        capacity: Capacity,
        timers: Timers,
    ) -> None:
        """`hold_s`: how long a request waits for an endpoint to appear if there is none."""
        self._admission = admission
        self._ledger = ledger
        self._hold_s = hold_s
        self._dispatcher = dispatcher
        self._placer = placer
        self._queue = queue
        self._capacity = capacity
        self._timers = timers

    @property
    def serves(self) -> bool:
        """Whether requests wait for capacity, which any event may free."""
        return self._admission.bounded and len(self._queue) > 0

    def admit(self, entry: Entry, now_s: float) -> list[Effect]:
        """Dispatch a request that has arrived, or whose leg has failed; otherwise hold or reject it."""
        dispatch = self._dispatcher.dispatch(entry, now_s)
        if dispatch is not None:
            return [dispatch]
        until_s = self._may_wait_until_s(entry, now_s)
        if until_s <= now_s or self._is_full(entry):
            return self._give_up(entry)
        self._queue.add(entry, until_s, now_s)
        return [Hold(entry.request.id), self._timers.ask(until_s)]

    def serve(self, now_s: float) -> list[Effect]:
        """Dispatch waiting requests in the queue's order while there is capacity; reject those that waited too long."""
        effects: list[Effect] = []
        queue = self._queue
        if len(queue) and self._any_free():
            for entry in queue.in_turn(now_s):
                dispatch = self._dispatcher.dispatch(entry, now_s)
                if dispatch is not None:
                    queue.remove(entry.request.id)
                    effects.append(dispatch)
                    if not self._any_free():
                        break
        for entry in queue.expired(now_s):
            until_s = now_s if entry.failures else self._may_wait_until_s(entry, now_s)
            if until_s > now_s:  # it now waits for something else
                queue.extend(entry.request.id, until_s)
                effects.append(self._timers.ask(until_s))
            else:
                queue.remove(entry.request.id)
                effects += self._give_up(entry)
        return effects

    def _any_free(self) -> bool:
        """Whether a waiting request may be dispatched now, as far as that is known without placing it."""
        placer = self._placer
        return self._capacity.any_free() or any(placer.stand_ins(entry) for entry in self._queue.restricted())

    def _may_wait_until_s(self, entry: Entry, now_s: float) -> float:
        """Until when it may wait: for capacity if there are endpoints, otherwise for an endpoint to appear.

        Waiting counts from its arrival, or from a failed leg. A request with a failed leg does not wait for an endpoint
        to appear.
        """
        if self._admission.bounded and self._placer.exist_for(entry):
            return (now_s if entry.failures else entry.arrived_s) + self._admission.max_wait_s
        return -np.inf if entry.failures else entry.arrived_s + self._hold_s

    def _is_full(self, entry: Entry) -> bool:
        """Whether the queue is full for this request; one that was dispatched before always enters."""
        return self._admission.bounded and not entry.failures and len(self._queue) >= self._admission.max_waiting

    def _give_up(self, entry: Entry) -> list[Effect]:
        request_id = entry.request.id
        self._ledger.close(request_id)
        if self._admission.bounded and self._placer.exist_for(entry):
            message = f"every endpoint is full and {len(self._queue)} other requests wait; retry later"
            return [Reject(request_id, RejectReason.SATURATED, message)]
        if entry.failures:
            tried = ", ".join(sorted(entry.avoid))
            return [
                Reject(request_id, RejectReason.UPSTREAM_FAILED, f"no endpoint is left to try after {tried} failed")
            ]
        return [Reject(request_id, RejectReason.NO_ENDPOINTS, "no endpoint that may serve it is ready; retry later")]
