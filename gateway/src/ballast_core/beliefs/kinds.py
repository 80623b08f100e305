"""The kinds of beliefs. A policy declares which it reads, and only those are learned."""

from __future__ import annotations

from enum import Flag, auto


class Belief(Flag):
    """Parts of `Beliefs`; they combine with `|`."""

    NONE = 0
    LENGTHS = auto()
    """Survival curves of output length."""
    STEP_TIMES = auto()
    """Decode step time of each endpoint, recalibrated."""
    PREFILL_TIMES = auto()
    """Prefill time of each endpoint, and so the expected hand-off time of every request."""
    PREFIXES = auto()
    """Which endpoint holds which prefix blocks."""
    RATES = auto()
    """Observed decode rates."""
    HOTSPOTS = auto()
    """Prefixes that attract more requests than their holders can serve (LMetric)."""
    PROGRESS = auto()
    """Output tokens of running requests: in `View.tokens`, `View.decoding_tokens` and `View.flights`."""
    EMA_LENGTHS = auto()
    """Survival curves by SIBYL's estimator instead of ours; not part of ALL, as a pool has one estimator."""
    BATCHES = auto()
    """What passes with prompts were like recently, by endpoint (Libra)."""
    ALL = LENGTHS | STEP_TIMES | PREFILL_TIMES | PREFIXES | RATES | HOTSPOTS | PROGRESS
