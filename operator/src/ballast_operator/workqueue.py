"""A queue of keys: each key is worked on by one worker at a time, and never waits twice.

The discipline of client-go's work queue: a key that is added while it is being worked on is worked on once more; a key
that failed comes back after a delay that doubles from `first_delay_s` to `last_delay_s` until it succeeds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class WorkQueue(Generic[KeyT]):
    """Belongs to one event loop; its clock is the loop's."""

    def __init__(self, *, first_delay_s: float = 1.0, last_delay_s: float = 60.0) -> None:
        self._first_delay_s = first_delay_s
        self._last_delay_s = last_delay_s
        self._ready: deque[KeyT] = deque()
        self._waiting: set[KeyT] = set()
        self._active: set[KeyT] = set()
        self._again: set[KeyT] = set()
        self._failures: dict[KeyT, int] = {}
        self._timers: dict[KeyT, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def add(self, key: KeyT) -> None:
        """Work on `key` soon. A delayed addition of the same key is taken back: this one comes first."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: KeyT, delay_s: float) -> None:
        """Work on `key` in `delay_s` seconds, or earlier if an earlier time was asked for."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delay_s
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due_s:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due_s, self._due, key)

    async def get(self) -> KeyT:
        """The next key; waits for one. Call `done` when its work has ended."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._active.add(key)
        return key

    def done(self, key: KeyT, *, failed: bool = False, requeue_s: float | None = None) -> None:
        """The work on `key` has ended. A failure brings it back with growing delay, `requeue_s` after that time."""
        self._active.discard(key)
        failures = self._failures.pop(key, 0)
        if failed:
            self._failures[key] = failures + 1
            requeue_s = min(self._first_delay_s * 2.0 ** min(failures, 30), self._last_delay_s)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        elif requeue_s is not None:
            self.add_after(key, requeue_s)

    def close(self) -> None:
        """Drop all delayed additions."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, key: KeyT) -> None:
        self._timers.pop(key, None)
        self.add(key)
