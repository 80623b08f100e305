"""How wrong a model's last predictions were, each made before its observation was learned from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_WINDOW = 63
"""Odd, and long enough that a third of stragglers practically never makes half of it."""
_FIRST_PAIRS = 7
_MEAN_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class ModelError:
    """Errors relative to the prediction: 0.1 is 10 % of it. They are of the last 50 or so predictions."""

    observations: int
    median_ratio: float
    """Typical size of an error; stragglers hardly count."""
    mean_ratio: float
    """Mean size, an error above 100 % counting as that."""
    bias_ratio: float
    """Mean signed error, cut off alike: above 0 means that things take longer than predicted."""


class ErrorTracker:
    """Follows relative errors: observed / predicted - 1."""

    def __init__(self, expected_ratio: float) -> None:
        """`expected_ratio`: size of a typical error before the first one is seen."""
        self._recent = deque([-expected_ratio, expected_ratio] * _FIRST_PAIRS, maxlen=_WINDOW)
        self._observations = 0
        self._mean = self._bias = 0.0

    def add(self, error_ratio: float) -> None:
        """One more error."""
        self._recent.append(error_ratio)
        self._observations += 1
        gain = max(_MEAN_GAIN, 1.0 / self._observations)
        self._mean += gain * (min(abs(error_ratio), 1.0) - self._mean)
        self._bias += gain * (min(error_ratio, 1.0) - self._bias)

    def center_and_spread(self) -> tuple[float, float]:
        """Median of the recent errors, and the median distance from it."""
        center = _median(self._recent)
        return center, _median(abs(error - center) for error in self._recent)

    @property
    def error(self) -> ModelError:
        """The errors so far, summed up."""
        return ModelError(self._observations, _median(abs(error) for error in self._recent), self._mean, self._bias)


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
