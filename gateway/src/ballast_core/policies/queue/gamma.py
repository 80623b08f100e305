"""UniBoost's gamma, learned from the tail of response times (section 3.4, Eq. 9).

gamma = (ln 0.05 - ln 0.01) / (t99 - t95) = ln 5 / (t99 - t95): the slope of ln P(T > t) between these quantiles.
UPDATEGAMMA in appendix A.1 prints ln 99 - ln 95 for the numerator, which is no slope of anything (erratum).

The paper gives no window, smoothing, bounds or first value. Here, the window is the last 1,000 completions. Nothing is
learned from fewer than 100, of which the 99th percentile is the second largest. A new estimate comes after every 100
completions and enters with weight 0.2 against 0.8 for the previous gamma. The first one replaces the initial value,
which may be off by orders of magnitude. Bounds are 0.01 /s and 100 /s, the ends of figure 3.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ballast_core.policies.declaring import check_within

_LN_5 = math.log(5.0)
_LEAST = 100
_EVERY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GammaSettings:
    """How gamma follows the tail."""

    gamma_window: int = 1000
    gamma_smoothing: float = 0.2
    gamma_min_per_s: float = 0.01
    gamma_max_per_s: float = 100.0

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        check_within(self, gamma_window=(_LEAST, 100_000))
        if not 0 < self.gamma_smoothing <= 1:
            raise ValueError(f"gamma_smoothing: must be above 0 and at most 1, not {self.gamma_smoothing!r}")
        if not 1e-6 <= self.gamma_min_per_s <= 1e6:
            raise ValueError(f"gamma_min_per_s: must be from 1e-6 to 1e6, not {self.gamma_min_per_s!r}")
        if not self.gamma_min_per_s <= self.gamma_max_per_s <= 1e6:
            raise ValueError(f"gamma_max_per_s: must be from gamma_min_per_s to 1e6, not {self.gamma_max_per_s!r}")


def tail_slope_per_s(response_s: ArrayLike) -> float:
    """ln 5 / (t99 - t95) of these response times; infinite if the two quantiles are equal."""
    at_95, at_99 = np.quantile(np.asarray(response_s, np.float64), (0.95, 0.99))
    return float(_LN_5 / (at_99 - at_95)) if at_99 > at_95 else math.inf


class GammaEstimator:
    """Takes in response times as requests complete, and updates gamma from time to time."""

    def __init__(self, initial_per_s: float, settings: GammaSettings | None = None) -> None:
        self.settings = settings or GammaSettings()
        self.gamma_per_s = initial_per_s
        """The current gamma; the initial value until enough requests have completed."""
        self.updates = 0
        """Number of updates of gamma."""
        self._recent: deque[float] = deque(maxlen=self.settings.gamma_window)
        self._since = 0

    def completed(self, response_s: float) -> bool:
        """A request completed after `response_s`. Returns whether gamma has changed. Impossible times are ignored."""
        if not 0 <= response_s < math.inf:
            return False
        self._recent.append(response_s)
        self._since += 1
        if len(self._recent) < _LEAST or self._since < _EVERY:
            return False
        self._since = 0
        least, most = self.settings.gamma_min_per_s, self.settings.gamma_max_per_s
        seen = min(max(tail_slope_per_s(self._recent), least), most)
        weight = self.settings.gamma_smoothing if self.updates else 1.0
        self.gamma_per_s = min(max((1 - weight) * self.gamma_per_s + weight * seen, least), most)
        self.updates += 1
        return True
