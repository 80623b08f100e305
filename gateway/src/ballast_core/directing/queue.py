"""The queue of a gateway: which requests wait for capacity, in which order they are dispatched, and until when.

Requests that may go to the same endpoints share a room. If the first request of a room finds no capacity, no other one
of that room does. So a decision looks at one request of each room, however many wait. In a room, turns go round between
tenants, and the order decides within each tenant.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.rates import PREFILL_RATES
from ballast_core.directing.backlog import Backlog
from ballast_core.directing.fair_room import FairRoom
from ballast_core.directing.turns import Turns
from ballast_core.model import EndpointId, Request, RequestId, Stage
from ballast_core.policies.queue.engine_priority import engine_priority
from ballast_core.policies.queue.protocol import QueueOrder, Service, Work
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry

_SERVICE_EVERY_S = 1.0
_REKEY_RATIO = 0.05

_Reach: TypeAlias = tuple[frozenset[str] | None, frozenset[EndpointId], frozenset[int]]
"""Where a request may go: its subset, the endpoints that it avoids, and the slots that do not serve its model."""


@dataclass(slots=True)
class _Waiting:
    entry: Entry
    until_s: float
    reach: _Reach
    work: int


class Queue:
    """The waiting requests. Times are seconds on the Director's clock."""

    def __init__(
        self, order: QueueOrder, beliefs: Beliefs, inventory: Inventory, lacking: Callable[[str, str], frozenset[int]]
    ) -> None:
        """`lacking`: the slots that do not serve a model of a root."""
        self.order = order
        self._lacking = lacking
        self._beliefs = beliefs
        self._inventory = inventory
        self.waiting: dict[RequestId, _Waiting] = {}
        """Always this one: whoever asks at every event whether anything waits keeps it."""
        self.backlog = Backlog()
        """The waiting work."""
        self._turns = Turns()
        self._rooms: dict[_Reach, FairRoom] = {}
        self._ends: list[tuple[float, RequestId]] = []
        """(until, request), a heap; outdated entries are dropped when they reach its top."""
        self._learned = order.learned()
        self._default = Service(
            prefill_tokens_per_s=PREFILL_RATES.default_tokens_per_s,
            decode_tokens_per_s=beliefs.rates.settings.default_tokens_per_s,
        )
        self.service = self._default
        """The service rates with which keys are computed."""
        self._keyed_with = self.service
        self._service_at_s = -np.inf
        self._start_s: float | None = None

    def __len__(self) -> int:
        return len(self.waiting)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self.waiting

    # --- waiting requests ---------------------------------------------------------------------------------------

    def add(self, entry: Entry, until_s: float, now_s: float, *, held: bool = False) -> None:
        """Let a request wait until `until_s`; `held`: no endpoint is there. Raises `ValueError` if it waits already."""
        request = entry.request
        if request.id in self.waiting:
            raise ValueError(f"request id {request.id!r} waits already")
        self._refresh(now_s)
        reach = self._reach(entry)
        room = self._room(reach)
        self._turns.joins(request.tenant)
        room.add(request.id, request.tenant, self._work(entry, self._cached_somewhere(request)), self.service)
        work = self.backlog.work(request)
        self.waiting[request.id] = _Waiting(entry, until_s, reach, work)
        if not entry.failures:
            self.backlog.add(request, work, now_s, held=held)
        heapq.heappush(self._ends, (until_s, request.id))

    def remove(self, request_id: RequestId) -> bool:
        """Remove a request; False if it did not wait."""
        waiting = self.waiting.pop(request_id, None)
        if waiting is None:
            return False
        room, request = self._rooms[waiting.reach], waiting.entry.request
        room.remove(request_id, request.tenant)
        if not room:
            del self._rooms[waiting.reach]
        self._turns.leaves(request.tenant)
        self.backlog.remove(request)
        if len(self._ends) > 2 * len(self.waiting) + 64:
            self._ends = [(each.until_s, each_id) for each_id, each in self.waiting.items()]
            heapq.heapify(self._ends)
        return True

    @property
    def tenants(self) -> int:
        """How many tenants wait."""
        return len(self._turns)

    def dispatched(self, request_id: RequestId) -> None:
        """Remove a waiting request because it has been dispatched: its tenant had its turn."""
        waiting = self.waiting[request_id]
        self._turns.served(waiting.entry.request.tenant, waiting.work)
        self.backlog.dispatched(waiting.work)
        self.remove(request_id)

    def shed_first(self) -> tuple[Entry, int] | None:
        """The request that is shed first, and its work; None if none may be shed. Those that have failed may not."""
        found = self.backlog.last()
        return None if found is None else (self.waiting[found[0]].entry, found[1])

    def in_turn(self, now_s: float) -> Iterator[Entry]:
        """The requests to try next, in order. One that the caller does not remove ends the turn of its room."""
        if not self.waiting:
            return
        self._refresh(now_s)
        stuck: set[_Reach] = set()
        while True:
            ranked = [
                (rank, reach)
                for reach, room in self._rooms.items()
                if reach not in stuck and (rank := room.first_rank()) is not None
            ]
            for rank, reach in sorted(ranked, key=lambda each: each[0]):
                request_id = RequestId(rank[4])
                yield self.waiting[request_id].entry
                if request_id not in self.waiting:
                    break  # turns have gone on
                stuck.add(reach)
            else:
                return

    def has_like(self, entry: Entry) -> bool:
        """Whether another request waits that may go to the same endpoints: its turn may come first."""
        return self._reach(entry) in self._rooms

    def restricted(self) -> Iterator[Entry]:
        """One request of each room whose requests may not go everywhere."""
        for (subset, avoid, lacking), room in self._rooms.items():
            if (subset is not None or avoid or lacking) and (rank := room.first_rank()) is not None:
                yield self.waiting[RequestId(rank[4])].entry

    def expired(self, now_s: float) -> list[Entry]:
        """The requests that have waited too long, by the end of their wait; they stay in the queue."""
        over: dict[RequestId, Entry] = {}  # one that left and came back at the same time has two items with one end
        while self._ends and self._ends[0][0] <= now_s:
            until_s, request_id = heapq.heappop(self._ends)
            waiting = self.waiting.get(request_id)
            if waiting is not None and waiting.until_s == until_s:
                over[request_id] = waiting.entry
        return list(over.values())

    def extend(self, request_id: RequestId, until_s: float) -> None:
        """Let a request that had expired wait longer."""
        self.waiting[request_id].until_s = until_s
        heapq.heappush(self._ends, (until_s, request_id))

    def use(self, order: QueueOrder, now_s: float) -> None:
        """Let this order decide from now on; whoever waits goes on waiting, in the new order."""
        self.order, self._learned = order, order.learned()
        self._service_at_s = -np.inf
        self._start_s = None
        self._refresh(now_s)
        self._keyed_with = self.service
        self.regroup()

    def regroup(self) -> None:
        """Endpoints may serve other models now: put all that wait into rooms anew."""
        self._rooms = {}
        for request_id, waiting in self.waiting.items():
            request = waiting.entry.request
            waiting.reach = self._reach(waiting.entry)
            work = self._work(waiting.entry, self._cached_somewhere(request))
            self._room(waiting.reach).add(request_id, request.tenant, work, self.service)

    def _reach(self, entry: Entry) -> _Reach:
        return entry.request.subset, entry.avoid, self._lacking(entry.request.model, entry.root)

    def _room(self, reach: _Reach) -> FairRoom:
        room = self._rooms.get(reach)
        if room is None:
            room = self._rooms[reach] = FairRoom(self.order, self._turns)
        return room

    # --- order --------------------------------------------------------------------------------------------------

    def first_token(self, entry: Entry, now_s: float) -> None:
        """The client has received its first token."""
        if self._learned.first_token(now_s - entry.arrived_s):
            self._service_at_s = -np.inf

    def completed(self, entry: Entry, output_tokens: int, now_s: float) -> None:
        """The request has completed after this many output tokens; 0 if that is not known."""
        self.backlog.completed(output_tokens)
        if self._learned.completed(now_s - entry.arrived_s):
            self._service_at_s = -np.inf

    def priority(self, entry: Entry, slot: int, now_s: float) -> int | None:
        """The engine priority of a request that is prefilled in this slot; None: the order sets no priority."""
        if not self.order.engine_priority:
            return None
        self._refresh(now_s)
        if self._start_s is None:
            self._start_s = now_s
        service = self.service
        if Belief.PREFILL_TIMES in self._beliefs.kinds:
            rate = float(self._beliefs.prefill_times.tokens_per_s(np.array([slot]))[0])
            service = replace(service, prefill_tokens_per_s=rate)
        return engine_priority(self.order, self._work(entry, entry.prefill.cached_tokens), service, self._start_s)

    def _work(self, entry: Entry, cached_tokens: int) -> Work:
        request = entry.request
        objective_s = request.ttft_objective_s
        return Work(
            arrived_s=entry.arrived_s,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=cached_tokens,
            expected_output_tokens=request.expected_output_tokens,
            deadline_s=None if objective_s is None else entry.arrived_s + objective_s,
            priority=request.priority,
        )

    def _cached_somewhere(self, request: Request) -> int:
        """Leading tokens of its prompt that the best endpoint is believed to hold."""
        if not request.names_prefix or not self._beliefs.knows_prefixes:
            return 0
        return int(self._beliefs.cached_tokens(request, self._inventory.known_slots()).max(initial=0))

    def _refresh(self, now_s: float) -> None:
        """Update rates and gamma from time to time, and recompute all keys if they have changed by enough."""
        if now_s - self._service_at_s < _SERVICE_EVERY_S:
            return
        self._service_at_s = now_s
        self.service = Service(
            prefill_tokens_per_s=self._prefill_rate(),
            decode_tokens_per_s=self._decode_rate(now_s),
            gamma_per_s=self._learned.gamma_per_s,
        )
        if not self.waiting or not self.order.needs:  # no key to recompute, or none depends on the rates
            self._keyed_with = self.service
        elif _moved(self._keyed_with, self.service):
            self._keyed_with = self.service
            for room in self._rooms.values():
                room.rekey(self.service)
        else:
            self.service = self._keyed_with

    def _prefill_rate(self) -> float:
        slots = self._inventory.candidates(Stage.PREFILL).slots
        if Belief.PREFILL_TIMES not in self._beliefs.kinds or not len(slots):
            return self._default.prefill_tokens_per_s
        return float(self._beliefs.prefill_times.tokens_per_s(slots).mean())

    def _decode_rate(self, now_s: float) -> float:
        if Belief.RATES not in self._beliefs.kinds:
            return self._default.decode_tokens_per_s
        return self._beliefs.rates.pool_tokens_per_s(now_s)


def _moved(before: Service, after: Service) -> bool:
    if (before.gamma_per_s is None) is not (after.gamma_per_s is None):
        return True
    pairs = (
        (before.prefill_tokens_per_s, after.prefill_tokens_per_s),
        (before.decode_tokens_per_s, after.decode_tokens_per_s),
        (before.gamma_per_s or 1.0, after.gamma_per_s or 1.0),
    )
    return any(abs(new - old) > _REKEY_RATIO * old for old, new in pairs)
