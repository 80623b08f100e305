"""An event loop on virtual time: it never waits but jumps to the next timer. For code whose only clock is the loop."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Jump(selectors.SelectSelector):
    """Does not wait for I/O; what the loop would have waited is added to its time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("nothing is scheduled and nothing is ready: the test would hang")
            self.now_s += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at time 0."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self._clock_resolution = 1e-12

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._jump.now_s


class CoarseLoop(VirtualLoop):
    """Its timers count whole milliseconds and fire more than one too soon at worst, as those of uvloop do."""

    def __init__(self) -> None:
        super().__init__()
        self._jump.now_s = 7e-4

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """At the millisecond that has begun and the delay in whole ones."""
        now_s = self.time()
        when_ms = math.floor(now_s * 1e3) + round((when - now_s) * 1e3)
        return super().call_at(when_ms / 1e3, callback, *args, context=context)


def run_virtually(main: Coroutine[Any, Any, T], loop: type[VirtualLoop] = VirtualLoop) -> T:
    """`asyncio.run` on virtual time."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)
