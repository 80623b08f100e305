"""Scores of survival curves on requests that were not learned from, several classes of them together.

A cell is an age and a horizon: P(still running at age + horizon | running at age). Cells whose target lies beyond the
longest length of interest are left out: every request has ended there, and predicting that takes no skill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.calibration import error_surface, remaining_calibration
from ballast_core.beliefs.survival_tables import SurvivalTables

GRID = 64
"""Steps of age and of horizon up to the longest length of interest: 128 tokens each where that is 8,192."""
BINS = 10
QUANTILES = (0.5, 0.9, 0.99)
MIN_SURVIVORS = 30
"""Held-back requests that must reach an age for it to count; Brier score and bins count every age."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """Predictions of nearly one probability: how many, their mean, how often it came true. None for an empty bin."""

    predictions: int
    predicted: float | None
    observed: float | None


@dataclass(frozen=True, slots=True, eq=False)
class CurveScore:
    """One curve, or one for each class, on held-back requests. Ratios in [0, 1] unless said; lengths in tokens."""

    brier: float
    """Mean squared error of the probabilities, each request counting at each age that it reached."""
    brier_best: float
    """The same of a forecast that knows the held-back part's own curve (over all classes)."""
    calibration_error: float
    """Expected calibration error: |predicted - observed| of `bins`, weighted by their predictions."""
    bins: tuple[Reliability, ...]
    """By predicted probability, in equal steps."""
    ages: FloatArray
    """Shape (GRID,)."""
    horizons: FloatArray
    """Shape (GRID,)."""
    surface: FloatArray
    """|predicted - actual| by age and horizon, shape (GRID, GRID), as SIBYL's figure 7; NaN where unknown."""
    remaining_error_ratio: float
    """Mean over ages of |predicted - actual| / actual of the mean remaining length."""
    coverage: Mapping[float, float]
    """Share of remaining lengths within each predicted quantile; ideally the quantile's own probability."""

    @property
    def surface_mean(self) -> float:
        """Mean error of the known cells; NaN if there are none."""
        known = self._known_cells
        return float(known.mean()) if len(known) else float("nan")

    @property
    def surface_max(self) -> float:
        """Largest error of the known cells; NaN if there are none."""
        known = self._known_cells
        return float(known.max()) if len(known) else float("nan")

    def surface_below(self, error: float) -> float:
        """Share of the known cells with a smaller error; NaN if there are none."""
        known = self._known_cells
        return float((known < error).mean()) if len(known) else float("nan")

    @property
    def _known_cells(self) -> FloatArray:
        return self.surface[np.isfinite(self.surface)]


def score_curves(tables: SurvivalTables, lengths_by_slot: Mapping[int, FloatArray]) -> CurveScore:
    """Score each class's row of `tables` on that class's held-back output lengths (every array has one or more)."""
    whole = np.concatenate(list(lengths_by_slot.values()))
    longest = max(float(np.quantile(whole, 0.99)), 2.0)
    ages, horizons = np.linspace(0.0, longest, GRID, endpoint=False), np.linspace(longest / GRID, longest, GRID)
    inside = ages[:, None] + horizons[None, :] <= longest + 1e-9
    at_risk, predicted, actual = _cells(tables, lengths_by_slot, ages, horizons)
    weights = np.where(inside, at_risk[:, :, None], 0.0)
    squared = actual * (1 - predicted) ** 2 + (1 - actual) * predicted**2
    total = weights.sum()
    all_at_risk = at_risk.sum(axis=0)[:, None]
    mean_predicted = (weights * predicted).sum(axis=0) / np.maximum(all_at_risk, 1.0)
    mean_actual = (weights * actual).sum(axis=0) / np.maximum(all_at_risk, 1.0)
    bins = _bins(predicted, actual, weights)
    known = inside & (all_at_risk >= MIN_SURVIVORS)
    error_ratio, coverage = _remaining(tables, lengths_by_slot, ages)
    return CurveScore(
        brier=float((weights * squared).sum() / total),
        brier_best=float((weights.sum(axis=0) * mean_actual * (1 - mean_actual)).sum() / total),
        calibration_error=sum(
            one.predictions * abs(one.predicted - one.observed)
            for one in bins
            if one.predicted is not None and one.observed is not None
        )
        / max(sum(one.predictions for one in bins), 1),
        bins=bins,
        ages=ages,
        horizons=horizons,
        surface=np.where(known, np.abs(mean_predicted - mean_actual), np.nan),
        remaining_error_ratio=error_ratio,
        coverage=coverage,
    )


def _cells(
    tables: SurvivalTables, lengths_by_slot: Mapping[int, FloatArray], ages: FloatArray, horizons: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Requests at risk (classes, ages); predicted and actual chances (classes, ages, horizons), 0 where unknown."""
    surfaces = [
        error_surface(tables, lengths, ages, horizons, class_slot=slot, min_survivors=1)
        for slot, lengths in lengths_by_slot.items()
    ]
    return (
        np.stack([surface.survivors for surface in surfaces]),
        np.stack([surface.predicted for surface in surfaces]),
        np.nan_to_num(np.stack([surface.actual for surface in surfaces])),
    )


def _bins(predicted: FloatArray, actual: FloatArray, weights: FloatArray) -> tuple[Reliability, ...]:
    index = np.minimum((predicted * BINS).astype(np.int64), BINS - 1).ravel()
    counts, predictions, outcomes = (
        np.bincount(index, values.ravel(), minlength=BINS)
        for values in (weights, weights * predicted, weights * actual)
    )
    return tuple(
        Reliability(round(count), float(one / count), float(other / count)) if count else Reliability(0, None, None)
        for count, one, other in zip(counts, predictions, outcomes, strict=True)
    )


def _remaining(
    tables: SurvivalTables, lengths_by_slot: Mapping[int, FloatArray], ages: FloatArray
) -> tuple[float, dict[float, float]]:
    """Error of the mean remaining length over ages, and coverage by quantile, each request counting at each age."""
    coverage = {}
    for probability in QUANTILES:
        found = [
            remaining_calibration(tables, lengths, ages, probability=probability, class_slot=slot, min_survivors=1)
            for slot, lengths in lengths_by_slot.items()
        ]
        at_risk = np.stack([one.survivors for one in found])
        within = np.nan_to_num(np.stack([one.coverage_ratio for one in found]))
        coverage[probability] = float((at_risk * within).sum() / at_risk.sum())
    known = at_risk.sum(axis=0) >= MIN_SURVIVORS
    if not known.any():
        return float("nan"), coverage
    expected = (at_risk * np.stack([one.predicted_mean for one in found])).sum(axis=0)[known]
    actual = (at_risk * np.nan_to_num(np.stack([one.actual_mean for one in found]))).sum(axis=0)[known]
    return float((np.abs(expected - actual) / actual).mean()), coverage
