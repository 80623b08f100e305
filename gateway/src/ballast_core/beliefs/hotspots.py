"""LMetric's two-phase hotspot detector (section 5.2): a prefix that attracts more requests than its holders can serve.

A request's class is its first prefix block: a system prompt or a conversation. For class c, let x be its share of all
requests in the window (about a minute), and M the set of candidates that hold its prefix.

Phase one: x / (1 - x) > |M| / |not M| (Eq. 2 violated). Phase two: while that holds, more than 2 |M| consecutive
requests of the class still cost less on M than on all other candidates (Eq. 4). Then M is filtered out for the class.

The paper does not state when a filter ends. Here it ends when phase one no longer holds, since the holders can then
serve the class's share. Without candidates outside M there is no alarm. The paper's printed Eq. 3 is wrong (both
denominators are |not M|); Eq. 2 is used.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ballast_core.arrays import BoolArray, FloatArray

WINDOW_S = 60.0
_TRACKED = 4096
"""Classes counted in each half of the window; if there are more, only the most frequent are kept."""


class HotspotDetector:
    """Counts classes and their runs. One update per request, each with its time."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        if not window_s > 0:
            raise ValueError(f"window_s: must be above 0, not {window_s!r}")
        self.window_s = window_s
        self._halves: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
        """The current half of the window and the previous one."""
        self._half = -1
        self._runs: dict[int, int] = {}
        """Phase two: consecutive requests of a class that cost less on its holders."""

    def arrived(self, prefix_class: int | None, now_s: float) -> None:
        """A request arrived; None if it has no whole prefix block."""
        self._turn(now_s)
        current = self._halves[0]
        current[-1] += 1  # all requests; hashes are never negative
        if prefix_class is not None:
            current[prefix_class] += 1
            if len(current) > 2 * _TRACKED:
                self._halves = (Counter(dict(current.most_common(_TRACKED))), self._halves[1])

    def _turn(self, now_s: float) -> None:
        half = int(now_s // (self.window_s / 2))
        if half == self._half:
            return
        before = self._halves[0] if half == self._half + 1 else Counter[int]()
        self._halves, self._half = (Counter(), before), half
        self._runs = {known: run for known, run in self._runs.items() if known in before}

    def share(self, prefix_class: int) -> float:
        """x: the class's share of the requests in the window, 0 to 1."""
        current, before = self._halves
        total = current[-1] + before[-1]
        return (current[prefix_class] + before[prefix_class]) / total if total else 0.0

    def alarmed(self, prefix_class: int, holders: int, others: int) -> bool:
        """Phase one, for |M| holders and |not M| others."""
        if holders == 0 or others == 0:
            return False
        share = self.share(prefix_class)
        return share * others > (1.0 - share) * holders

    def filtered(self, prefix_class: int, held: BoolArray) -> bool:
        """Whether the holders (True in `held`) are excluded for a request of this class."""
        holders = int(held.sum())
        return self._runs.get(prefix_class, 0) > 2 * holders and self.alarmed(
            prefix_class, holders, len(held) - holders
        )

    def placed(self, prefix_class: int, held: BoolArray, costs: FloatArray) -> None:
        """A placement gave a request of the class these costs. Phase two counts it, or starts again."""
        holders = int(held.sum())
        if not self.alarmed(prefix_class, holders, len(held) - holders):
            self._runs.pop(prefix_class, None)
        elif not self.filtered(prefix_class, held):
            cheaper = float(costs[held].min()) < float(np.min(costs[~held]))
            self._runs[prefix_class] = self._runs.get(prefix_class, 0) + 1 if cheaper else 0
