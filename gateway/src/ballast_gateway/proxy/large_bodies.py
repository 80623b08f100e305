"""Large bodies are read on one thread, one after another, clients in turn: the event loop goes on meanwhile.

The thread shares the interpreter's lock with the loop. So it helps as far as each call of a C function is short, which
the bounds of `strict_json` see to; between two of them the loop takes the lock within `sys.getswitchinterval()`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

INLINE_BYTES = 64 * 1024
"""Bodies up to this size are read on the loop,"""
INLINE_WORK = 16_000
"""if they hold no more than this (`strict_json.Size.work`): less than a millisecond."""

T = TypeVar("T")


class LargeBodies(Generic[T]):
    """The queue before the thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")
        self._waiting: dict[Hashable, deque[Reading[T]]] = {}
        """By client, the next one's first."""
        self._busy = False

    def read(self, client: Hashable, work: Callable[[], T], done: Callable[[asyncio.Future[T]], None]) -> Reading[T]:
        """Have `work` done on the thread; `done` gets its outcome on the loop, unless the reading is dropped before."""
        reading = Reading(work, done)
        self._waiting.setdefault(client, deque()).append(reading)
        self._next()
        return reading

    def close(self) -> None:
        """Begin nothing more."""
        self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> None:
        while self._waiting and not self._busy:
            client, readings = next(iter(self._waiting.items()))
            del self._waiting[client]
            reading = readings.popleft()
            if readings:
                self._waiting[client] = readings  # to the end: it is the others' turn
            if not reading.dropped:
                self._busy = True
                self._loop.run_in_executor(self._thread, reading.work).add_done_callback(
                    lambda future, reading=reading: self._done(reading, future)  # type: ignore[misc]
                )

    def _done(self, reading: Reading[T], future: asyncio.Future[T]) -> None:
        self._busy = False
        if not future.cancelled():
            future.exception()  # looked at, or asyncio complains of one that is dropped
        if not future.cancelled() and not reading.dropped:
            reading.done(future)
        self._next()


class Reading(Generic[T]):
    """One body on its way through the thread."""

    __slots__ = ("done", "dropped", "work")

    def __init__(self, work: Callable[[], T], done: Callable[[asyncio.Future[T]], None]) -> None:
        self.work = work
        self.done = done
        self.dropped = False
