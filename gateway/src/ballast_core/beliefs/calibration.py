"""Calibration of survival curves against held-out requests (SIBYL section 5.2).

The paper's error surface: over a grid of ages (current lengths) and horizons, the predicted probability that a request
of that age survives the horizon, against the share of the test requests that did.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival_tables import SurvivalTables


@dataclass(frozen=True, slots=True, eq=False)
class ErrorSurface:
    """Shapes: ages (A,), horizons (H,), survivors (A,), the rest (A, H). Lengths in tokens."""

    ages: FloatArray
    horizons: FloatArray
    survivors: FloatArray
    """Number of test requests longer than each age: the denominator of `actual`."""
    predicted: FloatArray
    actual: FloatArray
    """NaN where too few test requests reached the age."""

    @property
    def absolute_error(self) -> FloatArray:
        """|predicted - actual|; NaN where unknown."""
        return np.abs(self.predicted - self.actual)

    @property
    def mean_absolute_error(self) -> float:
        """Unweighted mean over the known cells, as in the paper. NaN if there are none."""
        return _mean(self.absolute_error)

    @property
    def largest_error(self) -> float:
        """Largest error of the known cells. NaN if there are none."""
        errors = self.absolute_error
        return float(np.nanmax(errors)) if np.isfinite(errors).any() else float("nan")

    def share_below(self, error: float) -> float:
        """Share of the known cells whose error is smaller. NaN if there are none."""
        errors = self.absolute_error
        known = errors[np.isfinite(errors)]
        return float((known < error).mean()) if len(known) else float("nan")


def error_surface(
    tables: SurvivalTables,
    test_lengths: FloatArray,
    ages: FloatArray,
    horizons: FloatArray,
    *,
    class_slot: int = 0,
    cap_tokens: float | None = None,
    min_survivors: int = 30,
) -> ErrorSurface:
    """Predicted and actual P(L > age + horizon | L > age).

    `test_lengths`: final output lengths. `cap_tokens`: the limit under which they were generated; the prediction is
    then of the capped length. Tables that were learned from capped lengths as if uncensored need none. Ages that fewer
    than `min_survivors` test requests exceeded are unknown.
    """
    ordered = np.sort(np.asarray(test_lengths, np.float64))
    _check(ordered, ages, horizons)
    survivors = (len(ordered) - np.searchsorted(ordered, ages, side="right")).astype(np.float64)
    later = ages[:, None] + horizons[None, :]
    alive_later = len(ordered) - np.searchsorted(ordered, later, side="right")
    actual = np.full(later.shape, np.nan)
    known = survivors >= max(min_survivors, 1)
    actual[known] = alive_later[known] / survivors[known, None]
    now = np.broadcast_to(ages[:, None], later.shape)
    predicted = tables.conditional(now, later, class_slot, cap_tokens)
    return ErrorSurface(ages, horizons, survivors, predicted, actual)


@dataclass(frozen=True, slots=True, eq=False)
class RemainingCalibration:
    """Remaining length by age. Every array has one entry per age; lengths in tokens."""

    ages: FloatArray
    survivors: FloatArray
    predicted_mean: FloatArray
    actual_mean: FloatArray
    """NaN where too few test requests reached the age."""
    coverage_ratio: FloatArray
    """Share of the test requests whose remaining length was within the predicted quantile; ideally `probability`."""
    probability: float

    @property
    def mean_error_ratio(self) -> float:
        """Mean of |predicted - actual| / actual over the known ages. NaN if there are none."""
        return _mean(np.abs(self.predicted_mean - self.actual_mean) / self.actual_mean)


def remaining_calibration(
    tables: SurvivalTables,
    test_lengths: FloatArray,
    ages: FloatArray,
    *,
    probability: float = 0.9,
    class_slot: int = 0,
    cap_tokens: float | None = None,
    min_survivors: int = 30,
) -> RemainingCalibration:
    """Predicted mean and quantile of the remaining length of requests of each age, against the test requests."""
    lengths = np.asarray(test_lengths, np.float64)
    _check(lengths, ages, np.zeros(1))
    predicted = tables.expected_remaining(ages, class_slot, cap_tokens)
    quantile = tables.quantile_remaining(probability, ages, class_slot, cap_tokens)
    survivors = np.zeros(len(ages))
    actual = np.full(len(ages), np.nan)
    coverage = np.full(len(ages), np.nan)
    for index, age in enumerate(ages):
        remaining = lengths[lengths > age] - age
        survivors[index] = len(remaining)
        if len(remaining) >= max(min_survivors, 1):
            actual[index] = remaining.mean()
            coverage[index] = (remaining <= quantile[index]).mean()
    return RemainingCalibration(ages, survivors, predicted, actual, coverage, probability)


def _check(lengths: FloatArray, ages: FloatArray, horizons: FloatArray) -> None:
    for name, values in (("test_lengths", lengths), ("ages", ages), ("horizons", horizons)):
        if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
            raise ValueError(f"{name}: must be a flat array of finite numbers, 0 or more")


def _mean(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
