"""Observed service rates: tokens per second of one request on each endpoint (v_k), and pool-wide (SIBYL's v_sys).

A rate is a ratio of two sums, tokens over the seconds in which they came, so observations weigh by their duration. Both
sums decay exponentially with time. An endpoint with few observations falls back on the pool's rate, and the pool on a
default. The same class serves decode rates (seconds of each request: tokens/s per request) and prefill rates (seconds
in which the endpoint prefilled: tokens/s).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings:
    """How fast rates follow observations, and their values before the first one."""

    default_tokens_per_s: float = 30.0
    half_life_s: float = 30.0
    prior_s: float = 2.0
    """Weight of the pool's rate for an endpoint, and of the default for the pool, in seconds of observation."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        for name in ("default_tokens_per_s", "half_life_s", "prior_s"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name}: must be finite and above 0, not {getattr(self, name)!r}")


PREFILL_RATES = RateSettings(default_tokens_per_s=5000.0, half_life_s=60.0, prior_s=1.0)


@dataclass(slots=True)
class _Seen:
    """Sums of observations, decayed to the time of the last one."""

    tokens: float = 0.0
    seconds: float = 0.0
    updated_s: float = -math.inf


class ServiceRates:
    """Rates by slot. Times are seconds on the caller's clock."""

    def __init__(self, settings: RateSettings | None = None) -> None:
        self.settings = settings or RateSettings()
        self._half_life_s = self.settings.half_life_s
        self._slots: list[_Seen] = []
        self._pool = _Seen()

    def observe(self, slot: int, tokens: float, seconds: float, now_s: float) -> bool:
        """`tokens` came in `seconds`, of one request or summed over several. Returns whether this could be used."""
        if not (slot >= 0 and 0 <= tokens < math.inf and 0 < seconds < math.inf and math.isfinite(now_s)):
            return False
        if slot >= len(self._slots):
            self._grow(slot + 1)
        for seen in (self._slots[slot], self._pool):
            passed_s = now_s - seen.updated_s
            if passed_s > 0:
                kept = math.exp2(-passed_s / self._half_life_s)
                seen.tokens = kept * seen.tokens + tokens
                seen.seconds = kept * seen.seconds + seconds
                seen.updated_s = now_s
            else:
                seen.tokens += tokens
                seen.seconds += seconds
        return True

    def observe_all(self, gaps: Iterable[tuple[int, int, float, float]]) -> None:
        """`observe` for each (slot, tokens, seconds, now_s) in order, without its checks; gaps of 0 s are skipped."""
        slots, half_life_s, exp2 = self._slots, self._half_life_s, math.exp2
        pool = self._pool
        pool_tokens, pool_seconds, pool_updated_s = pool.tokens, pool.seconds, pool.updated_s
        for slot, tokens, seconds, now_s in gaps:
            if seconds <= 0:
                continue
            if slot >= len(slots):
                self._grow(slot + 1)
            seen = slots[slot]
            passed_s = now_s - seen.updated_s
            if passed_s > 0:
                kept = exp2(-passed_s / half_life_s)
                seen.tokens = kept * seen.tokens + tokens
                seen.seconds = kept * seen.seconds + seconds
                seen.updated_s = now_s
            else:
                seen.tokens += tokens
                seen.seconds += seconds
            passed_s = now_s - pool_updated_s
            if passed_s > 0:
                kept = exp2(-passed_s / half_life_s)
                pool_tokens = kept * pool_tokens + tokens
                pool_seconds = kept * pool_seconds + seconds
                pool_updated_s = now_s
            else:
                pool_tokens += tokens
                pool_seconds += seconds
        pool.tokens, pool.seconds, pool.updated_s = pool_tokens, pool_seconds, pool_updated_s

    def forget(self, slot: int) -> None:
        """The endpoint is gone; the pool's sums keep its observations."""
        if 0 <= slot < len(self._slots):
            self._slots[slot] = _Seen()

    def pool_tokens_per_s(self, now_s: float) -> float:
        """v_sys: the rate over all endpoints."""
        kept = math.exp2(-max(now_s - self._pool.updated_s, 0.0) / self._half_life_s)
        prior_s = self.settings.prior_s
        tokens = kept * self._pool.tokens + prior_s * self.settings.default_tokens_per_s
        return tokens / (kept * self._pool.seconds + prior_s)

    def tokens_per_s(self, slots: IntArray, now_s: float) -> FloatArray:
        """The rate of each endpoint; close to the pool's rate if it has few recent observations."""
        if len(slots):
            self._grow(int(slots.max()) + 1)
        seen = [self._slots[slot] for slot in slots.tolist()]
        age_s = np.maximum(now_s - np.array([one.updated_s for one in seen]), 0.0)
        kept = 0.5 ** (age_s / self._half_life_s)
        prior_s = self.settings.prior_s
        tokens: FloatArray = kept * np.array([one.tokens for one in seen]) + prior_s * self.pool_tokens_per_s(now_s)
        seconds: FloatArray = kept * np.array([one.seconds for one in seen]) + prior_s
        return tokens / seconds

    def _grow(self, slots: int) -> None:
        while len(self._slots) < slots:
            self._slots.append(_Seen())


def request_tokens_per_s(
    generated_tokens: FloatArray, decoding_s: FloatArray, start_tokens_per_s: FloatArray | float, prior_s: float = 1.0
) -> FloatArray:
    """v_k of running requests: each request's own rate so far, with the endpoint's or pool's rate as prior.

    At the first token it equals the start rate, so a request's load does not jump when it turns from pending to
    running (SIBYL appendix D). `prior_s`, above 0: weight of the start rate in seconds of decoding.
    """
    own, share = request_parts(generated_tokens, decoding_s, prior_s)
    return own + share * start_tokens_per_s


def request_parts(
    generated_tokens: FloatArray, decoding_s: FloatArray, prior_s: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """The two parts of `request_tokens_per_s` = own + share x start rate: (own, share).

    Both depend on the request alone and can be kept while the start rate changes.
    """
    weight = np.reciprocal(np.maximum(decoding_s, 0.0) + prior_s)
    return np.maximum(generated_tokens, 0.0) * weight, prior_s * weight
