"""How long a prefill takes on an endpoint, its queue included.

Work is measured in seconds: what the endpoint's profile predicts for it (the step-time law, chunk by chunk). One factor
is learned per endpoint from prefill completions, the real seconds per second of work:

    service = completion - max(dispatch, the endpoint's previous completion)
    factor  = (sum of service + prior) / (sum of work + prior)

A busy engine prefills in order of arrival. The time since its previous completion is therefore what this prompt took,
however long the queue was. Of two prompts that end in one step, the second has a service of 0; so the ratio of the sums
is right, and the mean of ratios is not. The sums decay with work done, so an idle endpoint forgets nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.model_error import ErrorTracker, ModelError
from ballast_core.beliefs.stacked_profiles import StackedProfiles
from ballast_core.profiles import HardwareProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTimeSettings:
    """How fast and how far a profile is corrected. docs/beliefs.md gives the reasons for the defaults."""

    memory_work_s: float = 60.0
    """After this much further work, in seconds, a completion's weight has fallen to 1/e."""
    prior_work_s: float = 2.0
    """Weight of a known profile, in seconds of work."""
    uninformed_prior_work_s: float = 0.1
    """The same for an endpoint whose hardware is unknown."""
    straggler_ratio: float = 5.0
    """Services are cut off at the longer of this multiple of the expected service and two full chunks."""
    max_factor: float = 50.0
    """Bound of the factor, and the reciprocal of its lower bound."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        for name in ("memory_work_s", "prior_work_s", "uninformed_prior_work_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be above 0, not {getattr(self, name)!r}")
        for name in ("straggler_ratio", "max_factor"):
            if not 1 < getattr(self, name) < np.inf:
                raise ValueError(f"{name}: must be finite and above 1, not {getattr(self, name)!r}")


@dataclass(slots=True)
class _Learned:
    prior_work_s: float
    errors: ErrorTracker
    work_s: float = 0.0
    service_s: float = 0.0
    completed_s: float = -np.inf


class PrefillTimes:
    """Prefill times of all endpoints, by slot."""

    def __init__(self, settings: PrefillTimeSettings | None = None) -> None:
        self.settings = settings or PrefillTimeSettings()
        self._profiles = StackedProfiles()
        self._learned: dict[int, _Learned] = {}
        self._factors: FloatArray = np.ones(1)

    def add(self, slot: int, profile: HardwareProfile | None = None) -> None:
        """A new endpoint has this slot; `profile` is None if its hardware is unknown."""
        self.remove(slot)
        if profile is not None:
            self._profiles.put(slot, profile)
        self._grow(slot + 1)
        known = profile is not None and profile.speed_known
        prior_s = self.settings.prior_work_s if known else self.settings.uninformed_prior_work_s
        self._learned[slot] = _Learned(prior_s, ErrorTracker(expected_ratio=0.2 if known else 1.0))

    def remove(self, slot: int) -> None:
        """The endpoint is gone."""
        if self._learned.pop(slot, None) is not None:
            self._profiles.clear(slot)
            self._factors[slot] = 1.0

    def _grow(self, slots: int) -> None:
        self._profiles.grow(slots)
        more = len(self._profiles) - len(self._factors)
        if more > 0:
            self._factors = np.concatenate([self._factors, np.ones(more)])

    def completed(
        self,
        slot: int,
        *,
        dispatched_s: float,
        uncached_tokens: float,
        now_s: float,
        cached_tokens: float = 0.0,
        predicted_s: float | None = None,
    ) -> float | None:
        """Learn from a completed prefill. Times in seconds on the caller's clock.

        `predicted_s`: the duration predicted at dispatch, from which the model's error is tracked. Returns the seconds
        that it was in service; None if the completion could not be used.
        """
        learned = self._learned.get(slot)
        usable = uncached_tokens >= 0 and cached_tokens >= 0 and now_s >= dispatched_s
        if learned is None or not (usable and math.isfinite(uncached_tokens + cached_tokens + now_s - dispatched_s)):
            return None
        if predicted_s is not None and predicted_s > 0:
            learned.errors.add((now_s - dispatched_s) / predicted_s - 1.0)
        work_s = self._profiles.prefill_alone_s(slot, uncached_tokens, cached_tokens)
        service_s = max(now_s - max(dispatched_s, learned.completed_s), 0.0)
        learned.completed_s = max(now_s, learned.completed_s)
        # Two full chunks are always plausible: the first of many prompts that end in one step waits for all of them.
        longest_s = max(self.settings.straggler_ratio * work_s, 2.0 * self._profiles.one_chunk_s(slot))
        service_s = min(service_s, longest_s * float(self._factors[slot]))
        kept = math.exp(-work_s / self.settings.memory_work_s)
        learned.work_s = kept * learned.work_s + work_s
        learned.service_s = kept * learned.service_s + service_s
        factor = (learned.service_s + learned.prior_work_s) / (learned.work_s + learned.prior_work_s)
        self._factors[slot] = min(max(factor, 1 / self.settings.max_factor), self.settings.max_factor)
        return service_s

    def work_s(
        self, slots: IntArray, uncached_tokens: FloatArray | float, cached_tokens: FloatArray | float = 0.0
    ) -> FloatArray:
        """Seconds that each profile predicts for one prompt prefilled alone, in chunks of the engine's token budget.

        A fully cached prompt still computes one token.
        """
        tokens = np.maximum(uncached_tokens, 1.0)
        budget = self._profiles.token_budget(slots)
        full = np.floor(tokens / budget)
        rest = tokens - full * budget
        chunks_s = full * self._profiles.chunk_s(slots)
        rest_s = self._profiles.prefill_step_s(slots, rest)
        rest_s *= rest > 0
        return chunks_s + rest_s + self._profiles.pair_s(slots) * tokens * (cached_tokens + tokens / 2)

    def wait_s(
        self,
        slots: IntArray,
        queued_tokens: FloatArray | float,
        elapsed_s: FloatArray | float = 0.0,
        *,
        queued_pairs: FloatArray | float = 0.0,
    ) -> FloatArray:
        """Seconds until each endpoint has prefilled its queue, in full chunks.

        `queued_tokens`: uncached tokens dispatched there and not done, with the whole prompt in service;
        `queued_pairs`: the pairs of tokens that attend to each other in them (`PrefillPlan.uncached_pairs`);
        `elapsed_s`: seconds that the prompt in service has been served.
        """
        seconds = self._profiles.chunk_token_s(slots) * queued_tokens
        seconds += self._profiles.pair_s(slots) * queued_pairs
        seconds *= self._factor_of(slots)
        return np.maximum(seconds - elapsed_s, 0.0)

    def duration_s(
        self,
        slots: IntArray,
        uncached_tokens: FloatArray | float,
        queued_tokens: FloatArray | float = 0.0,
        *,
        queued_pairs: FloatArray | float = 0.0,
        cached_tokens: FloatArray | float = 0.0,
        elapsed_s: FloatArray | float = 0.0,
    ) -> FloatArray:
        """Seconds from dispatch to the end of a prompt's prefill on each endpoint, waiting included."""
        work_s = self.work_s(slots, uncached_tokens, cached_tokens)
        own_s = self._factor_of(slots) * work_s
        return self.wait_s(slots, queued_tokens, elapsed_s, queued_pairs=queued_pairs) + own_s

    def tokens_per_s(self, slots: IntArray) -> FloatArray:
        """Service rate of each endpoint: prompt tokens per second in full chunks, without their attention."""
        return 1.0 / (self._factor_of(slots) * self._profiles.chunk_token_s(slots))

    def columns(self, slots: int) -> tuple[FloatArray, FloatArray]:
        """The profiles (`StackedProfiles.columns`) and the factors of at least this many slots. Read only."""
        if slots > len(self._factors):
            self._grow(slots)
        return self._profiles.columns(slots), self._factors

    def _factor_of(self, slots: IntArray) -> FloatArray:
        """The factors of these slots; 1 for unknown slots."""
        if len(self._profiles) > len(self._factors):
            self._grow(len(self._profiles))
        return self._factors.take(slots)

    def factor(self, slot: int) -> float:
        """Real seconds per second of work by the profile; 1 if nothing is known."""
        return float(self._factors[slot]) if slot in self._learned else 1.0

    def error(self, slot: int) -> ModelError:
        """Errors of the last predictions. Raises `LookupError` if the slot has no endpoint."""
        if slot not in self._learned:
            raise LookupError(f"slot {slot} has no endpoint")
        return self._learned[slot].errors.error
