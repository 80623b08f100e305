"""Whether a canary goes on, is paused or may become the fleet, by what gateways counted of both sides. Pure.

A canary is the first step of a coupled rollout: a few pods of the new KV revision in each pool, which get a fixed share
of the requests. What is known of it lies in an annotation of the Deployments of that revision, so it lives as long as
they do, and an operator that is killed goes on from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ballast_api import names
from ballast_api.attainment_report import CanaryReport, Tally
from ballast_api.gateway_settings import CanarySettings
from ballast_api.serving_pool import CanarySpec
from ballast_core.attainment import Counts

_MOST_TEXT: Final = 600
"""Characters of a verdict that are kept."""
WAY_OUT: Final = "apply the old spec to roll back, or remove spec.rollout.canary to go on without it"


class Phase(StrEnum):
    """How far a canary is."""

    STARTING = "starting"
    """Its gateways learn its weight, then its pods start."""
    OBSERVED = "observed"
    """It gets its share of the requests, and both sides are counted."""
    PROMOTED = "promoted"
    """It was not worse: the rollout goes on."""
    PAUSED = "paused"
    """It was worse: it gets no requests, and the old revision has all pods."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of a canary."""

    phase: Phase = Phase.STARTING
    since: str = ""
    """When its pods were ready, RFC 3339; empty until then."""
    why: str = ""
    """The verdict, for people."""

    def annotations(self) -> dict[str, str]:
        """Of Deployments."""
        text = json.dumps({"phase": self.phase, "why": self.why})
        return {names.ANNOTATION_CANARY: text, names.ANNOTATION_CANARY_SINCE: self.since}


def remembered(annotations: Iterable[Mapping[str, str]]) -> Memory | None:
    """What the annotations of several Deployments say together; None if none says anything.

    A verdict counts as soon as one of them has it: the others were still to be written.
    """
    found = [memory for each in annotations if (memory := _read(each)) is not None]
    for phase in (Phase.PAUSED, Phase.PROMOTED):
        for each in found:
            if each.phase is phase:
                return each
    return max(found, key=lambda each: each.since, default=None)


def _read(annotations: Mapping[str, str]) -> Memory | None:
    if names.ANNOTATION_CANARY not in annotations:
        return None
    try:
        data = json.loads(annotations[names.ANNOTATION_CANARY])
        return Memory(Phase(data["phase"]), annotations.get(names.ANNOTATION_CANARY_SINCE, ""), str(data["why"]))
    except (ValueError, TypeError, KeyError):
        return Memory()  # somebody wrote into it: watch anew


@dataclass(frozen=True, slots=True)
class Canary:
    """One look at a canary."""

    revision: str
    spec: CanarySpec
    memory: Memory
    message: str = ""
    """What it waits for, for people."""
    unfit: tuple[str, ...] = ()
    """Pools in which it has no room beside the old revision."""

    @property
    def weight(self) -> float | None:
        """Its share of the requests; None: gateways weigh nothing any more."""
        if self.memory.phase is Phase.PROMOTED:
            return None
        return 0.0 if self.memory.phase is Phase.PAUSED else self.spec.weight / 100

    def settings(self) -> CanarySettings | None:
        """For gateways."""
        return None if self.weight is None else CanarySettings(revision=self.revision, weight=self.weight)

    @property
    def told(self) -> str:
        """How it is, for people."""
        if self.memory.phase is Phase.PAUSED:
            return f"the canary of revision {self.revision} was clearly worse: {self.memory.why}; {WAY_OUT}"
        if self.unfit:
            return (
                f"the canary of revision {self.revision} has no room in {', '.join(self.unfit)}: one instance and "
                f"maxSurge 0; set rollout.maxSurge, or remove spec.rollout.canary"
            )
        return f"canary of revision {self.revision} with {self.spec.weight} % of the requests: {self.message}"


def pods_of(weight: int, wanted: int) -> int:
    """The fewest pods of a pool of `wanted` that carry `weight` percent of its requests."""
    return math.ceil(weight * wanted / 100)


def has_room(wanted: int, surge: int) -> bool:
    """Whether a canary fits beside the last pod of the old revision."""
    return wanted + surge >= 2


def next_memory(
    memory: Memory, spec: CanarySpec, counted: CanaryReport | None, *, ready: bool, now: str, age_s: float | None
) -> tuple[Memory, str]:
    """What is to be remembered now, and what a reader should know. `ready`: whether all its pods are. `age_s`: seconds
    from `memory.since` to `now`; None if that is no time.

    Paused: in one objective, or in what endpoints served at once, the whole interval of the canary lies below the whole
    interval of the others. Promoted: not so, for `observeS` and with `minRequests`.
    """
    if memory.phase in (Phase.PAUSED, Phase.PROMOTED):
        return memory, memory.why
    if not memory.since or age_s is None or age_s < 0:  # the clock has been put back: it is observed anew
        if not ready:
            return memory, "its pods start"
        memory, age_s = Memory(Phase.OBSERVED, now), 0.0
    figures = [] if counted is None else list(_compared(counted))
    worse = [text for text, apart in figures if apart]
    if worse:
        return Memory(Phase.PAUSED, memory.since, "; ".join(worse)[:_MOST_TEXT]), ""
    requests = 0 if counted is None else counted.canary.served.within + counted.canary.served.outside
    said = "; ".join(text for text, _ in figures) or "no gateway has counts of it yet"
    if age_s < spec.observe_s:
        return memory, f"{age_s:.0f} of {spec.observe_s:g} s; {said}"
    if requests < spec.min_requests:
        return memory, f"too few requests to say: {requests} of {spec.min_requests}; {said}"
    if not ready:
        return memory, f"not all its pods are ready; {said}"
    return Memory(Phase.PROMOTED, memory.since, said[:_MOST_TEXT]), ""


def _compared(counted: CanaryReport) -> Iterator[tuple[str, bool]]:
    """Each figure of both sides, and whether the canary's is clearly worse."""
    canary, others = counted.canary, counted.others
    pairs: list[tuple[str, Tally, Tally]] = [("served at once", canary.served, others.served)]
    none = Tally(0, 0, 0)
    named = sorted({*canary.objectives, *others.objectives})
    pairs += [(name, canary.objectives.get(name, none), others.objectives.get(name, none)) for name in named]
    for name, new, old in pairs:
        left, right = (Counts(each.within, each.outside, each.unknown) for each in (new, old))
        yield f"{name}: {_said(left)}, others {_said(right)}", left.interval()[1] < right.interval()[0]


def _said(counts: Counts) -> str:
    if not counts.requests:
        return "no requests"
    lower, upper = counts.interval()
    share = "?" if counts.share is None else f"{100 * counts.share:.1f}"
    return f"{share} % ({100 * lower:.1f} to {100 * upper:.1f}) of {counts.requests} requests"
