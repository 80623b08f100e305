"""A step while it is composed and once it is composed, its output, and running totals (v1/core/sched/output.py)."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from ballast_sim.engine.events import FinishReason
from ballast_sim.engine.requests import RequestState

UNLIMITED_TOKENS = 1 << 62

ScheduledChunk = tuple[RequestState, int, int, bool, bool]
"""(request, tokens scheduled, tokens computed before, whether it samples a token, whether it is a decode).

A plain tuple: each step makes one for each running request.
"""


@dataclass(slots=True)
class Batch:
    """A composed step (vLLM's SchedulerOutput). Empty while nothing can be scheduled.

    `number` counts the steps that compute something, from 1. A coarse engine leaves its cohort out of `chunks`.
    """

    number: int = 0
    chunks: Sequence[ScheduledChunk] = ()
    tokens: int = 0
    decodes: int = 0
    decode_context_tokens: int = 0
    prefill_pairs: float = 0.0
    resumed: int = 0
    preempted: int = 0
    pulls: Sequence[RequestState] = ()
    needless_pulls: Sequence[RequestState] = ()
    ended_pulls: Sequence[RequestState] = ()
    ended_sends: Sequence[RequestState] = ()
    load_s: float = 0.0
    """To load adapters before it."""
    starts_s: float = 0.0
    ends_s: float = 0.0


NO_REQUESTS: Set[RequestState] = frozenset()


class Composition:
    """A step while it is being composed.

    `token_budget` is what is left of max_num_batched_tokens, `prompt_budget` what is left for prompts;
    `num_scheduled_tokens` maps each scheduled request to its tokens. Running requests in `yielding` are passed over
    until the waiting ones have had their turn. `preempted` counts preemptions for want of KV, `displaced` those that
    the policy chose.
    """

    __slots__ = (
        "batch",
        "displaced",
        "num_scheduled_tokens",
        "preempted",
        "prompt_budget",
        "token_budget",
        "yielding",
    )

    def __init__(self, token_budget: int) -> None:
        """Nothing scheduled yet."""
        self.batch = Batch()
        self.num_scheduled_tokens: dict[RequestState, int] = {}
        self.token_budget = token_budget
        self.prompt_budget = UNLIMITED_TOKENS
        self.preempted = 0
        self.displaced = 0
        self.yielding = NO_REQUESTS


@dataclass(frozen=True, slots=True)
class Output:
    """What a finished step brought: ids of requests that got a token, and requests that ended."""

    tokens: Sequence[str] = ()
    finished: Sequence[tuple[RequestState, FinishReason]] = ()


NO_OUTPUT = Output()


@dataclass(slots=True)
class Counters:
    """Totals since the start, in tokens where vLLM counts tokens."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0


@dataclass(slots=True)
class StepCount:
    """Steps that compute something: composed so far, and of these, processed."""

    composed: int = 0
    processed: int = 0
