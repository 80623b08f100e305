"""A clock for an engine-sim that stands still until a test moves it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(order=True)
class _Call:
    when_s: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """A `ballast_sim.engine_sim.service.Clock`; starts at 0."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._calls: list[_Call] = []
        self._number = 0

    def time(self) -> float:
        """Seconds."""
        return self._now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> _Call:
        """Call back when the clock is moved there."""
        self._number += 1
        call = _Call(max(when_s, self._now_s), self._number, callback)
        heapq.heappush(self._calls, call)
        return call

    def advance(self, until_s: float) -> None:
        """Go on to `until_s`, calling back on the way."""
        while self._calls and self._calls[0].when_s <= until_s:
            call = heapq.heappop(self._calls)
            if not call.cancelled:
                self._now_s = call.when_s
                call.callback()
        if until_s < math.inf:
            self._now_s = until_s

    @property
    def idle(self) -> bool:
        """Whether no call is left."""
        return all(call.cancelled for call in self._calls)
