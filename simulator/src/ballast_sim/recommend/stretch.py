"""Parts of the traffic: the busiest stretch, for short runs that show what the whole of it will show, and what comes
after it, for runs at a higher rate that last as long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from ballast_core.profiles.capacity import LengthStatistics, decode_rps, prefill_rps
from ballast_sim.recommend.question import Question
from ballast_sim.simulation.inputs.source import Load, WorkloadSource, turns
from ballast_sim.workloads import WorkloadRequest

SHARE = 8
"""A stretch is one part of so many."""
LEAST = 200
"""Requests of a stretch: fewer have no tail to compare."""
LIVES = 1.0
"""Mean lives of a request that a stretch lasts at least: decode endpoints fill up within one."""
TOKEN_S = 0.05
"""Between tokens, where the objective does not say."""


@dataclass(frozen=True, slots=True)
class Span:
    """Successive requests of the traffic."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch(WorkloadSource):
    """`count` requests of a source from number `first` on. The first of them arrives at 0 s."""

    first: int
    count: int

    @classmethod
    def of(cls, source: WorkloadSource, span: Span) -> Self:
        """That part of `source`."""
        whole = {each.name: getattr(source, each.name) for each in fields(WorkloadSource)}
        return cls(**whole, first=span.first, count=span.count)

    def load(self, seed: int, rate_scale: float) -> Load:
        """See `WorkloadSource.load`."""
        part = WorkloadSource.load(self, seed, rate_scale).requests[self.first : self.first + self.count]
        start_s = part[0].arrival_s
        requests = tuple(replace(request, arrival_s=request.arrival_s - start_s) for request in part)
        return Load(requests, turns(requests) if self.closed_loop else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Longer(WorkloadSource):
    """More requests of a source, as far as it has them; without those of more than `most_tokens`, which nobody asked
    about."""

    most_tokens: int

    @classmethod
    def of(cls, source: WorkloadSource, growth: float, most_tokens: int) -> Self:
        """`growth` times its limit."""
        whole = {each.name: getattr(source, each.name) for each in fields(WorkloadSource)}
        if source.limit is not None:
            whole["limit"] = math.ceil(source.limit * growth)
        return cls(**whole, most_tokens=most_tokens)

    def load(self, seed: int, rate_scale: float) -> Load:
        """See `WorkloadSource.load`."""
        every = WorkloadSource.load(self, seed, rate_scale).requests
        requests = tuple(each for each in every if each.input_tokens + each.output_tokens <= self.most_tokens)
        return Load(requests, turns(requests) if self.closed_loop else {})


def busiest(requests: Sequence[WorkloadRequest], question: Question, lengths: LengthStatistics) -> Span | None:
    """The successive requests that bring the most work a second. None where a stretch would be most of the traffic."""
    count = _count(requests, question, lengths)
    if 2 * count > len(requests):
        return None
    arrivals_s = np.array([request.arrival_s for request in requests])
    done_s = np.concatenate(([0.0], np.cumsum(_work_s(requests, question, lengths))))
    spans_s = arrivals_s[count - 1 :] - arrivals_s[: len(requests) - count + 1]
    first = int(np.argmax((done_s[count:] - done_s[:-count]) / np.maximum(spans_s, 1e-9)))
    return Span(first, count)


def _count(requests: Sequence[WorkloadRequest], question: Question, lengths: LengthStatistics) -> int:
    life_s = lengths.output_tokens * (question.objective.tpot_s or TOKEN_S)
    rate_rps = len(requests) / max(requests[-1].arrival_s, 1e-9)
    return max(LEAST, math.ceil(len(requests) / SHARE), math.ceil(LIVES * life_s * rate_rps))


def _work_s(
    requests: Sequence[WorkloadRequest], question: Question, lengths: LengthStatistics
) -> npt.NDArray[np.float64]:
    """Seconds for which each request keeps every engine of the budget busy, by arithmetic."""
    tpot_s = question.objective.tpot_s
    prefills = sum(each.instances * prefill_rps(each.profile, lengths) for each in question.hardware)
    decodes = sum(each.instances * decode_rps(each.profile, lengths, tpot_s) for each in question.hardware)
    inputs = np.array([request.input_tokens for request in requests])
    outputs = np.array([request.output_tokens for request in requests])
    return inputs / lengths.input_tokens / prefills + outputs / lengths.output_tokens / decodes
