"""Placements that weigh cached prefixes against load, each with its formula.

Q: uncached tokens queued for prefill on an endpoint; p: the request's prompt tokens; m: those that the endpoint is
believed to hold; BS: its requests in flight. For a request without block hashes m is 0, and load alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ballast_core import kernel
from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request
from ballast_core.policies.declaring import parameter
from ballast_core.policies.placement import compiled
from ballast_core.state.view import View


@dataclass(frozen=True, slots=True)
class LeastUncachedTokens:
    """The prefill that ends first by token count: cost_i = (Q_i + p - m_i) / rate_i, in seconds.

    rate_i: prompt tokens per second that the endpoint prefills in full steps, by its recalibrated profile. So unlike
    hardware is compared in time, not in tokens. Attention, quadratic in the prompt, is neglected (`predicted-ttft`
    counts it). Example: Q (8000, 0), p - m (0, 1024), rate (8000, 4000)/s -> 1.0 s against 0.256 s, the second.
    """

    type: ClassVar[str] = "least-uncached-tokens"
    needs: ClassVar[Belief] = Belief.PREFILL_TIMES | Belief.PREFIXES

    def costs(self, view: View, request: Request) -> FloatArray:
        if (functions := kernel.active()) is not None:
            return compiled.least_uncached_tokens(functions, view, request)
        tokens = view.uncached_tokens + request.prompt_tokens - view.matched_tokens
        return np.asarray(tokens / view.beliefs.prefill_times.tokens_per_s(view.slots), np.float64)


@dataclass(frozen=True, slots=True)
class LinearKv:
    """Linear combination (LMetric figure 6b, section 4.4): cost_i = w (1 - m_i / p) + (1 - w) BS_i / max(BS).

    w is kv_weight; the paper's best values of 0.4 to 0.9 are 0.7 (ChatBot) and 0.55 (API). It compares raw counts, also
    across unlike hardware. Example: w 0.7, hits (0.5, 0), BS (4, 2) -> 0.65 against 0.85, the first.
    """

    type: ClassVar[str] = "linear-kv"
    needs: ClassVar[Belief] = Belief.PREFIXES
    kv_weight: float = parameter(0.7, "Weight of the cache misses, 0 to 1; the rest goes to requests in flight.")

    def __post_init__(self) -> None:
        if not 0 <= self.kv_weight <= 1:
            raise ValueError(f"kv_weight: must be from 0 to 1, not {self.kv_weight!r}")

    def costs(self, view: View, request: Request) -> FloatArray:
        missed = 1.0 - view.matched_tokens / max(request.prompt_tokens, 1)
        return self.kv_weight * missed + (1.0 - self.kv_weight) * share_of_largest(view.requests)


@dataclass(frozen=True, slots=True)
class RangeFilterKv:
    """Filter (LMetric figure 13, as AIBrix): the least BS if max(BS) - min(BS) > max_range, else the most cached.

    cost_i = BS_i, or (max m - m_i) (max BS + 1) + BS_i: most cached first, ties by the least BS. The paper's best
    thresholds are between 2 and 16. It compares raw counts, also across unlike hardware.
    Example: max_range 4, m (512, 0), BS (6, 3) -> the first; BS (8, 3) -> the second.
    """

    type: ClassVar[str] = "range-filter-kv"
    needs: ClassVar[Belief] = Belief.PREFIXES
    max_range: int = parameter(8, "Largest difference in requests in flight with which cached prefixes decide.")

    def __post_init__(self) -> None:
        if self.max_range < 0:
            raise ValueError(f"max_range: must be 0 or more, not {self.max_range!r}")

    def costs(self, view: View, request: Request) -> FloatArray:
        requests = view.requests.astype(np.float64)
        if requests.max() - requests.min() > self.max_range:
            return requests
        missed = (view.matched_tokens.max() - view.matched_tokens).astype(np.float64)
        return np.asarray(missed * (requests.max() + 1.0) + requests, np.float64)


@dataclass(frozen=True, slots=True)
class DynamoCost:
    """Weighted sum as in NVIDIA Dynamo (LMetric section 6): cost_i = w P_i / max(P) + (1 - w) T_i / max(T).

    P_i = Q_i + p - m_i: the prefill tokens; T_i: all tokens in flight there (Dynamo: active blocks); both normalised.
    w is prefill_weight; the paper tunes it per workload and gives no values. It compares raw tokens, also across unlike
    hardware. Example: w 0.5, P (100, 400), T (900, 300) -> 0.625 against 0.667, the first.
    """

    type: ClassVar[str] = "dynamo-cost"
    needs: ClassVar[Belief] = Belief.PREFIXES | Belief.PROGRESS
    prefill_weight: float = parameter(0.5, "Weight of the prefill tokens, 0 to 1; the rest goes to all tokens.")

    def __post_init__(self) -> None:
        if not 0 <= self.prefill_weight <= 1:
            raise ValueError(f"prefill_weight: must be from 0 to 1, not {self.prefill_weight!r}")

    def costs(self, view: View, request: Request) -> FloatArray:
        prefill = share_of_largest(view.uncached_tokens + request.prompt_tokens - view.matched_tokens)
        return self.prefill_weight * prefill + (1.0 - self.prefill_weight) * share_of_largest(view.tokens)


@dataclass(frozen=True, slots=True)
class PredictedTtft:
    """The earliest first token (LMetric figure 14, as llm-d): cost_i = expected time to first token, in seconds.

    If the candidate prefills: its prefill queue and the own prefill, attention included, by its recalibrated profile.
    If it only decodes: the time to hand-off, the same for all, and one decode step with the request. Unlike hardware is
    compared in time. Example: a queue of 1.2 s and 0.1 s of own prefill against no queue and 0.9 s -> 1.3 against 0.9,
    the second.
    """

    type: ClassVar[str] = "predicted-ttft"
    needs: ClassVar[Belief] = Belief.PREFILL_TIMES | Belief.STEP_TIMES | Belief.PREFIXES | Belief.PROGRESS

    def costs(self, view: View, request: Request) -> FloatArray:
        if view.prefills_here:
            return view.prefill_s
        decodes = (view.requests + 1).astype(np.float64)
        context = (view.tokens + request.prompt_tokens).astype(np.float64)
        return np.add(view.handoff_s, view.beliefs.step_times.predict_s(view.slots, decodes, context))


def share_of_largest(values: IntArray) -> FloatArray:
    """Values over the largest one; 0 where all are 0."""
    largest = float(values.max())
    return values / largest if largest > 0 else np.zeros(len(values))
