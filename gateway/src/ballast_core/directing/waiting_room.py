"""Waiting requests in an order: a heap whose outdated items are dropped when they reach its top."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ballast_core.model import RequestId
from ballast_core.policies.queue.protocol import QueueOrder, Service, Work
from ballast_core.policies.queue.ranking import Rank

_Item = tuple[int, float, float, str, int, Work]
_SLACK = 64


class WaitingRoom:
    """Adds, takes and removes in O(log n) time, amortised; `rekey` is O(n)."""

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._works: dict[RequestId, Work] = {}
        self._heap: list[_Item] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._works

    def __iter__(self) -> Iterator[RequestId]:
        """The waiting requests, in no particular order."""
        return iter(self._works)

    def add(self, request_id: RequestId, work: Work, service: Service) -> None:
        """Add a request; its work must not change while it waits. Raises `ValueError` if it waits already."""
        if request_id in self._works:
            raise ValueError(f"request id {request_id!r} waits already")
        self._works[request_id] = work
        key = self._order.key(work, service)
        self._added += 1  # distinguishes a request that left and returned from its former item
        heapq.heappush(self._heap, (work.priority, key, work.arrived_s, request_id, self._added, work))

    def first(self) -> RequestId | None:
        """The first request; None if none waits."""
        heap, works = self._heap, self._works
        while heap:
            request_id = RequestId(heap[0][3])
            if works.get(request_id) is heap[0][5]:
                return request_id
            heapq.heappop(heap)
        return None

    def first_rank(self) -> Rank | None:
        """The rank of the first request; None if none waits."""
        return None if self.first() is None else self._heap[0][:4]

    def pop(self) -> RequestId | None:
        """Remove and return the first request; None if none waits."""
        request_id = self.first()
        if request_id is not None:
            heapq.heappop(self._heap)
            del self._works[request_id]
        return request_id

    def remove(self, request_id: RequestId) -> bool:
        """Remove a request; False if it did not wait."""
        if self._works.pop(request_id, None) is None:
            return False
        if len(self._heap) > 2 * len(self._works) + _SLACK:
            self._heap = [item for item in self._heap if self._works.get(RequestId(item[3])) is item[5]]
            heapq.heapify(self._heap)
        return True

    def rekey(self, service: Service) -> None:
        """Recompute all keys."""
        works = self._works
        keys = self._order.keys(list(works.values()), service).tolist()
        self._heap = [
            (work.priority, key, work.arrived_s, request_id, 0, work)
            for (request_id, work), key in zip(works.items(), keys, strict=True)
        ]
        heapq.heapify(self._heap)
