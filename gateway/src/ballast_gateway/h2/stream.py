"""A request's stream on a connection: what may be sent of its answer, and what its peer may send.

What the windows (RFC 9113, 5.2) do not let through waits here, in one piece.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ballast_gateway.h2 import frames
from ballast_gateway.h2.frames import MAX_FRAME_BYTES
from ballast_gateway.h2.limits import Limits


class Carrier(Protocol):
    """The connection, as its streams know it."""

    limits: Limits
    loop: asyncio.AbstractEventLoop
    window: int
    """Bytes of bodies that may be sent on all of its streams."""
    initial_window: int
    """That of a stream at its beginning."""

    def put(self, data: bytes) -> None:
        """Frames that leave with the others of this turn."""

    def header_frames(self, stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
        """The frames of a block; asked for in the order in which they leave."""

    def useful(self) -> None:
        """A message has been answered."""

    def waits(self, stream: Stream) -> None:
        """It could not send all."""

    def over(self, stream: Stream) -> None:
        """It has sent its end."""


class Receiver(Protocol):
    """Takes what comes on one stream."""

    def data(self, data: bytes, *, ended: bool) -> None:
        """Bytes of the body, perhaps its last. Give `Stream.credit` for them when they have been dealt with."""

    def room(self) -> None:
        """All that was sent has left."""

    def lost(self) -> None:
        """The stream is gone, and not by `Stream.finish`; nothing can be sent on it. Called at most once."""

    def cut(self) -> None:
        """The server ends: these are the last words. `lost` follows where there are none."""


class Stream:
    """A request, and the way to answer it: `send_headers`, `send`, `finish`."""

    __slots__ = (
        "_connection",
        "_end",
        "_unread",
        "_unsent",
        "answered",
        "id",
        "length_left",
        "receiver",
        "remote_ended",
        "unsent_since_s",
        "window",
        "window_in",
    )

    def __init__(self, connection: Carrier, stream_id: int, length: int | None) -> None:
        self._connection = connection
        self.id = stream_id
        self.receiver: Receiver | None = None
        """None: nobody listens any more."""
        self.window = connection.initial_window
        """Bytes that may be sent; below zero after a change of the peer's settings."""
        self.window_in = connection.limits.stream_window
        """Bytes that the peer may send."""
        self.length_left = length
        """Of the announced body."""
        self.remote_ended = False
        self.answered = False
        """Something has been sent."""
        self.unsent_since_s = 0.0
        self._unread = 0
        self._unsent = bytearray()
        self._end: bytes | None = None
        """The trailers' block that follows what is unsent."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Of its connection."""
        return self._connection.loop

    @property
    def unsent_bytes(self) -> int:
        """What waits for the peer's windows."""
        return len(self._unsent)

    @property
    def stuffed(self) -> bool:
        """So much waits for the peer's windows that nothing should be added."""
        return len(self._unsent) > self._connection.limits.unsent_bytes

    def send_headers(self, block: bytes) -> None:
        """The answer's head."""
        self.answered = True
        self._connection.put(self._connection.header_frames(self.id, block, end_stream=False))

    def send(self, data: bytes) -> None:
        """Bytes of the answer's body: one message, or more."""
        connection, size = self._connection, len(data)
        connection.useful()
        if self._unsent or size > self.window or size > connection.window or size > MAX_FRAME_BYTES:
            self._unsent += data
            self.pump()
        else:
            self.window -= size
            connection.window -= size
            connection.put(frames.frame(frames.DATA, 0, self.id, data))

    def finish(self, block: bytes) -> None:
        """The end: trailers, or the answer's head where nothing was sent, or nothing. The receiver hears no more."""
        self.answered = True
        self.receiver = None
        self._end = block
        self.pump()

    def credit(self, size: int) -> None:
        """So many bytes have been dealt with: the peer may send as many more."""
        self._unread += size
        if self._unread * 2 >= self._connection.limits.stream_window and not self.remote_ended:
            self.window_in += self._unread
            self._connection.put(frames.window_update(self.id, self._unread))
            self._unread = 0

    def pump(self) -> None:
        """Send what the windows let through."""
        connection, unsent = self._connection, self._unsent
        while unsent and self.window > 0 and connection.window > 0:
            size = min(len(unsent), self.window, connection.window, MAX_FRAME_BYTES)
            connection.put(frames.frame(frames.DATA, 0, self.id, bytes(unsent[:size])))
            del unsent[:size]
            self.window -= size
            connection.window -= size
        if unsent:
            connection.waits(self)
        elif self._end is not None:
            if self._end:
                connection.put(connection.header_frames(self.id, self._end, end_stream=True))
            else:
                connection.put(frames.frame(frames.DATA, frames.END_STREAM, self.id, b""))
            connection.over(self)
