"""A short forecast of the arrival rate: Holt's linear method with a damped trend.

E. S. Gardner and E. McKenzie, "Forecasting trends in time series", Management Science 31(10), 1985: with the level l
and the trend b after each observation y,

    l' = alpha y + (1 - alpha) (l + phi b),   b' = beta (l' - l) + (1 - beta) phi b,   y(h) = l + (phi + ... + phi^h) b

A damped trend levels off, so that a short rise is not carried on for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

ALPHA = 0.5
BETA = 0.3
PHI = 0.85
MOST_GROWTH = 2.0
"""The forecast is at most this times the present level, and at least the level over it."""


def holt_damped(
    values: Sequence[float], steps: float, *, alpha: float = ALPHA, beta: float = BETA, phi: float = PHI
) -> tuple[float, float]:
    """The present level and the value `steps` observations ahead, both 0 or more. Raises ValueError without a value."""
    if not values:
        raise ValueError("values: a forecast needs one at least")
    level, trend = values[0], 0.0
    for value in values[1:]:
        expected = level + phi * trend
        risen = alpha * value + (1 - alpha) * expected
        level, trend = risen, beta * (risen - level) + (1 - beta) * phi * trend
    level = max(0.0, level)
    ahead = level + trend * phi * (1 - phi ** max(0.0, steps)) / (1 - phi)
    return level, min(max(ahead, level / MOST_GROWTH), level * MOST_GROWTH)
