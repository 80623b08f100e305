"""How far coming requests will fill a fleet that is filled where it is cheapest."""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import FloatArray

_LEAST_SLOPE = 1e-9
"""Rounding must not make a cost fall with load."""


def waterline(costs: FloatArray, slopes: FloatArray, requests: FloatArray) -> FloatArray:
    """The marginal cost that everybody reaches or exceeds once so many requests have been placed, each at its cheapest.

    `costs` (times, candidates) are marginal costs now, `slopes` by how much each more request raises them; `requests`
    (times,) how many will come by then. Returns shape (times,): the level L with sum over candidates of
    max(L - cost, 0) / slope = requests; with none it is the lowest cost.
    """
    order = np.argsort(costs, axis=1)
    ascending = np.take_along_axis(costs, order, 1)
    room = 1.0 / np.maximum(np.take_along_axis(slopes, order, 1), _LEAST_SLOPE)
    rooms, filled = np.cumsum(room, axis=1), np.cumsum(room * ascending, axis=1)
    reached = (rooms * ascending - filled <= requests[:, None]).sum(axis=1) - 1
    times = np.arange(len(costs))
    return np.asarray((requests + filled[times, reached]) / rooms[times, reached], np.float64)
