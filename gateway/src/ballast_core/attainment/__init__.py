"""Attainment: the share of requests that met their objective, counted by request and judged with an interval."""

from ballast_core.attainment.counts import Counts
from ballast_core.attainment.objective import Ended, Objective, Seen, Threshold, judge
from ballast_core.attainment.standing import Standing, Why, standing
from ballast_core.attainment.windows import WINDOWS_S, Windows

__all__ = [
    "WINDOWS_S",
    "Counts",
    "Ended",
    "Objective",
    "Seen",
    "Standing",
    "Threshold",
    "Why",
    "Windows",
    "judge",
    "standing",
]
