"""Counts over the last minutes, in a ring of slots of a few seconds: memory and the work of a request are fixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ballast_core.attainment.counts import Counts
from ballast_core.attainment.objective import Judgement, Threshold

WINDOWS_S: Final = (60, 300, 1800, 3600)
"""The spans that are counted over, in seconds."""
SLOT_S: Final = 5
"""Seconds of one slot: a window reaches back at most so much less than its length."""
_SLOTS: Final = WINDOWS_S[-1] // SLOT_S
_WITHIN, _OUTSIDE, _UNKNOWN = 0, 1, 2
_COLUMNS: Final = 3 * len(Threshold)


class Windows:
    """The requests of one objective by the time of their end. Times are seconds on one clock."""

    __slots__ = ("_latest", "_now", "_ring", "totals")

    def __init__(self) -> None:
        self.totals = [0] * _COLUMNS
        """Since the beginning: three columns (within, outside, unknown) for each `Threshold`."""
        self._ring = np.zeros((_SLOTS, _COLUMNS), np.int64)
        self._latest = [0] * _COLUMNS
        """Of the slot that is not over."""
        self._now = -1
        """Its number."""

    def count(self, judgement: Judgement, now_s: float) -> None:
        """One more request has ended."""
        slot = int(now_s // SLOT_S)
        if slot > self._now:
            self._turn(slot)
        totals, latest, column = self.totals, self._latest, 0
        for within in judgement:
            at = column + (_UNKNOWN if within is None else _WITHIN if within else _OUTSIDE)
            totals[at] += 1
            latest[at] += 1
            column += 3

    def over(self, now_s: float) -> Mapping[int, Mapping[Threshold, Counts]]:
        """What was counted in each of `WINDOWS_S`."""
        slot = int(now_s // SLOT_S)
        if slot > self._now:
            self._turn(slot)
        newest_first = self._ring[np.arange(self._now - 1, self._now - _SLOTS, -1) % _SLOTS]
        latest = np.array(self._latest)
        return {
            window_s: by_threshold((latest + newest_first[: window_s // SLOT_S - 1].sum(axis=0)).tolist())
            for window_s in WINDOWS_S
        }

    def _turn(self, slot: int) -> None:
        """Close the slot that was counted in, and empty those that passed since."""
        if self._now >= 0:
            self._ring[self._now % _SLOTS] = self._latest
            for passed in range(self._now + 1, min(slot, self._now + _SLOTS) + 1):
                self._ring[passed % _SLOTS] = 0
        self._latest = [0] * _COLUMNS
        self._now = slot


def by_threshold(columns: list[int]) -> Mapping[Threshold, Counts]:
    """Three columns for each threshold, as counts."""
    return {each: Counts(*columns[3 * each : 3 * each + 3]) for each in Threshold}
