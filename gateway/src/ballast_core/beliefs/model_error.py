"""Errors of a model's last predictions, each made before the model learned from the observation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_WINDOW = 63
"""Odd, and so long that with a third of stragglers these practically never fill half of it."""
_FIRST_PAIRS = 7
_MEAN_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class ModelError:
    """Errors relative to the prediction (0.1 is 10 %), over about the last 50 predictions."""

    observations: int
    median_ratio: float
    """Median absolute error; stragglers hardly count."""
    mean_ratio: float
    """Mean absolute error; each error counts as 1 (100 %) at most."""
    bias_ratio: float
    """Mean signed error with the same bound: above 0, real times are longer than predicted."""


class ErrorTracker:
    """Tracks relative errors: observed / predicted - 1."""

    def __init__(self, expected_ratio: float) -> None:
        """`expected_ratio`: typical absolute error, assumed before the first one is observed."""
        self._recent = deque([-expected_ratio, expected_ratio] * _FIRST_PAIRS, maxlen=_WINDOW)
        self._observations = 0
        self._mean = self._bias = 0.0

    def add(self, error_ratio: float) -> None:
        """Take in one more error."""
        self._recent.append(error_ratio)
        self._observations += 1
        gain = max(_MEAN_GAIN, 1.0 / self._observations)
        self._mean += gain * (min(abs(error_ratio), 1.0) - self._mean)
        self._bias += gain * (min(error_ratio, 1.0) - self._bias)

    def center_and_spread(self) -> tuple[float, float]:
        """Median of the recent errors, and the median distance from it."""
        center = _median(self._recent)
        return center, _median([abs(error - center) for error in self._recent])

    @property
    def error(self) -> ModelError:
        """A summary of the recent errors."""
        return ModelError(self._observations, _median(abs(error) for error in self._recent), self._mean, self._bias)


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
