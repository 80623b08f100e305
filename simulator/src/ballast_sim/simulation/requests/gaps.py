"""Times between tokens (TBT) as clients see them: one gap for each output token after the first, of all requests.

A request's TPOT is the mean of its gaps and hides the long ones; Libra's objective is a percentile over gaps. They are
counted in bins of 0.5 % width, so that a run of millions of tokens keeps a few thousand numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_sim.simulation.requests.records import Record

_LEAST_S, _STEP = 1e-5, math.log(1.005)
_BINS = 4000  # up to 4,600 s
_PATIENCE = 4096


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
        self._uncounted: list[float] = []
        self._series: dict[int, tuple[Sequence[float], list[tuple[int, int]]]] = {}
        """By identity of ends of steps: these, and for each request the first step of its tokens and the last."""
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

    def steps(self, record: Record, ends_s: Sequence[float], start: int, stop: int) -> None:
        """A request's next tokens came with the steps `start` to `stop` of an engine, which ended at `ends_s`.

        More may be appended to `ends_s` later. The gaps between its steps are put into bins once for all requests.
        """
        if start == stop:
            return
        before_s = record.newest_token_s
        self._note(record, self._gaps(record, np.asarray(ends_s[start:stop], np.float64)))
        if before_s is not None:
            self._uncounted.append(ends_s[start] - before_s)
        series = self._series.get(id(ends_s))
        if series is None:
            series = self._series[id(ends_s)] = ends_s, []
        series[1].append((start, stop - 1))

    def together(self, record: Record, tokens: int, at_s: float) -> None:
        """A request's next tokens came all at once."""
        gaps_s = self._gaps(record, np.full(tokens, at_s))
        self._note(record, gaps_s)
        self._uncounted += gaps_s.tolist()

    def _gaps(self, record: Record, times_s: FloatArray) -> FloatArray:
        """The gaps before tokens that came at these times, which become the record's newest ones."""
        before_s = record.newest_token_s
        if not len(times_s):
            return times_s
        record.newest_token_s = float(times_s[-1])
        if before_s is None:
            return times_s[1:] - times_s[:-1]
        gaps_s = np.empty(len(times_s))
        gaps_s[0] = times_s[0] - before_s
        np.subtract(times_s[1:], times_s[:-1], out=gaps_s[1:])
        return gaps_s

    def _note(self, record: Record, gaps_s: FloatArray) -> None:
        self._sum(gaps_s)
        limit_s = self._limit_of(record)
        if limit_s < math.inf:
            late = int(np.count_nonzero(gaps_s > limit_s))
            record.late_gaps += late
            self.late += late

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
            self._sum(np.array(waiting))
            self._uncounted += waiting
            self._count_singles()

    def _sum(self, gaps_s: FloatArray) -> None:
        self._summed += len(gaps_s)
        self._sum_s += float(gaps_s.sum())

    def _count(self) -> None:
        """Put the gaps that are not in their bins yet into them."""
        self._count_singles()
        for ends_s, stretches in self._series.values():
            requests = np.zeros(len(ends_s), np.int64)
            starts, ends = np.array(stretches).T
            np.add.at(requests, starts, 1)
            np.subtract.at(requests, ends, 1)
            weights = np.cumsum(requests)[:-1]
            gaps_s = np.diff(np.asarray(ends_s[:], np.float64))
            self._counts += np.bincount(_bins(gaps_s), weights, _BINS).astype(np.int64)
        self._series.clear()

    def _count_singles(self) -> None:
        uncounted, self._uncounted = self._uncounted, []
        self._counts += np.bincount(_bins(np.array(uncounted)), minlength=_BINS)


def _bins(gaps_s: FloatArray) -> IntArray:
    steps = np.log(np.maximum(gaps_s, _LEAST_S) / _LEAST_S) / _STEP
    return np.minimum(np.ceil(steps), _BINS - 1).astype(np.int64)
