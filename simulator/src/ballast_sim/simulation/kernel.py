"""The discrete-event kernel: a heap of (time, priority, sequence) with a call for each entry."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Action: TypeAlias = Callable[[], None]


class Kernel:
    """Runs actions in order of time; at one time in order of priority (lower first), then as they were scheduled."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, int, Action]] = []
        self._sequence = 0

    def at(self, time_s: float, action: Action, priority: int = 0) -> None:
        """Schedule an action. Raises `ValueError` for a time that has passed."""
        if not time_s >= self.now_s:
            raise ValueError(f"time_s: {time_s!r} lies before now, {self.now_s!r}")
        self._sequence += 1
        heapq.heappush(self._heap, (time_s, priority, self._sequence, action))

    def run(self, until_s: float = float("inf"), stop: Callable[[], bool] | None = None) -> None:
        """Run until the heap is empty, the time is over, or `stop`, called after each action, returns True."""
        heap, pop = self._heap, heapq.heappop
        with _no_collection():
            while heap and heap[0][0] <= until_s:
                self.now_s, _, _, action = pop(heap)
                action()
                if stop is not None and stop():
                    return


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no reference cycles: a run makes next to none, and every collection walks all that the run holds."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
