"""A queue of keys: each key is worked on by one worker at a time, and never waits twice.

The discipline of client-go's work queue: a key that is added while it is being worked on is worked on once more; a key
that failed comes back after a delay that doubles from `first_delay_s` to `last_delay_s` until it succeeds.

News come before routine (a resync of all keys), as in controller-runtime's priority queue: an edit does not wait behind
hundreds of looks at what has not changed. Routine has one turn in `NEWS_IN_A_ROW` + 1, so that it ends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

NEWS_IN_A_ROW: Final = 8

KeyT = TypeVar("KeyT", bound=Hashable)


class WorkQueue(Generic[KeyT]):
    """Belongs to one event loop; its clock is the loop's."""

    def __init__(self, *, first_delay_s: float = 1.0, last_delay_s: float = 60.0) -> None:
        self._first_delay_s = first_delay_s
        self._last_delay_s = last_delay_s
        self._news: OrderedDict[KeyT, None] = OrderedDict()
        self._routine: OrderedDict[KeyT, None] = OrderedDict()
        """Those that wait, each in one of the two."""
        self._in_a_row = 0
        self._active: set[KeyT] = set()
        self._again: set[KeyT] = set()
        self._failures: dict[KeyT, int] = {}
        self._timers: dict[KeyT, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def add(self, key: KeyT) -> None:
        """Work on `key` soon. A delayed addition of the same key is taken back: this one comes first."""
        self._forget_delay(key)
        if key in self._active:
            self._again.add(key)
        else:
            self._routine.pop(key, None)
            self._news.setdefault(key)
            self._wake.set()

    def add_routine(self, key: KeyT) -> None:
        """Work on `key` when there are no news. A delayed addition of the same key still makes news of it."""
        if key not in self._active and key not in self._news:
            self._routine.setdefault(key)
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
        while not (self._news or self._routine):
            self._wake.clear()
            await self._wake.wait()
        key = self._next()
        self._forget_delay(key)
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

    def _next(self) -> KeyT:
        news = bool(self._news) and (self._in_a_row < NEWS_IN_A_ROW or not self._routine)
        self._in_a_row = self._in_a_row + 1 if news else 0
        key, _ = (self._news if news else self._routine).popitem(last=False)
        return key

    def _forget_delay(self, key: KeyT) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _due(self, key: KeyT) -> None:
        self._timers.pop(key, None)
        self.add(key)
