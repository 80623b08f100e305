"""KV events that wait to be read, taken off their socket as they come.

vLLM sends a replay in one go. What fits neither into its socket (1,000 batches) nor into the connection it drops, and
sending takes less time than reading. So batches wait here, within bounds.

A live socket must not fill up either: libzmq 4.3.5 then reads its connection no more, does not see that it breaks, and
may end the process when it does ("Assertion failed: !_io_error").
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
_FRAME_BYTES = 100
"""What a frame takes beside its content."""


class Room:
    """Bytes that may wait, in one inbox or in several together. A message that has begun to come is taken whole."""

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

    def __init__(self, socket: zmq.asyncio.Socket, room: Room, *, drops: bool = False) -> None:
        """Without room messages wait in the socket; `drops`: they are lost, and the socket never fills up."""
        self._socket = socket
        self._room = room
        self._drops = drops
        self._dropped = False
        self._at_once: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
        self._messages: deque[list[bytes]] = deque()
        self._arrived = asyncio.Event()

    def pop(self) -> list[bytes] | None:
        """The next one, if it is there."""
        if not self._messages:
            return None
        frames = self._messages.popleft()
        self._room.give(_size_bytes(frames))
        return frames

    def lost_some(self) -> bool:
        """Whether messages were lost for want of room, and all those before them have been taken. Says so once."""
        lost = self._dropped and not self._messages
        self._dropped = self._dropped and not lost
        return lost

    async def next(self) -> list[bytes]:
        """The next one, when it is there. Raises `zmq.ZMQError`."""
        while (frames := self.pop()) is None:
            if self._task.done():
                self._task.result()
            self._arrived.clear()
            await self._arrived.wait()
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

    def clear(self) -> None:
        """Forget what has come so far: here, and in the socket as much as may wait there."""
        self._forget()
        self._dropped = False
        with suppress(zmq.Again):
            for _ in range(int(self._at_once.getsockopt(zmq.RCVHWM))):
                self._at_once.recv_multipart(zmq.NOBLOCK)

    def _forget(self) -> None:
        self._room.give(sum(map(_size_bytes, self._messages)))
        self._messages.clear()

    async def _fill(self) -> None:
        try:
            while True:
                if not self._drops:
                    await self._room.wait()
                if not self._take():
                    self._put(await self._socket.recv_multipart())
                await asyncio.sleep(0)
        finally:
            self._arrived.set()

    def _take(self) -> int:
        """How many were there, of as many as there is room and time for."""
        count = 0
        with suppress(zmq.Again):
            while count < _AT_ONCE and (self._drops or self._room.left):
                self._put(self._at_once.recv_multipart(zmq.NOBLOCK))
                count += 1
        return count

    def _put(self, frames: list[bytes]) -> None:
        if self._drops and not self._room.left:
            self._dropped = True
            return
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
        self._forget()
        await asyncio.gather(self._task, return_exceptions=True)


def _size_bytes(frames: list[bytes]) -> int:
    return sum(map(len, frames)) + _FRAME_BYTES * len(frames)
