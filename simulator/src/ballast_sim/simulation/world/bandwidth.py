"""Links that several transfers share: at each of its two ends a transfer gets an equal share, and the lesser counts.

What one transfer cannot use for the sake of its other end stays unused, so that shares depend on numbers alone: with
unlike numbers at the two ends this is somewhat slower than a max-min fair network.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ballast_sim.simulation.world.clock import Clock


@dataclass(slots=True, eq=False)
class _Transfer:
    ends: tuple[Hashable, Hashable]
    left_bytes: float
    ended: Callable[[], None]
    bytes_per_s: float = 0.0
    since_s: float = 0.0
    version: int = 0


class Bandwidth:
    """The transfers under way."""

    def __init__(self, clock: Clock, priority: int) -> None:
        """Transfers end with this priority on the clock."""
        self._clock = clock
        self._priority = priority
        self._capacity: dict[Hashable, float] = {}
        self._active: dict[Hashable, dict[_Transfer, None]] = {}

    def link(self, end: Hashable, bytes_per_s: float) -> None:
        """Declare an end and the rate of its link."""
        self._capacity[end] = bytes_per_s
        self._active[end] = {}

    def start(self, source: Hashable, target: Hashable, size_bytes: float, ended: Callable[[], None]) -> None:
        """Begin a transfer now; `ended` is called when its last byte has arrived."""
        transfer = _Transfer((source, target), size_bytes, ended, since_s=self._clock.now_s)
        for end in transfer.ends:
            self._active[end][transfer] = None
        self._share(transfer.ends)

    def _share(self, ends: tuple[Hashable, Hashable]) -> None:
        """Share the links anew: the number of transfers at these ends has changed."""
        now_s = self._clock.now_s
        for transfer in {**self._active[ends[0]], **self._active[ends[1]]}:
            share = min(self._capacity[end] / len(self._active[end]) for end in transfer.ends)
            if share == transfer.bytes_per_s:
                continue
            transfer.left_bytes = max(0.0, transfer.left_bytes - transfer.bytes_per_s * (now_s - transfer.since_s))
            transfer.bytes_per_s, transfer.since_s = share, now_s
            transfer.version += 1
            self._await(transfer, transfer.version)

    def _await(self, transfer: _Transfer, version: int) -> None:
        def over() -> None:
            if transfer.version != version:
                return
            for end in transfer.ends:
                del self._active[end][transfer]
            self._share(transfer.ends)
            transfer.ended()

        self._clock.at(self._clock.now_s + transfer.left_bytes / transfer.bytes_per_s, over, self._priority)
