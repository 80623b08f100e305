"""Objectives, and what one request was against one: within each threshold, outside it, or not known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias


class Threshold(IntEnum):
    """What a request is held to. The value is its place in tables."""

    TTFT = 0
    TPOT = 1
    E2E = 2
    JOINT = 3
    """All that the objective sets."""


@dataclass(frozen=True, slots=True)
class Objective:
    """How fast the requests of a class must be. A threshold that is None is not set."""

    name: str
    ttft_s: float | None = None
    """Seconds from arrival to the first token, at most."""
    tpot_s: float | None = None
    """Mean seconds for each output token after the first, at most."""
    e2e_s: float | None = None
    """Seconds from arrival to the last token, at most."""
    target: float = 0.99
    """Share of requests that must meet all of them, above 0 and up to 1."""
    priority: int = 0
    """Of its requests that bring none; lower first."""

    @property
    def limits(self) -> dict[Threshold, float]:
        """Seconds of those that are set."""
        limits = {Threshold.TTFT: self.ttft_s, Threshold.TPOT: self.tpot_s, Threshold.E2E: self.e2e_s}
        return {each: limit for each, limit in limits.items() if limit is not None}

    @property
    def thresholds(self) -> tuple[Threshold, ...]:
        """Those that are set, and the joint one."""
        return (*self.limits, Threshold.JOINT)

    @property
    def rule(self) -> tuple[str, float | None, float | None, float | None]:
        """What counts are about: two objectives with the same one judge every request alike."""
        return self.name, self.ttft_s, self.tpot_s, self.e2e_s


class Ended(StrEnum):
    """How a request ended, as far as its objective is concerned."""

    SERVED = "served"
    """Whole."""
    MISSED = "missed"
    """Shed or failed: it has met nothing that it had not met by then."""
    UNSEEN = "unseen"
    """Nobody saw its end."""


class Seen(NamedTuple):
    """What was seen of a request. Times are seconds; None: not seen."""

    ended: Ended
    ttft_s: float | None
    tpot_s: float | None
    """None also for an output of fewer than two tokens, see `output_tokens`."""
    e2e_s: float
    output_tokens: int | None
    """None: nobody counted."""


Judgement: TypeAlias = tuple[bool | None, bool | None, bool | None, bool | None]
"""By `Threshold`: True within, False outside, None not known."""


def judge(objective: Objective, seen: Seen) -> Judgement:
    """What a request was against its objective. A threshold that is not set is met.

    An output of fewer than two tokens has no time per token, and meets that threshold. A first token that nobody saw
    came no later than the end. Jointly: outside if it was outside one of them or was not served, else not known if one
    of them is not known, else within.
    """
    ttft_s, tpot_s, e2e_s = objective.ttft_s, objective.tpot_s, objective.e2e_s
    if seen.ended is Ended.UNSEEN:
        return ttft_s is None or None, tpot_s is None or None, e2e_s is None or None, None
    served = seen.ended is Ended.SERVED
    first = True if ttft_s is None else _first_in_time(ttft_s, seen, served=served)
    gaps = True if tpot_s is None else _gaps_in_time(tpot_s, seen) if served else False
    whole = e2e_s is None or (served and seen.e2e_s <= e2e_s)
    if not served or first is False or gaps is False or not whole:
        return first, gaps, whole, False
    return first, gaps, whole, None if first is None or gaps is None else True


def _first_in_time(limit_s: float, seen: Seen, *, served: bool) -> bool | None:
    if seen.ttft_s is not None:
        return seen.ttft_s <= limit_s
    if not served:
        return False
    return True if seen.e2e_s <= limit_s else None


def _gaps_in_time(limit_s: float, seen: Seen) -> bool | None:
    if seen.output_tokens is None:
        return None
    if seen.output_tokens < 2:
        return True
    return None if seen.tpot_s is None else seen.tpot_s <= limit_s
