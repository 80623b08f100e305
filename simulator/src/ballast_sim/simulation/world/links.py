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
        """How long so many tokens take once all of them are there."""
        return self.setup_s + tokens * self.s_per_token


@dataclass(frozen=True, slots=True)
class Computed:
    """When a leg had computed how many tokens: (time, tokens) at the end of each prefill step, and at its own end."""

    points: tuple[tuple[float, int], ...]
    prefill_points: int
    """How many of these end a step of prefill; between the later ones tokens came one by one."""

    @classmethod
    def of(cls, hand_off: HandOff, ended_s: float) -> Computed:
        """What a finished leg says of itself."""
        return cls((*hand_off.prefill_ends, (ended_s, hand_off.tokens)), len(hand_off.prefill_ends))

    @property
    def ended_s(self) -> float:
        """When the leg was over."""
        return self.points[-1][0]

    def arrives_s(self, link: Link, first: int, tokens: int, chunk_tokens: int) -> float:
        """When tokens `first` to `first + tokens` are all on the other side, in chunks that leave once computed.

        A step's tokens are there when the step has ended; decoded ones are taken to come at an even pace.
        """
        starts = np.arange(first, first + tokens, chunk_tokens)
        ends = np.minimum(starts + chunk_tokens, first + tokens)
        at_s = np.array([at for at, _ in self.points])
        done = np.maximum.accumulate(np.array([count for _, count in self.points]))
        ready_s = at_s[np.minimum(np.searchsorted(done, ends), len(done) - 1)]
        if self.prefill_points:
            last = self.prefill_points - 1
            decoded = ends > done[last]
            ready_s[decoded] = np.interp(ends[decoded], done[last:], at_s[last:])
        ready_s[0] += link.setup_s
        return float((ready_s + (first + tokens - starts) * link.s_per_token).max())


@dataclass(slots=True)
class TransferTimes:
    """What transfers came to, in a run."""

    transfers: int = 0
    whole_s: float = 0.0
    """How long all of them would have lasted after their sources' ends."""
    exposed_s: float = 0.0
    """How long they did last after these."""

    @property
    def hidden_ratio(self) -> float | None:
        """Share of the transfer time that passed while the sources still computed."""
        return 1 - self.exposed_s / self.whole_s if self.whole_s else None
