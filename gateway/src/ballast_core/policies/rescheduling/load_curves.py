"""The load of each endpoint over the horizon, and how one migration changes it.

A request with N tokens and R to come, on an endpoint that gives it v tokens per second, holds N + v t tokens at time t,
and none once v t reaches R. An endpoint's load is the sum over its requests. The objective is the variance of loads
across the endpoints at each point of time, averaged over the horizon with weights that sum to 1 (ARES, Eq. 4, whose
first term is the point t = 0).

Load is counted in tokens of a typical endpoint: an endpoint's tokens are divided by its own KV capacity and multiplied
by the mean capacity. On equal hardware this is the number of tokens, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.policies.rescheduling.protocol import Decodes

_CLASS_STEPS = 4.0
"""Rates within a factor of 2 ** (1 / 4) count as equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Horizon:
    """The points of time at which load is compared. Shapes: (points,)."""

    times_s: FloatArray
    """Seconds from now, ascending; the first is 0."""
    weights: FloatArray
    """beta, normalised to sum to 1."""

    @classmethod
    def now(cls) -> Horizon:
        """The current load alone."""
        return cls(np.zeros(1), np.ones(1))

    @classmethod
    def discounted(cls, horizon_s: float, half_life_s: float, points: int) -> Horizon:
        """Equal steps from now on, the last one before `horizon_s`; beta halves every `half_life_s`."""
        times_s = np.arange(points) * (horizon_s / points)
        weights: FloatArray = np.exp2(-times_s / half_life_s)
        return cls(np.asarray(times_s, np.float64), np.asarray(weights / weights.sum(), np.float64))

    def alive(self, remaining_tokens: FloatArray, tokens_per_s: FloatArray) -> IntArray:
        """At how many points each request still runs; at least 1, since it runs now."""
        life_s = remaining_tokens / tokens_per_s
        return np.maximum(np.searchsorted(self.times_s, life_s, side="left"), 1)


def rate_classes(tokens_per_s: FloatArray) -> FloatArray:
    """Each endpoint's rate, rounded to the mean of its class of similar rates."""
    steps = np.floor(np.log2(tokens_per_s) * _CLASS_STEPS)
    _, members = np.unique(steps, return_inverse=True)
    return np.asarray((np.bincount(members, tokens_per_s) / np.bincount(members))[members], np.float64)


class LoadCurves:
    """The load curves of all endpoints, updated as requests are moved. E endpoints, H points."""

    def __init__(self, decodes: Decodes, horizon: Horizon, *, by_capacity: bool = True) -> None:
        """`by_capacity`: whether load is relative to KV capacity; otherwise it is raw tokens."""
        self.decodes = decodes
        self.horizon = horizon
        self.takes = np.flatnonzero(decodes.takes)
        """Indices of the endpoints whose balance counts."""
        capacity = decodes.kv_tokens
        typical = float(capacity[self.takes].mean()) if len(self.takes) else 1.0
        self.scale: FloatArray = typical / capacity if by_capacity else np.ones(len(capacity))
        """Load of one token, shape (E,)."""
        self.rates: FloatArray = rate_classes(decodes.tokens_per_s)
        self.endpoint: IntArray = decodes.endpoint.copy()
        """Index of each request's endpoint, after the moves so far."""
        held = np.bincount(decodes.endpoint, decodes.tokens, minlength=len(capacity))
        self.held_tokens: FloatArray = held + decodes.other_tokens
        """KV tokens held now, and those reserved for requests moved there; shape (E,)."""
        self.alive: IntArray = horizon.alive(decodes.remaining_tokens, self.rates[decodes.endpoint])
        """Number of points at which each request still runs on its endpoint."""
        self.loads: FloatArray = self._sums() * self.scale[:, None]
        """Shape (E, H)."""

    def _sums(self) -> FloatArray:
        """Tokens over time, shape (E, H), from sums by endpoint and last point: no array is by request and point."""
        decodes, points = self.decodes, len(self.horizon.times_s)
        cells = decodes.endpoint * points + self.alive - 1
        size = len(decodes.kv_tokens) * points
        shape = (len(decodes.kv_tokens), points)
        ending = np.bincount(cells, minlength=size).reshape(shape)
        ending_tokens = np.bincount(cells, decodes.tokens, minlength=size).reshape(shape)
        running = ending[:, ::-1].cumsum(axis=1)[:, ::-1]
        held = ending_tokens[:, ::-1].cumsum(axis=1)[:, ::-1]
        grown = running * self.horizon.times_s * self.rates[:, None]
        return np.asarray(held + grown + decodes.other_tokens[:, None], np.float64)

    def weighted(self) -> FloatArray:
        """w: each endpoint's mean load over the horizon, shape (E,)."""
        return np.asarray(self.loads @ self.horizon.weights, np.float64)

    def centred(self) -> FloatArray:
        """Loads minus their mean over the endpoints that take requests, shape (E, H)."""
        return np.asarray(self.loads - self.loads[self.takes].mean(axis=0), np.float64)

    def objective(self) -> float:
        """The weighted variance, in tokens squared; 0 without endpoints that take requests."""
        return float(self.loads[self.takes].var(axis=0) @ self.horizon.weights) if len(self.takes) else 0.0

    def load_of(self, row: int, alive: int, endpoint: int) -> FloatArray:
        """The load of a request on an endpoint on which it runs for `alive` points, shape (H,)."""
        curve = self.decodes.tokens[row] + self.rates[endpoint] * self.horizon.times_s
        curve[alive:] = 0.0
        return np.asarray(self.scale[endpoint] * curve, np.float64)

    def move(self, row: int, target: int, promised_tokens: float) -> None:
        """Count a request on its target, where `promised_tokens` are reserved; its source keeps its memory for now."""
        source = int(self.endpoint[row])
        self.loads[source] -= self.load_of(row, int(self.alive[row]), source)
        remaining_tokens, rate = self.decodes.remaining_tokens[row : row + 1], self.rates[target : target + 1]
        self.alive[row] = self.horizon.alive(remaining_tokens, rate)[0]
        self.loads[target] += self.load_of(row, int(self.alive[row]), target)
        self.held_tokens[target] += promised_tokens
        self.endpoint[row] = target
