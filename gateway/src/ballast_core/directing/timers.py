"""The timers that a driver keeps for the Director. One that fires too early is set again, so that no time is missed.

Event loops have coarser clocks than ours: uvloop counts whole milliseconds, and its timers fire slightly early.
"""

from __future__ import annotations

from heapq import heappop, heappush

from ballast_core.model.effects import Effect, WakeAt


class Timers:
    """Times in seconds on the Director's clock. Each timer fires once; they are assumed to fire in order."""

    def __init__(self) -> None:
        self._asked_s: list[float] = []
        """Times of the timers that have not fired, a heap."""

    def ask(self, at_s: float) -> WakeAt:
        """Add a timer; returns the effect that sets it."""
        heappush(self._asked_s, at_s)
        return WakeAt(at_s)

    def fired(self, now_s: float) -> list[Effect]:
        """A timer has fired: set it again if its time has not come."""
        if not self._asked_s:
            return []
        if self._asked_s[0] > now_s:
            return [WakeAt(self._asked_s[0])]
        heappop(self._asked_s)
        return []
