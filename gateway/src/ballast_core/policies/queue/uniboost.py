"""UniBoost: arrival minus a boost that shrinks with the work done (sections 3.2 to 3.4, appendix A.1 and A.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.policies.declaring import check_within, explained, parameter
from ballast_core.policies.queue.gamma import GammaEstimator, GammaSettings
from ballast_core.policies.queue.orders import ENGINE_PRIORITY
from ballast_core.policies.queue.protocol import Learned, NothingLearned, Service, Work

_LOG_2 = math.log(2.0)


def boost_s(work_s: float, gamma_per_s: float) -> float:
    """b(w) = (1/gamma) ln(1 / (1 - exp(-gamma w))) in seconds (Eq. 2): infinite at 0, and 0 in the limit.

    Example: gamma 1 /s, w = ln 2 s -> ln 2 s.
    """
    x = gamma_per_s * work_s
    if x <= 0:
        return math.inf
    # Each of these two forms is exact where the other one loses digits.
    log = math.log(-math.expm1(-x)) if x < _LOG_2 else math.log1p(-math.exp(-x))
    return -log / gamma_per_s


def quantised_tokens(tokens: int, bin_tokens: int) -> int:
    """The largest k 2^j up to `tokens`, at least k (QUANTIZE in A.1, which rounds down; Eq. 8 rounds up: erratum).

    Example, k = 256: 100 -> 256, 511 -> 256, 512 -> 512, 10,000 -> 8,192.
    """
    return bin_tokens << (max(tokens // bin_tokens, 1).bit_length() - 1)


def most_priority_changes(tokens: int, bin_tokens: int) -> int:
    """How many values the quantised work of a request of S tokens takes: 1 + floor(log2(S / k)) (section 3.3).

    Example: 10,000 tokens, k = 256 -> 6.
    """
    return max(tokens // bin_tokens, 1).bit_length()


@dataclass(frozen=True, slots=True)
class UniBoost:
    """First come, first served, with a boost that shrinks with the work done: key = arrival - b(w) (s).

    b(w) = (1/gamma) ln(1 / (1 - exp(-gamma w))). Work counts the prompt and output tokens processed so far, and at
    least the uncached prompt. MemGuard rounds it down to bin_tokens 2^j: the key changes only when the work doubles,
    and only then may a running request be preempted. Work becomes seconds at v_p prompt tokens per second for the
    prompt's part (and bin_tokens), at v_d output tokens per second of one request for the rest. A high gamma is close
    to first come, first served, a low gamma to least attained service. With adaptive, gamma is learned from the tail of
    response times. No request is overtaken by one that arrives more than b(bin_tokens / v_p) later.
    Example: gamma 1 /s, v_p 10,000 tokens/s: prompts of 256 and 16,384 tokens -> boosts of 3.68 s and 0.22 s.
    """

    type: ClassVar[str] = "uniboost"
    needs: ClassVar[Belief] = Belief.PREFILL_TIMES
    needs_lengths: ClassVar[bool] = False
    gamma_per_s: float = parameter(1.0, "Gamma until one is learned, and always without adaptive; 1e-6 to 1e6 /s.")
    adaptive: bool = parameter(True, "Whether gamma is learned from the tail of response times (phase 4).")
    unified: bool = parameter(True, "Whether output tokens count as work (phase 2); if not, only the uncached prompt.")
    quantise: bool = parameter(True, "Whether work counts in powers of two, which shields running requests (MemGuard).")
    bin_tokens: int = parameter(256, "MemGuard's k: the least work, and the unit of the powers; 1 to 1000000.")
    preemption_margin_s: float = parameter(0.1, "Seconds of key by which one must be ahead to preempt, 0 or more.")
    tail: Literal["e2e", "ttft"] = field(
        default="e2e", metadata=explained("The response time whose tail gamma is learned from; the paper's is e2e.")
    )
    gamma_window: int = parameter(1000, "Number of last completed requests whose tail counts, 100 to 100000.")
    gamma_smoothing: float = parameter(0.2, "Weight of a new estimate against the previous gamma, above 0 to 1.")
    gamma_min_per_s: float = parameter(0.01, "Lower bound of the learned gamma, 1e-6 or more.")
    gamma_max_per_s: float = parameter(100.0, "Upper bound of the learned gamma, 1e6 or less.")
    engine_priority: bool = parameter(False, ENGINE_PRIORITY)

    def __post_init__(self) -> None:
        if not 1e-6 <= self.gamma_per_s <= 1e6:
            raise ValueError(f"gamma_per_s: must be from 1e-6 to 1e6, not {self.gamma_per_s!r}")
        check_within(self, bin_tokens=(1, 1_000_000))
        if not 0 <= self.preemption_margin_s < math.inf:
            raise ValueError(f"preemption_margin_s: must be finite and 0 or more, not {self.preemption_margin_s!r}")
        self.gamma_settings()

    @property
    def preemption_margin(self) -> float:
        """The paper's delta, in the unit of keys: seconds."""
        return self.preemption_margin_s

    @property
    def bin_tokens_of_work(self) -> int | None:
        """MemGuard's k; None without it."""
        return self.bin_tokens if self.quantise else None

    def gamma_settings(self) -> GammaSettings:
        """How gamma is learned."""
        return GammaSettings(
            gamma_window=self.gamma_window,
            gamma_smoothing=self.gamma_smoothing,
            gamma_min_per_s=self.gamma_min_per_s,
            gamma_max_per_s=self.gamma_max_per_s,
        )

    def learned(self) -> Learned:
        """Gamma from the tail of one kind of response times; nothing without `adaptive`."""
        if not self.adaptive:
            return NothingLearned()
        return LearnedGamma(GammaEstimator(self.gamma_per_s, self.gamma_settings()), self.tail)

    def key(self, work: Work, service: Service) -> float:
        """Arrival minus boost (s)."""
        work_s = self._work_s(self.effective_tokens(work), work.uncached_tokens, service)
        return work.arrived_s - boost_s(work_s, self._gamma(service))

    def keys(self, works: Sequence[Work], service: Service) -> FloatArray:
        """`key` of each, shape (len(works),): the same numbers, but faster, since few values of work differ."""
        count = len(works)
        arrived_s = np.fromiter((work.arrived_s for work in works), np.float64, count)
        uncached = np.fromiter((work.uncached_tokens for work in works), np.int64, count)
        attained = np.fromiter((work.attained_tokens for work in works), np.int64, count)
        tokens = np.maximum(np.maximum(uncached, attained) if self.unified else uncached, 1)
        if self.quantise:
            tokens = self.bin_tokens << (np.frexp(np.maximum(tokens // self.bin_tokens, 1))[1].astype(np.int64) - 1)
        at_prefill = np.maximum(uncached, self.least_tokens)
        prefill_s = np.minimum(tokens, at_prefill) / service.prefill_tokens_per_s
        work_s = prefill_s + np.maximum(tokens - at_prefill, 0) / service.decode_tokens_per_s
        values, which = np.unique(work_s, return_inverse=True)
        gamma = self._gamma(service)
        boosts: FloatArray = np.array([boost_s(value, gamma) for value in values.tolist()], np.float64)
        return arrived_s - boosts[which]

    def effective_tokens(self, work: Work) -> int:
        """The work that counts: max(processed, uncached prompt), quantised (A.5)."""
        tokens = max(work.attained_tokens, work.uncached_tokens, 1) if self.unified else max(work.uncached_tokens, 1)
        return quantised_tokens(tokens, self.bin_tokens) if self.quantise else tokens

    @property
    def least_tokens(self) -> int:
        """The least work of any request."""
        return self.bin_tokens if self.quantise else 1

    def most_boost_s(self, service: Service) -> float:
        """b of the least work: no request is overtaken by one that arrives more than this later."""
        return boost_s(service.seconds(self.least_tokens, 0), self._gamma(service))

    def may_evict(self, work: Work, attained_at_dispatch_tokens: int) -> bool:
        """With MemGuard, only after its quantised work has grown since it last began to run."""
        if not self.quantise:
            return True
        before = max(attained_at_dispatch_tokens, work.uncached_tokens)
        now = max(work.attained_tokens, work.uncached_tokens)
        return quantised_tokens(now, self.bin_tokens) > quantised_tokens(before, self.bin_tokens)

    def _work_s(self, tokens: int, uncached_tokens: int, service: Service) -> float:
        at_prefill = max(uncached_tokens, self.least_tokens)
        return service.seconds(min(tokens, at_prefill), max(tokens - at_prefill, 0))

    def _gamma(self, service: Service) -> float:
        learned = service.gamma_per_s
        return learned if self.adaptive and learned is not None else self.gamma_per_s


class LearnedGamma:
    """Gamma, learned from the tail of TTFT or of E2E (phase 4)."""

    def __init__(self, estimator: GammaEstimator, tail: Literal["e2e", "ttft"]) -> None:
        self._estimator = estimator
        self._tail = tail

    @property
    def gamma_per_s(self) -> float | None:
        """None until enough requests have completed."""
        return self._estimator.gamma_per_s if self._estimator.updates else None

    def first_token(self, response_s: float) -> bool:
        """Counts if gamma is learned from the tail of TTFT."""
        return self._tail == "ttft" and self._estimator.completed(response_s)

    def completed(self, response_s: float) -> bool:
        """Counts if gamma is learned from the tail of E2E."""
        return self._tail == "e2e" and self._estimator.completed(response_s)
