"""Counts of requests within a threshold, outside it, and not known, with the interval of the share that is within."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_Z: Final = 1.96
"""Standard normal quantile of a two-sided interval of 95 %."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests. Those of several gateways and of several spans of time add up exactly."""

    within: int = 0
    outside: int = 0
    unknown: int = 0
    """Requests of which nobody saw enough to say."""

    @property
    def requests(self) -> int:
        """All of them."""
        return self.within + self.outside + self.unknown

    @property
    def share(self) -> float | None:
        """Share within of those that are known, from 0 to 1; None if none is."""
        known = self.within + self.outside
        return self.within / known if known else None

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(self.within + other.within, self.outside + other.outside, self.unknown + other.unknown)

    def interval(self) -> tuple[float, float]:
        """Lower and upper bound of the share that is within, at 95 %.

        Wilson's score interval with correction for continuity (R. G. Newcombe, 1998, method 4): it stays within [0, 1]
        and is wide where requests are few; one miss in nine does not rule out a share of 0.99. What is not known counts
        as outside for the lower bound and as within for the upper one: nothing is guessed.
        """
        return _wilson(self.within, self.requests)[0], _wilson(self.within + self.unknown, self.requests)[1]


def _wilson(within: int, requests: int) -> tuple[float, float]:
    if not requests:
        return 0.0, 1.0
    share, square, size = within / requests, _Z * _Z, 2 * (requests + _Z * _Z)
    middle = 2 * within + square
    lower, upper = 0.0, 1.0
    if within:
        under_root = square - 2 - 1 / requests + 4 * share * (requests * (1 - share) + 1)
        lower = max(0.0, (middle - 1 - _Z * math.sqrt(under_root)) / size)
    if within < requests:
        under_root = square + 2 - 1 / requests + 4 * share * (requests * (1 - share) - 1)
        upper = min(1.0, (middle + 1 + _Z * math.sqrt(under_root)) / size)
    return lower, upper
