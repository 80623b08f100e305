"""The timers that a driver was asked for: one that fires too soon is asked for anew, so that no moment is missed.

Clocks of loops are coarser than ours: uvloop counts whole milliseconds, and its timers fire a little early.
"""

from __future__ import annotations

from heapq import heappop, heappush

from ballast_core.model.effects import Effect, WakeAt


class Timers:
    """Times in seconds on the Director's clock. Each timer fires once; they are taken to fire in order."""

    def __init__(self) -> None:
        self._asked_s: list[float] = []
        """Of timers that have not fired, a heap."""

    def ask(self, at_s: float) -> WakeAt:
        """The effect that asks for one more."""
        heappush(self._asked_s, at_s)
        return WakeAt(at_s)

    def fired(self, now_s: float) -> list[Effect]:
        """One has fired: asks for it again if its time has not come."""
        if not self._asked_s:
            return []
        if self._asked_s[0] > now_s:
            return [WakeAt(self._asked_s[0])]
        heappop(self._asked_s)
        return []
