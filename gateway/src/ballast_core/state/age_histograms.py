"""Histograms of decoding requests by endpoint and age: projections over a hundred thousand requests need no more.

Ages fall into buckets that grow by about nine percent. Requests of one class and of about one limit form a group. An
update processes only the rows that have changed since the last one. All sums are of whole numbers far below 2 ** 53, so
they are the same to the last bit in whatever order requests arrive and end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.state.flights import NO_LIMIT, Flights

_STEPS_PER_DOUBLING = 8
_FIRST_AGE = 64.0
_OLDEST = 65_536
_HIGHEST_LIMIT = 2**20
"""Larger limits count as this one: no request reaches them."""


def log_bucket(value: FloatArray, first: float) -> IntArray:
    """The index of the bucket that holds a value of 0 or more; beyond `first`, buckets grow by nine percent."""
    position = value * (1.0 / first)
    position += 1.0
    np.log2(position, out=position)
    position *= _STEPS_PER_DOUBLING
    return position.astype(np.int64)


def log_middle(bucket: FloatArray, first: float) -> FloatArray:
    """The value that represents a bucket."""
    return np.asarray(first * (2.0 ** ((bucket + 0.5) / _STEPS_PER_DOUBLING) - 1.0), np.float64)


BUCKET_OF_AGE: IntArray = log_bucket(np.arange(_OLDEST + 1.0), _FIRST_AGE)
"""The bucket of each number of output tokens; the last one stands for all larger ones."""
AGES: int = int(BUCKET_OF_AGE[-1]) + 1
"""Number of age buckets; the last one holds all older requests."""
AGE_OF_BUCKET: FloatArray = log_middle(np.arange(float(AGES)), _FIRST_AGE)
"""Output tokens that represent each bucket, shape (AGES,)."""
AGE_OF_BUCKET[0] = 0.0  # most requests in the first bucket have no token yet


def _group_of(class_slots: IntArray, limit_tokens: IntArray) -> IntArray:
    """Requests of one class and of about one limit share a group, and a survival curve."""
    step = BUCKET_OF_AGE.take(limit_tokens, mode="clip")
    step[limit_tokens == NO_LIMIT] = AGES
    return class_slots * (AGES + 1) + step


def class_of(group: int) -> int:
    """The class slot of a group."""
    return group // (AGES + 1)


def is_limited(group: int) -> bool:
    """Whether the requests of a group have a limit."""
    return group % (AGES + 1) != AGES


@dataclass(slots=True, eq=False)
class AgeHistogram:
    """The decoding requests of one group. Shapes: (slots, AGES); all columns from `ages` on are empty."""

    group: int
    counts: FloatArray
    held: FloatArray
    """Sums of the tokens that requests hold: prompt and output so far."""
    squares: FloatArray
    """Sums of the squares of those tokens."""
    ages: int = 0
    total: int = 0
    """Number of its requests."""
    limits: int = 0
    """Sum of their limits."""

    @property
    def cap_tokens(self) -> float | None:
        """The mean limit of its requests, None where they have none."""
        return self.limits / self.total if is_limited(self.group) else None


class AgeHistograms:
    """The histograms of all groups. Call `update` before reading."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._watcher = flights.watch()
        self._groups: dict[int, AgeHistogram] = {}
        self._slots = 0
        # How each row was counted; rows from `_counted` on were not.
        self._counted = 0
        self._group: IntArray = np.empty(0, np.int64)
        self._cell: IntArray = np.empty(0, np.int64)
        """-1: not counted, because the request was pending."""
        self._held: FloatArray = np.empty(0)
        self._limit: IntArray = np.empty(0, np.int64)

    def __iter__(self) -> Iterator[AgeHistogram]:
        return iter(self._groups.values())

    @property
    def groups(self) -> IntArray:
        """The group of each row of the flights, pending rows included; shape (count,)."""
        return self._group[: self._counted]

    @property
    def slots(self) -> int:
        """Number of rows of each histogram: one more than the largest slot seen."""
        return self._slots

    def update(self) -> None:
        """Count the rows that have changed since the last update."""
        count, changed = self._flights.count, self._flights.changes(self._watcher)
        if not len(changed) and count == self._counted:
            return
        before = changed[: np.searchsorted(changed, self._counted)]
        if count < self._counted:
            before = np.concatenate([before, np.arange(count, self._counted)])
        self._count(before, -1)
        self._grow(count)
        self._counted = count
        if len(changed):
            self._classify(changed)
            self._count(changed, 1)

    def _classify(self, rows: IntArray) -> None:
        """Set how these rows are counted: their cell, group, held tokens and limit."""
        flights = self._flights
        generated, slots, limits = flights.generated_tokens[rows], flights.slot[rows], flights.limit_tokens[rows]
        cells = slots * AGES + BUCKET_OF_AGE.take(generated, mode="clip")
        cells[~flights.decoding[rows]] = -1
        self._cell[rows] = cells
        self._group[rows] = _group_of(flights.class_slot[rows], limits)
        self._held[rows] = generated + flights.prompt_tokens[rows]
        self._limit[rows] = np.minimum(limits, _HIGHEST_LIMIT)
        self._reach(int(slots.max()) + 1)

    def _reach(self, slots: int) -> None:
        """Have a row for each of so many slots."""
        if slots > self._slots:
            self._slots = slots
            for histogram in self._groups.values():
                histogram.counts, histogram.held, histogram.squares = (
                    np.concatenate([each, np.zeros((slots - len(each), AGES))])
                    for each in (histogram.counts, histogram.held, histogram.squares)
                )

    def _count(self, rows: IntArray, sign: int) -> None:
        """Count rows in (1) or out (-1)."""
        rows = rows[self._cell[rows] >= 0]
        for group, chosen in by_group(self._group[rows]):
            self._count_group(group, rows[chosen], sign)

    def _histogram(self, group: int) -> AgeHistogram:
        histogram = self._groups.get(group)
        if histogram is None:
            counts, held, squares = np.zeros((3, self._slots, AGES))
            histogram = self._groups[group] = AgeHistogram(group, counts, held, squares)
        return histogram

    def _count_group(self, group: int, rows: IntArray, sign: int) -> None:
        histogram = self._histogram(group)
        cells, held = self._cell[rows], self._held[rows]
        signed = sign * held
        np.add.at(histogram.counts.reshape(-1), cells, float(sign))
        np.add.at(histogram.held.reshape(-1), cells, signed)
        np.add.at(histogram.squares.reshape(-1), cells, signed * held)
        histogram.total += sign * len(rows)
        histogram.limits += sign * int(self._limit[rows].sum())
        if sign > 0:
            histogram.ages = max(histogram.ages, int((cells % AGES).max()) + 1)
        elif not histogram.total:
            del self._groups[group]

    def _grow(self, rows: int) -> None:
        if rows > len(self._group):
            more = 2 * rows - len(self._group)
            self._group = np.concatenate([self._group, np.full(more, -1)])
            self._cell = np.concatenate([self._cell, np.zeros(more, np.int64)])
            self._held = np.concatenate([self._held, np.zeros(more)])
            self._limit = np.concatenate([self._limit, np.zeros(more, np.int64)])


def by_group(groups: IntArray) -> Iterator[tuple[int, slice | IntArray]]:
    """Each group once, with the indices of its members. One group for all is the usual case, and checked first."""
    if not len(groups):
        return
    first = int(groups[0])
    if (groups == first).all():
        yield first, slice(None)
        return
    for group in np.unique(groups).tolist():
        yield group, np.flatnonzero(groups == group)
