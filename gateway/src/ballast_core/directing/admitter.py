"""Admits requests: dispatches, holds or sheds each one, and dispatches held ones when capacity frees up."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ballast_core.directing.capacity import Capacity
from ballast_core.directing.dispatcher import Dispatcher
from ballast_core.directing.placer import Placer
from ballast_core.directing.queue import Queue
from ballast_core.directing.returns import Returns, jittered_s
from ballast_core.directing.timers import Timers
from ballast_core.model import RejectReason, Request, RequestId, ShedCause
from ballast_core.model.effects import Effect, Hold, Reject
from ballast_core.policies.admission import Admission
from ballast_core.state.ledger import Entry, Ledger

_LEAST_TENANTS = 8
"""So many tenants may have a request waiting each, however slowly the queue moves."""


class Admitter:
    """Applies one admission policy. Times are seconds on the Director's clock."""

    def __init__(
        self,
        admission: Admission,
        ledger: Ledger,
        *,
        hold_s: float,
        startup_s: float | None = None,
        placer: Placer,
        dispatcher: Dispatcher,
        queue: Queue,
        capacity: Capacity,
        timers: Timers,
    ) -> None:
        """`hold_s`: how long a request waits for an endpoint to appear if there is none. `startup_s`: how long one
        takes to start, where that was measured."""
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._placer = placer
        self._queue = queue
        self._capacity = capacity
        self._timers = timers
        self._returns = Returns()
        self._had_endpoints = True
        """At the last count of time."""
        self._waking_s: float | None = None
        """When the first request came for which there was no endpoint; None while there is one."""
        self.use(admission, hold_s=hold_s, startup_s=startup_s)

    def use(self, admission: Admission, *, hold_s: float, startup_s: float | None = None) -> None:
        """Admit by these from now on. What waits is judged by them at the next `serve`."""
        self._admission = admission
        self._hold_s = hold_s
        self._startup_s = startup_s
        self._limits_backlog = admission.max_backlog_s(None) < np.inf
        self.serves: Collection[RequestId] = self._queue.waiting if admission.bounded else ()
        """The requests that wait for capacity, which any event may free."""

    @property
    def expected_wait_s(self) -> float:
        """Expected seconds until what waits now has been dispatched."""
        return self._queue.backlog.wait_s(self._capacity.prefill_tokens_per_s())

    def admit(self, entry: Entry, now_s: float) -> list[Effect]:
        """Dispatch a request that has arrived, or whose leg has failed; otherwise hold or reject it."""
        if self._startup_s:
            self._wakes(now_s)
        if entry.failures and not self._admission.retries_wait:
            dispatch = self._dispatcher.dispatch(entry, now_s) or self._dispatcher.dispatch(entry, now_s, anyway=True)
            if dispatch is not None:
                return [dispatch]
        if not self.serves or (self._capacity.any_free() and not self._queue.has_like(entry)):
            dispatch = self._dispatcher.dispatch(entry, now_s)
            if dispatch is not None:
                return [dispatch]
        until_s = self._may_wait_until_s(entry, now_s)
        if until_s <= now_s:
            return self._give_up(entry, now_s)
        self._time_passes(now_s)
        self._queue.add(entry, until_s, now_s, held=not self._had_endpoints)
        shed = self._shed(entry, now_s)
        if entry.request.id not in self._queue:
            return shed
        return [Hold(entry.request.id), self._timers.ask(until_s), *shed]

    def serve(self, now_s: float) -> list[Effect]:
        """Dispatch waiting requests in turn while there is capacity; reject those for which it comes too late."""
        effects: list[Effect] = []
        queue = self._queue
        if len(queue):
            self._time_passes(now_s)
            if self._any_free():
                for entry in queue.in_turn(now_s):
                    dispatch = self._dispatcher.dispatch(entry, now_s)
                    if dispatch is not None:
                        queue.dispatched(entry.request.id)
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
                effects += self._give_up(entry, now_s)
        if self._limits_backlog:
            effects += self._shed_backlog(now_s)
        return effects

    def rejected(
        self, request: Request, reason: RejectReason, message: str, now_s: float, cause: ShedCause | None = None
    ) -> Reject:
        """The rejection of a request, and when it should come back."""
        backlog = self._queue.backlog
        if not self._placer.exist() and self._startup_s:
            return Reject(request.id, reason, message, self._started_s(request, now_s), cause)
        if not (self._admission.bounded and backlog.tokens):
            return Reject(request.id, reason, message, jittered_s(request.id, 0.0), cause)
        rate = backlog.rate(self._capacity.prefill_tokens_per_s())
        most_s = self._admission.max_backlog_s(request.ttft_objective_s, backlog.stood_s)
        after_s = self._returns.after_s(
            request.id,
            backlog.work(request),
            now_s,
            wait_s=max(backlog.tokens / rate - min(most_s, self._admission.max_wait_s), 0.0),
            tokens_per_s=rate,
        )
        return Reject(request.id, reason, message, after_s, cause)

    def _wakes(self, now_s: float) -> None:
        if self._placer.exist():
            self._waking_s = None
        elif self._waking_s is None:
            self._waking_s = now_s

    def _started_s(self, request: Request, now_s: float) -> float:
        """Seconds until an endpoint should be there: it starts since the first request came. One that is late is
        expected within a tenth of the usual time, over and over."""
        startup_s = self._startup_s or 0.0
        left_s = startup_s - (now_s - (now_s if self._waking_s is None else self._waking_s))
        return jittered_s(request.id, max(left_s, startup_s / 10), most_s=startup_s)

    def _shed(self, arrived: Entry, now_s: float) -> list[Effect]:
        """Reject what is too much now that this request waits, too: itself, or another that is shed first."""
        if arrived.failures:
            return []
        effects: list[Effect] = []
        if self._admission.bounded and len(self._queue) > self._admission.max_waiting:
            effects += self._shed_one(ShedCause.QUEUE_FULL, now_s)
        if self._limits_backlog and self._had_endpoints:
            if arrived.request.ttft_objective_s is not None and arrived.request.id in self._queue:
                effects += self._shed_by_objective(arrived, now_s)
            effects += self._shed_backlog(now_s)
        return effects

    def _shed_by_objective(self, arrived: Entry, now_s: float) -> list[Effect]:
        """Reject a request that cannot meet its own objective, which may be tighter than that of the others.

        What is less urgent, and what other tenants have beyond their turns, does not go before it.
        """
        request, backlog = arrived.request, self._queue.backlog
        ahead_s = backlog.ahead(request) / backlog.rate(self._capacity.prefill_tokens_per_s())
        if ahead_s <= self._admission.max_backlog_s(request.ttft_objective_s):
            return []
        self._queue.remove(request.id)
        return [self._saturated(arrived, ShedCause.BACKLOG, now_s)]

    def _shed_backlog(self, now_s: float) -> list[Effect]:
        """Reject requests while the work before the last one takes too long.

        Requests that came while no endpoint was there are not too much for endpoints: they have waited for the first
        one, and others start. They are neither counted nor shed, within the bound of requests and their time.
        """
        effects: list[Effect] = []
        queue, backlog = self._queue, self._queue.backlog
        if not backlog.tokens or not self._placer.exist():
            return effects
        most_s = self._admission.max_backlog_s(None, backlog.stood_s)
        most = most_s * backlog.rate(self._capacity.prefill_tokens_per_s())
        while len(queue) > min(queue.tenants, _LEAST_TENANTS) and (last := queue.shed_first()) is not None:
            if backlog.tokens - backlog.held_tokens - last[1] <= most or backlog.is_held(last[0].request):
                break
            effects += self._shed_one(ShedCause.BACKLOG, now_s)
        return effects

    def _shed_one(self, cause: ShedCause, now_s: float) -> list[Effect]:
        last = self._queue.shed_first()
        if last is None:
            return []
        self._queue.remove(last[0].request.id)
        return [self._saturated(last[0], cause, now_s)]

    def _saturated(self, entry: Entry, cause: ShedCause, now_s: float) -> Reject:
        self._ledger.close(entry.request.id)
        message = f"every endpoint is full and {len(self._queue)} other requests wait"
        if cause is ShedCause.BACKLOG:
            message += f" for about {self.expected_wait_s:.1f} s"
        elif cause is ShedCause.WAITED:
            message += f"; it waited {now_s - entry.arrived_s:.1f} s itself"
        return self.rejected(entry.request, RejectReason.SATURATED, f"{message}; retry later", now_s, cause)

    def _time_passes(self, now_s: float) -> None:
        """Count the time since the last call for the rate of dispatches, if there was an endpoint then."""
        backlog = self._queue.backlog
        (backlog.passes if self._had_endpoints else backlog.stands)(now_s)
        self._had_endpoints = self._placer.exist()
        if self._had_endpoints:
            self._waking_s = None

    def _any_free(self) -> bool:
        """Whether a waiting request may be dispatched now, as far as that is known without placing it."""
        if self._capacity.any_free():
            return True
        # Some may have endpoints that others do not get: those of one role for both stages (flexible ones do both
        # anyway), or ones that are kept from requests with a choice.
        placer = self._placer
        alone, last = placer.may_hand_off(), placer.keeps_some_back()
        return (alone or last) and any(
            (alone and placer.stand_ins(entry)) or (last and placer.has_last_resort(entry))
            for entry in self._queue.restricted()
        )

    def _may_wait_until_s(self, entry: Entry, now_s: float) -> float:
        """Until when it may wait: for capacity if there are endpoints, otherwise for an endpoint to appear.

        Waiting counts from its arrival, or from a failed leg. A request with a failed leg does not wait for an endpoint
        to appear.
        """
        if self._admission.bounded and self._placer.exist_for(entry):
            return (now_s if entry.failures else entry.arrived_s) + self._admission.max_wait_s
        return -np.inf if entry.failures else entry.arrived_s + self._hold_s

    def _give_up(self, entry: Entry, now_s: float) -> list[Effect]:
        if self._admission.bounded and self._placer.exist_for(entry):
            return [self._saturated(entry, ShedCause.WAITED, now_s)]
        self._ledger.close(entry.request.id)
        if entry.failures:
            tried = ", ".join(sorted(entry.avoid))
            message = f"no endpoint is left to try after {tried} failed"
            return [self.rejected(entry.request, RejectReason.UPSTREAM_FAILED, message, now_s)]
        message = "no endpoint that may serve it is ready; retry later"
        return [self.rejected(entry.request, RejectReason.NO_ENDPOINTS, message, now_s)]
