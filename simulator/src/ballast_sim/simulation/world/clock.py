"""The clock that engines and links live on. The simulator's kernel is one, and so is an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

ENGINE_PRIORITY = 1
"""Order of an engine's work among what happens at one time: after what is observed, before what arrives."""


class Clock(Protocol):
    """The time, and calls at a later one."""

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        ...

    def at(self, time_s: float, action: Callable[[], None], priority: int = 0) -> None:
        """Call `action` at that time; at one time, lower priorities come first."""
        ...
