"""The waterline: the marginal cost that a fleet reaches when each new request goes where it is cheapest."""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import FloatArray

_LEAST_SLOPE = 1e-9
"""Rounding must not make a cost fall with load."""


def waterline(costs: FloatArray, slopes: FloatArray, requests: FloatArray) -> FloatArray:
    """The marginal cost that no candidate is below after `requests` have been placed, each on the cheapest candidate.

    `costs` (times, candidates): marginal costs now; `slopes`: by how much each further request raises them; `requests`
    (times,): how many are placed. Returns shape (times,): the level L with sum over candidates of
    max(L - cost, 0) / slope = requests; without requests it is the lowest cost.
    """
    order = np.argsort(costs, axis=1)
    ascending = np.take_along_axis(costs, order, 1)
    width = 1.0 / np.maximum(np.take_along_axis(slopes, order, 1), _LEAST_SLOPE)
    widths, filled = np.cumsum(width, axis=1), np.cumsum(width * ascending, axis=1)
    reached = (widths * ascending - filled <= requests[:, None]).sum(axis=1) - 1
    times = np.arange(len(costs))
    return np.asarray((requests + filled[times, reached]) / widths[times, reached], np.float64)
