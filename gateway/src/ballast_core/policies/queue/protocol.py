"""What a queue order is: a frozen dataclass whose fields are its parameters, with pure methods.

The same order serves the gateway's waiting room, the priorities that it sends to stock vLLM, and the scheduler of a
simulated engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief


@dataclass(slots=True)
class Work:
    """What an order is shown of one request."""

    arrived_s: float
    prompt_tokens: int
    cached_tokens: int = 0
    """Leading tokens of the prompt that need no computing."""
    prefilled_tokens: int = 0
    """Prompt tokens computed so far, beyond cached ones; never falls, also when KV is lost to a preemption."""
    generated_tokens: int = 0
    expected_output_tokens: float | None = None
    """Output tokens in all, as a predictor says; None where nobody predicts."""
    deadline_s: float | None = None
    """When its first token is due (arrival + TTFT objective); None: no objective."""
    priority: int = 0
    """The request's own; lower is more urgent and comes before any order."""

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that are not cached."""
        return max(self.prompt_tokens - self.cached_tokens, 0)

    @property
    def attained_tokens(self) -> int:
        """Tokens processed for it so far, of prompt and output."""
        return self.prefilled_tokens + self.generated_tokens


@dataclass(frozen=True, slots=True)
class Service:
    """How fast work is done: turns tokens into seconds, so that work and time of arrival have one unit."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    """Output tokens a second of one request."""
    gamma_per_s: float | None = None
    """UniBoost's gamma as learned from the tail; None: not learned yet, the order's own parameter counts."""

    def seconds(self, prefill_tokens: float, decode_tokens: float) -> float:
        """Time that this work takes by itself."""
        return prefill_tokens / self.prefill_tokens_per_s + decode_tokens / self.decode_tokens_per_s


class Learned(Protocol):
    """What one user of an order (a gateway's queue, a simulated engine) has learned for it from response times."""

    @property
    def gamma_per_s(self) -> float | None:
        """For `Service.gamma_per_s`; None: nothing was learned yet, or the order learns nothing."""
        ...

    def first_token(self, response_s: float) -> bool:
        """A request's first token came so long after its arrival. Returns whether keys have changed."""
        ...

    def completed(self, response_s: float) -> bool:
        """A request ended well so long after its arrival. Returns whether keys have changed."""
        ...


class NothingLearned:
    """Of an order that learns nothing."""

    gamma_per_s: ClassVar[float | None] = None

    def first_token(self, response_s: float) -> bool:
        """Never changes keys."""
        return False

    def completed(self, response_s: float) -> bool:
        """Never changes keys."""
        return False


class QueueOrder(Protocol):
    """Ranks requests that wait, or that may be preempted for one that waits.

    Contract, tested for every registered order: pure, and equal work gives equal keys. Ties go to the earlier arrival,
    then to the smaller id: `ranking.rank`.
    """

    type: ClassVar[str]

    @property
    def needs(self) -> Belief:
        """The beliefs that it reads."""
        ...

    @property
    def needs_lengths(self) -> bool:
        """Whether it reads `expected_output_tokens`."""
        ...

    @property
    def engine_priority(self) -> bool:
        """Whether the gateway tells it to engines, as the priority of each request."""
        ...

    @property
    def preemption_margin(self) -> float:
        """By how much one that waits must be ahead of one that runs to take its place, in units of `key`; 0 or more."""
        ...

    def key(self, work: Work, service: Service) -> float:
        """Smaller goes first; finite."""
        ...

    def keys(self, works: Sequence[Work], service: Service) -> FloatArray:
        """`key` of each, shape (len(works),)."""
        ...

    def learned(self) -> Learned:
        """A fresh state of what this order learns; each user keeps one and reports response times to it."""
        ...

    def may_evict(self, work: Work, attained_at_dispatch_tokens: int) -> bool:
        """Whether one that runs may give way to one that waits and is ahead of it by more than the margin.

        `attained_at_dispatch_tokens` are its `attained_tokens` when it last began to run. An engine that is out of
        memory need not ask.
        """
        ...


class FixedOrder:
    """What orders share that learn nothing and let no running request give way."""

    __slots__ = ()

    def key(self, work: Work, service: Service) -> float:
        """Smaller goes first."""
        raise NotImplementedError

    def keys(self, works: Sequence[Work], service: Service) -> FloatArray:
        """`key` of each."""
        return np.array([self.key(work, service) for work in works], np.float64)

    def learned(self) -> Learned:
        """Nothing."""
        return NothingLearned()

    def may_evict(self, work: Work, attained_at_dispatch_tokens: int) -> bool:
        """Never."""
        return False
