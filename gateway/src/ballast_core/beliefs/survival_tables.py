"""Survival curves of output length as tables, looked up for a hundred thousand requests in one numpy pass.

S(x) = P(L > x) of one traffic class is given at the bucket boundaries 0, step, 2 step, ... (SIBYL section 4.2) and
linear in between. `end` is the first boundary where S is below a floor, or else the last boundary. Beyond `end` the
curve continues as an exponential: no ratio divides by a vanishing S, and a request that is older than all observed ones
still has a finite expectation. All lengths and ages are in output tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ballast_core import kernel
from ballast_core.arrays import FloatArray

IndexArray: TypeAlias = NDArray[np.intp]
ClassSlots: TypeAlias = IndexArray | NDArray[np.int64] | int
"""The class of each age, as its row in the tables; one number applies to all."""
Cap: TypeAlias = FloatArray | float | None

SURVIVAL_FLOOR = 1e-4
"""Below this, S is noise: no estimator here has the weight of 1 / SURVIVAL_FLOOR requests."""
_LONGEST_TAIL_TOKENS = 1e6
_MOST_LIVES = 1024
_LEAST_ALIVE = 1e-12
_RISK_AGES: FloatArray = np.unique(np.round(np.geomspace(1.0, 60_000.0, 160)))
"""Ages between which `risks` sums up."""
_CHUNK = 8192
"""Ages looked up in one pass: their temporaries fit in the processor's cache, which is three times faster."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """The grid: `count` buckets of `step_tokens` (SIBYL's Delta, whose value the paper does not give)."""

    step_tokens: int = 32
    count: int = 1024

    def __post_init__(self) -> None:
        """Raises ValueError naming the field when the grid is empty."""
        if self.step_tokens < 1:
            raise ValueError(f"step_tokens: must be 1 or more, not {self.step_tokens!r}")
        if self.count < 2:
            raise ValueError(f"count: must be 2 or more, not {self.count!r}")

    @property
    def boundaries(self) -> FloatArray:
        """0, step, ..., count * step; shape (count + 1,)."""
        return np.arange(self.count + 1, dtype=np.float64) * self.step_tokens


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """The curves at some ages: S within the table, the area from the age up to `end`, tokens beyond `end`."""

    survival: FloatArray
    area: FloatArray
    beyond: FloatArray


class SurvivalTables:
    """The curves of all classes at one time. Immutable; rows are class slots.

    Ages, caps and slots broadcast against each other, and every result has their common shape. A cap is the request's
    own limit of output tokens (`max_tokens`): None if no request has one, inf in an array for a request without one.
    """

    def __init__(self, buckets: Buckets, survival: FloatArray, effective_samples: FloatArray | None = None) -> None:
        """`survival` and `effective_samples`: shape (classes, count + 1) or (count + 1,), at the boundaries."""
        curves = np.atleast_2d(np.asarray(survival, np.float64))
        if curves.shape[1] != buckets.count + 1:
            raise ValueError(f"survival: must have {buckets.count + 1} boundaries, not {curves.shape[1]}")
        if np.isnan(curves).any():
            raise ValueError("survival: must not hold NaN")
        self.buckets = buckets
        samples = np.zeros_like(curves) if effective_samples is None else np.atleast_2d(effective_samples)
        self._samples = samples.astype(np.float64).ravel()
        self._quantiles: dict[float, FloatArray] = {}
        self._lives: dict[tuple[int, int, int | None], tuple[FloatArray, float]] = {}
        self._risks: tuple[FloatArray, FloatArray, float] | None = None
        self._stride = buckets.count + 1
        self._prepared: kernel.Prepared | None = None
        if (compiled := kernel.active()) is not None:
            self._build_by(compiled, curves)
        else:
            self._build(curves)

    @property
    def classes(self) -> int:
        """Number of rows."""
        return len(self._end)

    def _build(self, curves: FloatArray) -> None:
        step, last = self.buckets.step_tokens, self.buckets.count
        curves = np.minimum.accumulate(np.clip(curves, 0.0, 1.0), axis=1)
        curves[:, 0] = 1.0
        rows, columns = np.arange(len(curves)), np.arange(last + 1)
        below = curves < SURVIVAL_FLOOR
        end = np.where(below.any(axis=1), below.argmax(axis=1), last)
        at_end = np.maximum(curves[rows, end], SURVIVAL_FLOOR)
        curves = np.where(columns >= end[:, None], at_end[:, None], curves)
        areas = step * (curves[:, :-1] + curves[:, 1:]) / 2
        areas[columns[:-1] >= end[:, None]] = 0.0
        right = np.zeros_like(curves)
        right[:, :-1] = areas[:, ::-1].cumsum(axis=1)[:, ::-1]
        # Tail: the exponential's maximum likelihood, deaths over exposure, on the last quarter of the deaths in the
        # table. Exact for an exponential, the mean excess where everything ends within the table.
        quarter = at_end + (1.0 - at_end) / 4
        start = (curves >= quarter[:, None]).sum(axis=1) - 1
        deaths = curves[rows, start] - at_end
        exposure = right[rows, start]
        excess = np.where(deaths > 1e-9, exposure / np.maximum(deaths, 1e-9), _LONGEST_TAIL_TOKENS)
        self._hazard: FloatArray = 1.0 / np.clip(excess, step, _LONGEST_TAIL_TOKENS)
        """Of the tail, per token."""
        self._end: FloatArray = end.astype(np.float64) * step
        self._at_end: FloatArray = at_end
        self._survival: FloatArray = curves.ravel()
        drops = np.zeros_like(curves)
        drops[:, :-1] = np.diff(curves, axis=1)
        self._drop: FloatArray = drops.ravel()
        self._intercept: FloatArray = (curves - drops * columns).ravel()
        """Of the line of each bucket, S = intercept + drop x position."""
        self._area: FloatArray = right.ravel()

    def _build_by(self, compiled: kernel.Kernel, curves: FloatArray) -> None:
        """`_build` by the kernel."""
        columns = np.empty((4, *curves.shape))
        survival, drop, intercept, area = columns
        end, at_end, hazard = np.empty((3, len(curves)))
        survival[:] = curves
        step_tokens, floor, longest = self.buckets.step_tokens, SURVIVAL_FLOOR, _LONGEST_TAIL_TOKENS
        compiled.tabulate(survival, drop, intercept, area, end, at_end, hazard, step_tokens, floor, longest)
        self._survival, self._drop, self._intercept, self._area = columns.reshape(4, -1)
        self._end, self._at_end, self._hazard = end, at_end, hazard

    def prepared(self, compiled: kernel.Kernel) -> kernel.Prepared:
        """The tables for the kernel."""
        if self._prepared is None:
            self._prepared = compiled.curves(
                self._survival,
                self._drop,
                self._intercept,
                self._area,
                self._end,
                self._at_end,
                self._hazard,
                self.buckets.step_tokens,
                self.buckets.count,
            )
        return self._prepared

    def _per_class(self, values: FloatArray, classes: ClassSlots) -> FloatArray | float:
        """A per-class number for each age; a plain float if one class applies to all."""
        if isinstance(classes, int):
            return float(values[classes])
        return values.take(classes)

    def _point(self, ages: FloatArray, classes: ClassSlots) -> _Point:
        inside = np.minimum(ages, self._per_class(self._end, classes))
        position = inside * (1.0 / self.buckets.step_tokens)
        bucket = position.astype(np.intp)
        position -= bucket
        if not isinstance(classes, int) or classes:
            bucket = bucket + np.asarray(classes, np.intp) * self._stride
        left = self._survival.take(bucket)
        survival = self._drop.take(bucket)
        survival *= position
        survival += left
        left += survival
        left *= position
        left *= self.buckets.step_tokens / 2
        return _Point(survival, self._area.take(bucket) - left, ages - inside)

    def survival(self, tokens: FloatArray, classes: ClassSlots = 0) -> FloatArray:
        """P(L > tokens); 1 at 0 and below."""
        return _chunked(self._survival_at, tokens, classes)

    def _survival_at(self, tokens: FloatArray, classes: ClassSlots) -> FloatArray:
        tokens = np.maximum(tokens, 0.0)
        survival = self.survival_within(tokens, classes)
        beyond = tokens - self.end_tokens(classes)
        if beyond.size and beyond.max() > 0:
            survival = survival * np.exp(-self._per_class(self._hazard, classes) * np.maximum(beyond, 0.0))
        return survival

    def survival_within(self, tokens: FloatArray, classes: ClassSlots = 0) -> FloatArray:
        """P(L > tokens) for `tokens` from 0, without the tail: constant from `end_tokens` on. Fast for many ages."""
        position = tokens * (1.0 / self.buckets.step_tokens)
        bucket = position.astype(np.intp)
        np.minimum(bucket, self.buckets.count, out=bucket)  # beyond it the next class's row begins
        if not isinstance(classes, int) or classes:
            bucket += np.asarray(classes, np.intp) * self._stride
        survival = self._drop.take(bucket, mode="clip")
        survival *= position
        survival += self._intercept.take(bucket, mode="clip")
        return survival

    def end_tokens(self, classes: ClassSlots = 0) -> FloatArray | float:
        """Where the table ends and the exponential tail begins."""
        return self._per_class(self._end, classes)

    def conditional(
        self,
        now_tokens: FloatArray,
        later_tokens: FloatArray,
        classes: ClassSlots = 0,
        cap_tokens: Cap = None,
    ) -> FloatArray:
        """P(still running at `later_tokens` | running at `now_tokens`), SIBYL Eq. 3; 0 from the request's cap on."""
        return _chunked(self._conditional_at, now_tokens, later_tokens, classes, cap_tokens)

    def _conditional_at(
        self, now_tokens: FloatArray, later_tokens: FloatArray, classes: ClassSlots, cap_tokens: Cap
    ) -> FloatArray:
        ages = np.maximum(now_tokens, 0.0)
        later = np.maximum(later_tokens, ages)
        ratio = self.survival_within(later, classes) / self.survival_within(ages, classes)
        end = self.end_tokens(classes)
        if later.size and (later - end).max() > 0:
            more = np.maximum(later, end) - np.maximum(ages, end)
            ratio *= np.exp(-self._per_class(self._hazard, classes) * more)
        return ratio if cap_tokens is None else np.where(later >= cap_tokens, 0.0, ratio)

    def _ratio(self, now: _Point, later: _Point, classes: ClassSlots) -> FloatArray:
        ratio = later.survival / now.survival
        if np.any(later.beyond):
            ratio = ratio * np.exp(-self._per_class(self._hazard, classes) * (later.beyond - now.beyond))
        return ratio

    def expected_remaining(self, ages: FloatArray, classes: ClassSlots = 0, cap_tokens: Cap = None) -> FloatArray:
        """E[min(L, cap) - age | L > age] in tokens; 0 once the cap is reached.

        This is the sum of S(u) / S(age) over the tokens u = age ... cap - 1. By the trapezoid rule it equals the
        integral of the linear curve plus half of the curve's fall over that range.
        """
        return _chunked(self._expected_at, ages, classes, cap_tokens)

    def _expected_at(self, ages: FloatArray, classes: ClassSlots, cap_tokens: Cap) -> FloatArray:
        ages = np.maximum(np.asarray(ages, np.float64), 0.0)
        hazard = self._per_class(self._hazard, classes)
        at_end = self._per_class(self._at_end, classes)
        now = self._point(ages, classes)
        if cap_tokens is None:
            return (now.area + at_end / hazard) / now.survival + 0.5
        cap = np.maximum(np.asarray(cap_tokens, np.float64), ages)
        if not np.isfinite(cap).all():
            unlimited = self._expected_at(ages, classes, None)
            limited = self._expected_at(ages, classes, np.where(np.isfinite(cap), cap, ages))
            return np.where(np.isfinite(cap), limited, unlimited)
        later = self._point(cap, classes)
        remaining = now.area - later.area
        if np.any(later.beyond):
            more = later.beyond - now.beyond
            remaining = remaining - at_end * np.expm1(-hazard * more) / hazard
        remaining /= now.survival
        ratio = self._ratio(now, later, classes)
        remaining += 0.5
        remaining -= 0.5 * ratio
        return np.minimum(remaining, cap - ages)

    def risks(self, ages: FloatArray) -> tuple[FloatArray, float]:
        """How much a pause matters to requests by the tokens that they have: E[1 / L | L > age] H at each of `ages`.

        A pause of x seconds adds x / L to the time per output token of a request of L tokens, so it hurts those that
        stay short. H = 1 / E[1 / L], in tokens, is the harmonic mean length, and the second result; at age 0 the first
        is 1. Both are of all requests, whatever their class and limit. Kept as long as the tables, for the same `ages`.
        """
        if self._risks is None or self._risks[0] is not ages:
            survival = np.minimum.accumulate(self.survival(_RISK_AGES))
            ended = np.maximum(survival[:-1] - survival[1:], 0.0)
            per_token = ended / np.sqrt(_RISK_AGES[:-1] * _RISK_AGES[1:])
            later, alive = np.cumsum(per_token[::-1])[::-1], np.cumsum(ended[::-1])[::-1]
            known = np.where(alive > _LEAST_ALIVE, later / np.maximum(alive, _LEAST_ALIVE), 1.0 / _RISK_AGES[1:])
            of_one_token = max(1.0 - float(survival[0]), 0.0)
            new = (float(later[0]) + of_one_token) / max(float(alive[0]) + of_one_token, _LEAST_ALIVE)
            if new > 0.0:
                weights = np.where(ages < 1.0, 1.0, np.interp(ages, _RISK_AGES[:-1], known) / new)
                self._risks = ages, weights, 1.0 / new
            else:  # nothing is known to end: all are alike
                self._risks = ages, np.ones(len(ages)), float(_RISK_AGES[-1])
        return self._risks[1:]

    def life_nodes(self, count: int, class_slot: int = 0, cap_tokens: int | None = None) -> tuple[FloatArray, float]:
        """`count` ages that represent the life of a new request, each for the same number of expected tokens.

        Node q is the age x at which the expected tokens so far, E[min(L, x)], are (q + 1/2) / count of all expected
        tokens. Returns the ages and the expected tokens per node. Cached for the lifetime of the tables.
        """
        key = (count, class_slot, cap_tokens)
        known = self._lives.get(key)
        if known is None:
            limit = self.buckets.count * self.buckets.step_tokens if cap_tokens is None else cap_tokens
            ages = np.minimum(self.buckets.boundaries, float(limit))
            so_far = self.expected_remaining(np.zeros(len(ages)), class_slot, ages)
            wanted = (np.arange(count) + 0.5) / count * so_far[-1]
            if len(self._lives) >= _MOST_LIVES:
                self._lives.clear()
            known = self._lives[key] = (np.interp(wanted, so_far, ages), float(so_far[-1]) / count)
        return known

    def quantile_remaining(
        self,
        probability: float,
        ages: FloatArray,
        classes: ClassSlots = 0,
        cap_tokens: Cap = None,
    ) -> FloatArray:
        """Quantile of the remaining tokens: exceeded with probability 1 - `probability` (0 < probability < 1).

        Exact at bucket boundaries, interpolated between them; never beyond the request's cap.
        """
        if not 0 < probability < 1:
            raise ValueError(f"probability: must be above 0 and below 1, not {probability!r}")
        reached = self._quantiles.get(probability)
        if reached is None:
            reached = self._quantiles[probability] = self._quantile_table(probability)
        return _chunked(partial(self._quantile_at, reached), ages, classes, cap_tokens)

    def _quantile_at(self, reached: FloatArray, ages: FloatArray, classes: ClassSlots, cap_tokens: Cap) -> FloatArray:
        ages = np.maximum(np.asarray(ages, np.float64), 0.0)
        inside = np.minimum(ages, self._per_class(self._end, classes))
        position = inside / self.buckets.step_tokens
        bucket = position.astype(np.intp)
        fraction = position - bucket
        base = bucket + np.asarray(classes, np.intp) * self._stride
        left, right = reached.take(base), reached.take(np.minimum(base + 1, len(reached) - 1))
        # At `end` the fraction is 0, so the next row's first entry never counts.
        remaining: FloatArray = np.maximum(left + fraction * (right - left) - inside, 0.0)
        if cap_tokens is not None:
            remaining = np.minimum(remaining, np.maximum(np.asarray(cap_tokens, np.float64) - ages, 0.0))
        return remaining

    def _quantile_table(self, probability: float) -> FloatArray:
        """For every boundary x: the length y at which S(y) = (1 - probability) S(x)."""
        step, rows = self.buckets.step_tokens, self._survival.reshape(-1, self._stride)
        table = np.empty_like(rows)
        for row, curve in enumerate(rows):
            target = curve * (1.0 - probability)
            first = np.searchsorted(-curve, -target, side="left")
            inner = np.clip(first, 1, self._stride - 1)
            above, under = curve[inner - 1], curve[inner]
            share = np.divide(above - target, above - under, out=np.ones_like(target), where=above > under)
            at_end, end = self._at_end[row], self._end[row]
            tail = end + np.log(at_end / np.minimum(target, at_end)) / self._hazard[row]
            table[row] = np.where(target < at_end, tail, (inner - 1 + np.clip(share, 0.0, 1.0)) * step)
            # Columns beyond `end` hold the value at `end`: an exponential tail has no memory.
        return table.ravel()

    def effective_samples(self, ages: FloatArray, classes: ClassSlots = 0) -> FloatArray:
        """Number of requests of the class itself observed at these ages, weighted by recency."""
        position = np.clip(np.asarray(ages, np.float64) / self.buckets.step_tokens, 0.0, float(self.buckets.count))
        row = np.asarray(classes, np.intp) * self._stride
        samples: FloatArray = np.take(self._samples, position.astype(np.intp) + row)
        return samples


def _chunked(compute: Callable[..., FloatArray], *arguments: FloatArray | ClassSlots | Cap) -> FloatArray:
    """`compute` on pieces of arguments that broadcast against each other; scalars and None are passed unchanged."""
    shape = np.broadcast_shapes(*(np.shape(given) for given in arguments if given is not None))
    size = math.prod(shape)
    if size <= _CHUNK:
        return compute(*arguments)
    flat = [given if np.ndim(given) == 0 else np.broadcast_to(given, shape).reshape(-1) for given in arguments]  # type: ignore[arg-type]
    answer = np.empty(size)
    for start in range(0, size, _CHUNK):
        piece = slice(start, start + _CHUNK)
        answer[piece] = compute(
            *(given[piece] if isinstance(given, np.ndarray) and given.ndim else given for given in flat)
        )
    return answer.reshape(shape)
