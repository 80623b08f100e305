"""When rejected requests are to come back: each gets a turn of its own, behind those that were told so before.

A rejected request's work is promised to it: it is served, at the rate at which work is dispatched, after what waits now
and after all work that was promised before. So clients that obey come back about as fast as they can be served, not all
at once. The jitter is a hash of the request's id.
"""

from __future__ import annotations

import math
from zlib import crc32

from ballast_core.model import RequestId

LEAST_S, MOST_S = 1.0, 30.0
"""Bounds before the jitter."""
JITTER_RATIO = 0.5
"""The longest addition, as a share of the time, if that is more than a second."""


class Returns:
    """The work that is promised. Times are seconds on the Director's clock."""

    def __init__(self) -> None:
        self._promised_tokens = 0.0
        self._at_s = -math.inf

    def after_s(self, request_id: RequestId, work: int, now_s: float, *, wait_s: float, tokens_per_s: float) -> float:
        """Seconds until this rejected request should come back.

        `wait_s`: until there is room for it if nobody came back; `tokens_per_s`: the rate of dispatches.
        """
        if now_s > self._at_s:
            served = tokens_per_s * (now_s - self._at_s)
            self._promised_tokens = max(self._promised_tokens - served, 0.0)
            self._at_s = now_s
        seconds = wait_s + self._promised_tokens / tokens_per_s
        self._promised_tokens = min(self._promised_tokens + work, MOST_S * tokens_per_s)
        return jittered_s(request_id, seconds)


def jittered_s(request_id: RequestId, seconds: float, *, most_s: float = MOST_S) -> float:
    """These seconds within the bounds, and up to half as much again, or a second: answers name whole seconds."""
    least_s = max(min(seconds, most_s), LEAST_S)
    return least_s + max(JITTER_RATIO * least_s, 1.0) * crc32(request_id.encode()) / 2**32
