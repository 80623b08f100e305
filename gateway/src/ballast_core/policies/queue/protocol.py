"""What a queue order is: a frozen dataclass whose fields are its parameters, with pure methods.

The same order serves the gateway's queue, the priorities that it sends to stock vLLM, and the scheduler of a simulated
engine.
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
    """What an order gets of one request."""

    arrived_s: float
    prompt_tokens: int
    cached_tokens: int = 0
    """Leading tokens of the prompt that need not be computed."""
    prefilled_tokens: int = 0
    """Prompt tokens computed so far beyond the cached ones. It never falls, even if a preemption drops the KV cache."""
    generated_tokens: int = 0
    expected_output_tokens: float | None = None
    """Predicted output length; None without a prediction."""
    deadline_s: float | None = None
    """When its first token is due (arrival + TTFT objective); None: no objective."""
    priority: int = 0
    """The request's own priority: lower is more urgent and goes before any order."""

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that are not cached."""
        return max(self.prompt_tokens - self.cached_tokens, 0)

    @property
    def attained_tokens(self) -> int:
        """Tokens of prompt and output processed so far."""
        return self.prefilled_tokens + self.generated_tokens


@dataclass(frozen=True, slots=True)
class Service:
    """Service rates. They turn tokens into seconds, so that work and time of arrival have the same unit."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    """Output tokens per second of one request."""
    gamma_per_s: float | None = None
    """UniBoost's gamma as learned from the tail; None: not learned yet, and the order's parameter applies."""

    def seconds(self, prefill_tokens: float, decode_tokens: float) -> float:
        """Seconds that this work takes alone."""
        return prefill_tokens / self.prefill_tokens_per_s + decode_tokens / self.decode_tokens_per_s


class Learned(Protocol):
    """What a user of an order (a gateway's queue, a simulated engine) has learned for it from response times."""

    @property
    def gamma_per_s(self) -> float | None:
        """For `Service.gamma_per_s`; None if nothing has been learned yet, or if the order learns nothing."""
        ...

    def first_token(self, response_s: float) -> bool:
        """A first token came `response_s` after the request's arrival. Returns whether keys have changed."""
        ...

    def completed(self, response_s: float) -> bool:
        """A request completed `response_s` after its arrival. Returns whether keys have changed."""
        ...


class NothingLearned:
    """The state of an order that learns nothing."""

    gamma_per_s: ClassVar[float | None] = None

    def first_token(self, response_s: float) -> bool:
        """Never changes keys."""
        return False

    def completed(self, response_s: float) -> bool:
        """Never changes keys."""
        return False


class QueueOrder(Protocol):
    """Ranks waiting requests, and running ones that may be preempted for a waiting one.

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
        """Whether the gateway sends it to engines, as the priority of each request."""
        ...

    @property
    def preemption_margin(self) -> float:
        """By how much a waiting request must be ahead of a running one to preempt it, in units of `key`; 0 or more."""
        ...

    @property
    def bin_tokens_of_work(self) -> int | None:
        """Keys change only when attained work passes a power of two times this many tokens; None: with every token."""
        ...

    def key(self, work: Work, service: Service) -> float:
        """The sort key: the smallest goes first. Finite."""
        ...

    def keys(self, works: Sequence[Work], service: Service) -> FloatArray:
        """`key` of each, shape (len(works),)."""
        ...

    def learned(self) -> Learned:
        """A new learning state. Each user of the order keeps one and reports response times to it."""
        ...

    def may_evict(self, work: Work, attained_at_dispatch_tokens: int) -> bool:
        """Whether a running request may be preempted for a waiting one that is ahead of it by more than the margin.

        `attained_at_dispatch_tokens`: its `attained_tokens` when it last began to run. An engine that is out of memory
        preempts without this check.
        """
        ...


class FixedOrder:
    """Base of orders that learn nothing and preempt no running request."""

    __slots__ = ()

    bin_tokens_of_work: ClassVar[int | None] = None

    def key(self, work: Work, service: Service) -> float:
        """The sort key: the smallest goes first."""
        raise NotImplementedError

    def keys(self, works: Sequence[Work], service: Service) -> FloatArray:
        """`key` of each."""
        return np.array([self.key(work, service) for work in works], np.float64)

    def learned(self) -> Learned:
        """A state that learns nothing."""
        return NothingLearned()

    def may_evict(self, work: Work, attained_at_dispatch_tokens: int) -> bool:
        """False."""
        return False
