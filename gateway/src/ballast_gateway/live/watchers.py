"""Who watches, and what each of them is sent: one frame for all, made while there is somebody.

A watcher that is slow misses frames and then gets a whole one: what waits for it is one frame and what its connection
has taken, whatever happens meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ballast_gateway.live.frames import delta, event
from ballast_gateway.live.rows import Frame

_log = logging.getLogger(__name__)

EVERY_S: Final = 0.2
"""Between two frames."""
MOST_SHARE: Final = 0.01
"""Of a core: frames that take longer come less often."""
MOST_WATCHERS: Final = 16
LONGEST_S: Final = 900.0
"""A stream ends after this time, so that its token is asked for again."""


class TooMany(Exception):
    """As many watch as may."""


class Watchers:
    """Makes frames by `take(number)` while somebody watches. `close` ends every stream."""

    def __init__(
        self,
        take: Callable[[int], Frame | Awaitable[Frame]],
        *,
        processor_s: Callable[[], float] = time.thread_time,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._take = take
        self._processor_s = processor_s
        self._rest = rest
        self._watching = 0
        self._maker: asyncio.Task[None] | None = None
        self._made = asyncio.Event()
        """Of the next frame; a new one with each."""
        self._frame: Frame | None = None
        self._whole = b""
        """The newest frame as an event; made when it is asked for."""
        self._delta = b""
        self.spent_s = 0.0
        """Processor time of all frames."""

    def __len__(self) -> int:
        return self._watching

    @contextmanager
    def watching(self) -> Iterator[AsyncIterator[bytes]]:
        """The events for one watcher: the first is whole. Raises `TooMany`."""
        if self._watching >= MOST_WATCHERS:
            raise TooMany
        self._watching += 1
        if self._maker is None:
            self._made = asyncio.Event()
            self._maker = asyncio.create_task(self._make())
        try:
            yield self._events()
        finally:
            self._watching -= 1
            if not self._watching:
                self._stop()

    def close(self) -> None:
        """End every stream."""
        self._stop()
        self._made.set()

    def _stop(self) -> None:
        if self._maker is not None:
            self._maker.cancel()
            self._maker = None
        self._frame, self._whole, self._delta = None, b"", b""

    async def _events(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until_s, number = loop.time() + LONGEST_S, -1
        while loop.time() < until_s:
            if self._frame is None or self._frame.number == number:
                await self._made.wait()
            frame = self._frame
            if frame is None:
                return
            follows, number = frame.number == number + 1 and number >= 0, frame.number
            yield self._delta if follows else self._all(frame)

    def _all(self, frame: Frame) -> bytes:
        if not self._whole:
            began_s = self._processor_s()
            self._whole = event("all", frame)
            self.spent_s += self._processor_s() - began_s
        return self._whole

    async def _make(self) -> None:
        try:
            await self._make_all()
        except Exception:
            _log.exception("the live page's frames cannot be made; those who watch are cut off")
            self.close()

    async def _make_all(self) -> None:
        number = 0
        while True:
            began_s = self._processor_s()
            before, taken = self._frame, self._take(number)
            after = taken if isinstance(taken, Frame) else await taken
            self._delta = b"" if before is None else event("delta", delta(before, after))
            self._frame, self._whole = after, b""
            made, self._made = self._made, asyncio.Event()
            made.set()
            # The first frame waits for other gateways, and what the loop does meanwhile is not the frame's.
            took_s = self._processor_s() - began_s if number or isinstance(taken, Frame) else 0.0
            self.spent_s += took_s
            number += 1
            await self._rest(max(EVERY_S, took_s / MOST_SHARE))
