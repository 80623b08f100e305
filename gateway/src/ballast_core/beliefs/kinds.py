"""Which beliefs a policy reads: only those are learned, so that nobody pays for what no policy asks."""

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
    """Prefill time of each endpoint, and with it the expected hand-off of every request."""
    PREFIXES = auto()
    """Which endpoint holds which prefix blocks."""
    RATES = auto()
    """Observed decode rates."""
    HOTSPOTS = auto()
    """Prefixes that draw more traffic to their holders than these can take (LMetric)."""
    PROGRESS = auto()
    """Output tokens of running requests as they come: in `View.tokens`, `View.decoding_tokens` and `View.flights`."""
    ALL = LENGTHS | STEP_TIMES | PREFILL_TIMES | PREFIXES | RATES | HOTSPOTS | PROGRESS
