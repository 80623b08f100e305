"""By how much each possible move lowers the variance: a few operations for each pair, whatever the horizon.

Let d be the loads minus their mean, a the request's load on its source i and b its load on its target j. The move
lowers the variance across n endpoints at each point of time by

    1/n (2 a d_i - a^2 - 2 b d_j - b^2 + (b - a)^2 / n)

A draining source is not among the n: a = 0. a and b are s (N + v t) up to the last point at which the request still
runs there, and 0 beyond. Their weighted sums over the points follow from sums of 1, t, t^2, d and d t up to each point,
which are computed once. All gains here are n times the formula.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.policies.rescheduling.load_curves import LoadCurves


def _up_to(values: FloatArray) -> FloatArray:
    """Sums of the first 0, 1, ... values of the last axis, which grows by one."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Requests and a group of targets that share rate v and scale s. Shapes: (requests,)."""

    targets: IntArray
    rate: float
    scale: float
    alive: IntArray
    """Number of points at which each request would still run there."""
    own: FloatArray
    """The gain without the terms of the targets' loads."""
    bounds: FloatArray
    """Upper bounds of the gain: at each point, the least loaded target of the group."""


class Gains:
    """Gains of moving `rows`, on curves as they are now."""

    def __init__(self, curves: LoadCurves, rows: IntArray) -> None:
        decodes, horizon = curves.decodes, curves.horizon
        self._curves = curves
        self._rows = rows
        self._weights = horizon.weights
        self._delayed = horizon.weights * horizon.times_s
        self._sums = [_up_to(each) for each in (self._weights, self._delayed, self._delayed * horizon.times_s)]
        self._count = len(curves.takes)
        self._centred = curves.centred()
        self._loads = _up_to(self._centred * self._weights)
        self._loads_t = _up_to(self._centred * self._delayed)
        source = curves.endpoint[rows]
        self._tokens = decodes.tokens[rows]
        self._rates = curves.rates[source]
        self._scale = curves.scale[source] * decodes.takes[source]
        self._alive = curves.alive[rows]
        self._squares = self._scale**2 * self._product(self._rates, self._rates, self._alive)
        at_source = self._tokens * self._loads[source, self._alive] + self._rates * self._loads_t[source, self._alive]
        self._relief = 2.0 * self._scale * at_source - self._squares

    def _product(self, rates: FloatArray, others: FloatArray | float, alive: IntArray) -> FloatArray:
        """Weighted sum of (N + v t) (N + v' t) over the points before `alive`."""
        ones, times, squares = self._sums
        tokens = self._tokens
        total = tokens * ones[alive]
        total += (rates + others) * times[alive]
        total *= tokens
        total += rates * others * squares[alive]
        return total

    def pairs(self, targets: IntArray) -> Pairs:
        """All requests with a group of targets of one rate and scale."""
        curves = self._curves
        rate, scale = float(curves.rates[targets[0]]), float(curves.scale[targets[0]])
        rates = np.full(len(self._rows), rate)
        alive = curves.horizon.alive(curves.decodes.remaining_tokens[self._rows], rates)
        squares = scale**2 * self._product(rates, rates, alive)
        both = self._scale * scale * self._product(self._rates, rate, np.minimum(alive, self._alive))
        own = self._relief - squares + (squares + self._squares - 2.0 * both) / self._count
        least = self._centred[targets].min(axis=0)
        least_load, least_t = _up_to(least * self._weights), _up_to(least * self._delayed)
        bounds = own - 2.0 * scale * (self._tokens * least_load[alive] + rate * least_t[alive])
        return Pairs(targets, rate, scale, alive, own, bounds)

    def of(self, pairs: Pairs, chosen: IntArray) -> FloatArray:
        """Gains of the requests with these indices; shape (chosen, targets)."""
        cells = np.ix_(pairs.targets, pairs.alive[chosen])
        gains = self._tokens[chosen] * self._loads[cells]
        gains += pairs.rate * self._loads_t[cells]
        gains *= -2.0 * pairs.scale
        gains += pairs.own[chosen]
        return gains.T
