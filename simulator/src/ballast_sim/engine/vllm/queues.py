"""Waiting queues of the two policies (vLLM's v1/core/sched/request_queue.py)."""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from ballast_sim.engine.requests import RequestState


class WaitingQueue(Protocol):
    """Requests that wait for admission, in the policy's order; vLLM's RequestQueue."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[RequestState]: ...
    def add(self, state: RequestState) -> None: ...
    def peek(self) -> RequestState: ...
    def pop(self) -> RequestState: ...
    def prepend(self, state: RequestState) -> None: ...
    def put_back(self, skipped: Sequence[RequestState]) -> None: ...
    def remove(self, state: RequestState) -> None: ...
    def reorder(self) -> None: ...


class FcfsQueue(deque[RequestState]):
    """First come, first served; preempted requests go to the front."""

    __slots__ = ()

    def add(self, state: RequestState) -> None:
        """To the end."""
        self.append(state)

    def peek(self) -> RequestState:
        """The next request."""
        return self[0]

    def pop(self) -> RequestState:  # type: ignore[override]
        """Remove and return the next request."""
        return self.popleft()

    def prepend(self, state: RequestState) -> None:
        """To the front."""
        self.appendleft(state)

    def put_back(self, skipped: Sequence[RequestState]) -> None:
        """To the front, in the order given."""
        self.extendleft(reversed(skipped))

    def reorder(self) -> None:
        """Nothing to do: the order of arrival does not change."""


class PriorityQueue:
    """By `RequestState.key`, smallest first; a preempted request goes where its key puts it."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        """Empty."""
        self._heap: list[RequestState] = []

    def __len__(self) -> int:
        """Requests in the queue."""
        return len(self._heap)

    def __iter__(self) -> Iterator[RequestState]:
        """In order of service."""
        return iter(sorted(self._heap))

    def add(self, state: RequestState) -> None:
        """By its key."""
        heapq.heappush(self._heap, state)

    def peek(self) -> RequestState:
        """The next request."""
        return self._heap[0]

    def pop(self) -> RequestState:
        """Remove and return the next request."""
        return heapq.heappop(self._heap)

    def prepend(self, state: RequestState) -> None:
        """By its key."""
        heapq.heappush(self._heap, state)

    def put_back(self, skipped: Sequence[RequestState]) -> None:
        """By their keys."""
        for state in skipped:
            heapq.heappush(self._heap, state)

    def remove(self, state: RequestState) -> None:
        """Remove a request from any position."""
        self._heap.remove(state)
        heapq.heapify(self._heap)

    def reorder(self) -> None:
        """Restore the order after keys have changed."""
        heapq.heapify(self._heap)
