"""Times between tokens (TBT) as clients see them: one gap for each output token after the first, of all requests.

A request's TPOT is the mean of its gaps and hides the long ones; Libra's objective is a percentile over gaps. They are
counted in bins of 0.5 % width, so that a run of millions of tokens keeps a few thousand numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_sim.simulation.requests.records import Record

_LEAST_S, _STEP = 1e-5, math.log(1.005)
_BINS = 4000  # up to 4,600 s
_PATIENCE = 4096
_TOGETHER = 65_536
"""Gaps that are put into bins at a time."""


class TokenGaps:
    """The gaps of one run. With `limit_s` each record also counts its own gaps that were longer.

    A segment with a looser objective, such as the thinking part of an answer, is measured by that one.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        """Start with no gap."""
        self._limit_s = math.inf if limit_s is None else limit_s
        self._counts = np.zeros(_BINS, np.int64)
        self._waiting: list[float] = []
        self._sum_s = 0.0
        self._summed = 0
        self._uncounted: list[FloatArray] = []
        self._in_bins = 0
        self.late = 0
        """Gaps above the limit."""

    def token(self, record: Record, at_s: float) -> None:
        """A request's next token came."""
        before_s, record.newest_token_s = record.newest_token_s, at_s
        if before_s is None:
            return
        gap_s = at_s - before_s
        self._waiting.append(gap_s)
        if gap_s > self._limit_of(record):
            record.late_gaps += 1
            self.late += 1
        if len(self._waiting) >= _PATIENCE:
            self._take_in()

    def tokens(self, record: Record, times_s: Sequence[float] | FloatArray) -> None:
        """A request's next tokens came at these times."""
        times = np.asarray(times_s, np.float64)
        if not len(times):
            return
        before_s, record.newest_token_s = record.newest_token_s, float(times[-1])
        if before_s is None:
            gaps = times[1:] - times[:-1]
        else:
            gaps = np.empty(len(times))
            gaps[0] = times[0] - before_s
            np.subtract(times[1:], times[:-1], out=gaps[1:])
        limit_s = self._limit_of(record)
        if limit_s < math.inf:
            late = int(np.count_nonzero(gaps > limit_s))
            record.late_gaps += late
            self.late += late
        self._add(gaps)

    def together(self, record: Record, tokens: int, at_s: float) -> None:
        """A request's next tokens came all at once."""
        self.tokens(record, np.full(tokens, at_s))

    def _limit_of(self, record: Record) -> float:
        """The limit in seconds for the segment that runs now (Libra section 4.4), or for the whole run."""
        relaxed_s = None if record.split is None else record.split.segment.tbt_slo_s
        return self._limit_s if relaxed_s is None else max(relaxed_s, self._limit_s)

    @property
    def late_ratio(self) -> float | None:
        """Share of the gaps that were longer than the limit; None without gaps or without a limit."""
        return self.late / self.count if self.count and math.isfinite(self._limit_s) else None

    @property
    def count(self) -> int:
        """Gaps seen."""
        return self._summed + len(self._waiting)

    def distribution(self, shares: dict[str, float]) -> dict[str, float | None]:
        """Mean (exact) and percentiles (to within 0.5 %, and nearest rank); None where there is no gap."""
        self._take_in()
        self._count()
        if not self._summed:
            return dict.fromkeys(("mean", *shares))
        sums = np.cumsum(self._counts)
        found: dict[str, float | None] = {"mean": self._sum_s / self._summed}
        for name, share in shares.items():
            rank = max(1, math.ceil(share / 100 * self._summed))
            index = int(np.searchsorted(sums, rank))
            found[name] = 0.0 if index == 0 else _LEAST_S * math.exp((index - 0.5) * _STEP)
        return found

    def _take_in(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._add(np.array(waiting))

    def _add(self, gaps_s: FloatArray) -> None:
        self._summed += len(gaps_s)
        self._sum_s += float(gaps_s.sum())
        self._uncounted.append(gaps_s)
        if self._summed - self._in_bins >= _TOGETHER:
            self._count()

    def _count(self) -> None:
        """Put the gaps that are not yet there into their bins."""
        uncounted, self._uncounted, self._in_bins = self._uncounted, [], self._summed
        if uncounted:
            steps = np.log(np.maximum(np.concatenate(uncounted), _LEAST_S) / _LEAST_S) / _STEP
            bins = np.minimum(np.ceil(steps), _BINS - 1).astype(np.int64)
            self._counts += np.bincount(bins, minlength=_BINS)
