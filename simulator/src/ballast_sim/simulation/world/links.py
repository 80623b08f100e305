"""How KV travels between two engines: whole once the source is done, or chunk by chunk while it still computes.

Libra section 4.3: chunks of equal size, whatever kind of token they hold, leave as soon as they are computed; what is
left to wait for after the source's end is the last chunk and what the link could not carry before. A link is as fast as
its slower end and each transfer has it for itself; its set-up is paid once, before the first chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine import HandOff


@dataclass(frozen=True, slots=True)
class Link:
    """A way from one engine to another."""

    setup_s: float
    s_per_token: float

    @classmethod
    def between(cls, source: HardwareProfile, target: HardwareProfile) -> Link:
        """The slower end decides."""
        gbps = min(target.link_gbps, source.link_gbps)
        return cls(target.link_setup_s, target.kv_bytes_per_token / (gbps * 1e9 / 8))

    def whole_s(self, tokens: int) -> float:
        """Seconds that so many tokens take once all of them are computed."""
        return self.setup_s + tokens * self.s_per_token


@dataclass(frozen=True, slots=True)
class Computed:
    """When a leg had computed how many tokens: (time, tokens) at the end of each prefill step, and at its own end."""

    points: tuple[tuple[float, int], ...]
    prefill_points: int
    """How many of these end a step of prefill; between the later ones tokens came one by one."""

    @classmethod
    def of(cls, hand_off: HandOff, ended_s: float) -> Computed:
        """From the hand-off that a finished leg reports."""
        return cls((*hand_off.prefill_ends, (ended_s, hand_off.tokens)), len(hand_off.prefill_ends))

    @property
    def ended_s(self) -> float:
        """When the leg was over."""
        return self.points[-1][0]

    def arrives_s(self, link: Link, first: int, tokens: int, chunk_tokens: int) -> float:
        """The time at which tokens `first` to `first + tokens` have all arrived, in chunks that leave once computed.

        A step's tokens are computed when the step ends; decoded tokens are taken to come at an even pace.
        """
        starts = np.arange(first, first + tokens, chunk_tokens)
        ends = np.minimum(starts + chunk_tokens, first + tokens)
        times_s = np.array([time_s for time_s, _ in self.points])
        done = np.maximum.accumulate(np.array([count for _, count in self.points]))
        ready_s = times_s[np.minimum(np.searchsorted(done, ends), len(done) - 1)]
        if self.prefill_points:
            last = self.prefill_points - 1
            decoded = ends > done[last]
            ready_s[decoded] = np.interp(ends[decoded], done[last:], times_s[last:])
        ready_s[0] += link.setup_s
        return float((ready_s + (first + tokens - starts) * link.s_per_token).max())


@dataclass(slots=True)
class TransferTimes:
    """Sums over the transfers of a run."""

    transfers: int = 0
    whole_s: float = 0.0
    """The time that they would have taken if each had begun when its source ended."""
    exposed_s: float = 0.0
    """The part of that time which was left after their sources ended."""

    @property
    def hidden_ratio(self) -> float | None:
        """Share of the transfer time that passed while the sources still computed."""
        return 1 - self.exposed_s / self.whole_s if self.whole_s else None
