"""What the scheduler hands over: a composed step, what processing it brought, and running totals."""

from dataclasses import dataclass, field

from ballast_sim.engine.events import FinishReason
from ballast_sim.engine.requests import RequestState

ScheduledChunk = tuple[RequestState, int, int, bool, bool]
"""(request, tokens computed, tokens of it computed before, whether a new token comes out, whether it is a decode).

A plain tuple: one is made for each running sequence in each step.
"""


@dataclass(slots=True)
class Batch:
    """One step as composed. An empty one is composed, too, while nothing can be scheduled.

    `number` counts the steps that compute something, from 1. A coarse engine leaves its cohort out of `chunks`.
    """

    number: int = 0
    chunks: list[ScheduledChunk] = field(default_factory=list)
    tokens: int = 0
    decodes: int = 0
    decode_context_tokens: int = 0
    prefill_pairs: float = 0.0
    resumed: int = 0
    preempted: int = 0
    pulls: list[RequestState] = field(default_factory=list)
    needless_pulls: list[RequestState] = field(default_factory=list)
    ended_pulls: list[RequestState] = field(default_factory=list)
    ended_sends: list[RequestState] = field(default_factory=list)
    starts_s: float = 0.0
    ends_s: float = 0.0


@dataclass(slots=True)
class Output:
    """What processing a step brought: who got a token, who ended."""

    tokens: list[str] = field(default_factory=list)
    finished: list[tuple[RequestState, FinishReason]] = field(default_factory=list)


@dataclass(slots=True)
class Counters:
    """Totals since the start, in tokens where vLLM counts tokens."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
