"""Whether an objective is met, decided by the interval of its attainment, so that noise decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ballast_core.attainment.counts import Counts

DECIDING_S: Final = (300, 1800, 3600)
"""Windows that may decide, in seconds, the most recent first."""


class Why(StrEnum):
    """Why an objective counts as met, as missed, or as neither."""

    MET = "met"
    """The whole interval is at or above the target."""
    MISSED = "missed"
    """The whole interval is below the target."""
    STAYS = "stays"
    """The target is within the interval, and nothing speaks against what was decided before."""
    TOO_FEW = "too-few"
    """The target is within the interval: too few requests to say."""
    UNSEEN = "unseen"
    """Of most requests nobody saw enough to say."""
    NO_TRAFFIC = "no-traffic"
    """No request ended."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How an objective stands."""

    met: bool | None
    """None: cannot be said."""
    why: Why
    window_s: int
    """Seconds of the window that decided; the longest one if none did."""
    counts: Counts
    """Joint counts of that window."""


def standing(joint: Mapping[int, Counts], target: float, before: bool | None) -> Standing:
    """How an objective stands by its joint counts in each window (at least `DECIDING_S`, keys in seconds).

    The shortest window decides whose whole interval is on one side of `target`. Where none is, what was decided
    `before` stays as long as the share of the longest window agrees with it. So the answer changes on evidence alone,
    and an answer that the evidence no longer carries becomes None, not its opposite. No sample can show a target of 1:
    it is met where no request was outside.
    """
    for window_s in DECIDING_S:
        counts = joint[window_s]
        lower, upper = counts.interval()
        if counts.requests and (lower >= target or (target >= 1 and counts.within == counts.requests)):
            return Standing(True, Why.MET, window_s, counts)
        if upper < target:
            return Standing(False, Why.MISSED, window_s, counts)
    longest_s = DECIDING_S[-1]
    counts = joint[longest_s]
    share = counts.share
    if not counts.requests:
        return Standing(None, Why.NO_TRAFFIC, longest_s, counts)
    if share is None or 2 * counts.unknown > counts.requests:
        return Standing(None, Why.UNSEEN, longest_s, counts)
    if before is not None and before is (share >= target):
        return Standing(before, Why.STAYS, longest_s, counts)
    return Standing(None, Why.TOO_FEW, longest_s, counts)
