"""The waiting requests that may go to the same endpoints: turns go round between tenants, an order within each."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TypeAlias

from ballast_core.directing.turns import Turns
from ballast_core.directing.waiting_room import WaitingRoom
from ballast_core.model import RequestId
from ballast_core.policies.queue.protocol import QueueOrder, Service, Work

FairRank: TypeAlias = tuple[int, float, float, float, str]
"""(the request's own priority, its tenant's tag, key, arrival, id); the smallest goes first."""

_SLACK = 64


class FairRoom:
    """One waiting room for each tenant. Adds, takes and removes in O(log n) time, amortised; `rekey` is O(n).

    The heap holds the first request of each tenant as it ranked when that was last looked at. A tag or a rank only
    grows while nothing is added, so an item that is outdated is pushed again with its new rank when it reaches the top.
    """

    def __init__(self, order: QueueOrder, turns: Turns) -> None:
        self._order = order
        self._turns = turns
        self._rooms: dict[str, WaitingRoom] = {}
        self._heap: list[tuple[FairRank, str]] = []

    def __bool__(self) -> bool:
        return bool(self._rooms)

    def __iter__(self) -> Iterator[RequestId]:
        """The waiting requests, in no particular order."""
        return (request_id for room in self._rooms.values() for request_id in room)

    def add(self, request_id: RequestId, tenant: str, work: Work, service: Service) -> None:
        """Add a request of a tenant that has joined the turns. Raises `ValueError` if it waits already."""
        room = self._rooms.get(tenant)
        if room is None:
            room = self._rooms[tenant] = WaitingRoom(self._order)
        room.add(request_id, work, service)
        if room.first() == request_id:
            self._push(tenant)

    def first_rank(self) -> FairRank | None:
        """The rank of the request whose turn it is; None if none waits."""
        heap = self._heap
        while heap:
            seen, tenant = heap[0]
            rank = self._rank(tenant)
            if rank == seen:
                return rank
            if rank is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (rank, tenant))
        return None

    def remove(self, request_id: RequestId, tenant: str) -> None:
        """Remove a request, if it waits."""
        room = self._rooms.get(tenant)
        if room is not None:
            room.remove(request_id)
            if not room:
                del self._rooms[tenant]

    def rekey(self, service: Service) -> None:
        """Recompute all keys."""
        for room in self._rooms.values():
            room.rekey(service)
        self._rank_anew()

    def _rank(self, tenant: str) -> FairRank | None:
        room = self._rooms.get(tenant)
        rank = None if room is None else room.first_rank()
        return None if rank is None else (rank[0], self._turns.tag(tenant), *rank[1:])

    def _push(self, tenant: str) -> None:
        if len(self._heap) > 2 * len(self._rooms) + _SLACK:
            self._rank_anew()
        elif (rank := self._rank(tenant)) is not None:
            heapq.heappush(self._heap, (rank, tenant))

    def _rank_anew(self) -> None:
        self._heap = [(rank, tenant) for tenant in self._rooms if (rank := self._rank(tenant)) is not None]
        heapq.heapify(self._heap)
