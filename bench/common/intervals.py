"""Means with 95 % intervals over seeds, by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)
"""Student's t, two-sided 95 %, for 1 to 11 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean of ratios with its 95 % interval, from `count` pairs."""

    ratio: float
    low: float
    high: float
    count: int


def interval(ratios: Sequence[float]) -> Interval:
    """Student's t on the logarithms. One ratio, or an infinite one, has no bounds. Raises ValueError for none."""
    if not ratios:
        raise ValueError("ratios: an interval needs one at least")
    if any(not 0 < ratio < math.inf for ratio in ratios):
        middle = statistics.median(ratios)
        return Interval(middle, 0.0, math.inf, len(ratios))
    logarithms = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logarithms)
    if len(ratios) == 1:
        return Interval(math.exp(middle), 0.0, math.inf, 1)
    reach = reach_95(logarithms)
    return Interval(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach), len(ratios))


def reach_95(values: Sequence[float]) -> float:
    """How far the 95 % interval of the mean of two values or more reaches to either side."""
    t = T_95[min(len(values) - 1, len(T_95)) - 1]
    return t * statistics.stdev(values) / math.sqrt(len(values))
