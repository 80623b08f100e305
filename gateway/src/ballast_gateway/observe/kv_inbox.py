"""What an engine repeats of its KV events, taken off the socket as it comes.

vLLM sends a replay in one go. What fits neither into its socket (1,000 batches) nor into the connection it drops, and
sending takes less time than reading. So batches wait here, within bounds for all engines together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import zmq
import zmq.asyncio

_AT_ONCE = 200
"""Messages until others have their turn on the loop: some milliseconds."""


class Room:
    """Bytes that may wait, of all replays together. A message that has begun to come is taken whole."""

    def __init__(self, most_bytes: int) -> None:
        self._free_bytes = most_bytes
        self._freed = asyncio.Event()

    @property
    def left(self) -> bool:
        """Whether more may come."""
        return self._free_bytes > 0

    def take(self, size_bytes: int) -> None:
        """So much has come."""
        self._free_bytes -= size_bytes

    def give(self, size_bytes: int) -> None:
        """So much waits no more."""
        self._free_bytes += size_bytes
        if self.left:
            self._freed.set()

    async def wait(self) -> None:
        """Until there is some."""
        while not self.left:
            self._freed.clear()
            await self._freed.wait()


class Inbox:
    """The messages of one socket, in order. It is a context manager: leaving the block drops the rest."""

    def __init__(self, socket: zmq.asyncio.Socket, room: Room) -> None:
        self._socket = socket
        self._room = room
        self._messages: deque[list[bytes]] = deque()
        self._arrived = asyncio.Event()

    def pop(self) -> list[bytes] | None:
        """The next one, if it is there."""
        if not self._messages:
            return None
        frames = self._messages.popleft()
        self._room.give(_size_bytes(frames))
        return frames

    async def comes(self, *, unless: asyncio.Future[None], timeout_s: float) -> bool:
        """Wait until there is one; False if it takes too long or `unless` is done before. Raises `zmq.ZMQError`."""
        if self._messages:
            return True
        self._arrived.clear()
        arriving = asyncio.ensure_future(self._arrived.wait())
        any_of: set[asyncio.Future[Any]] = {arriving, unless, self._task}
        await asyncio.wait(any_of, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        arriving.cancel()
        if self._task.done():
            self._task.result()
        return bool(self._messages)

    async def _fill(self) -> None:
        at_once: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket.underlying)
        while True:
            await self._room.wait()
            if not self._take(at_once):
                self._put(await self._socket.recv_multipart())
            await asyncio.sleep(0)

    def _take(self, socket: zmq.Socket[bytes]) -> int:
        """How many were there, of as many as there is room and time for."""
        count = 0
        with suppress(zmq.Again):
            while count < _AT_ONCE and self._room.left:
                self._put(socket.recv_multipart(zmq.NOBLOCK))
                count += 1
        return count

    def _put(self, frames: list[bytes]) -> None:
        self._room.take(_size_bytes(frames))
        self._messages.append(frames)
        self._arrived.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._fill())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        self._room.give(sum(map(_size_bytes, self._messages)))
        self._messages.clear()
        await asyncio.gather(self._task, return_exceptions=True)


def _size_bytes(frames: list[bytes]) -> int:
    return sum(map(len, frames))
