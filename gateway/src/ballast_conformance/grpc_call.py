"""One gRPC call over HTTP/2, after gRPC's `PROTOCOL-HTTP2.md`: messages with their prefix of five bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from ballast_conformance.http2 import Connection, Data, Headers, Reset

_PREFIX: Final = 5
OK: Final = 0
NOT_FOUND: Final = 5
_NAMES: Final = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)


@dataclass(frozen=True, slots=True)
class End:
    """The call is over."""

    status: int | None
    """gRPC's; None if the stream or its connection broke."""
    message: str

    def __str__(self) -> str:
        if self.status is None:
            return self.message
        name = _NAMES[self.status] if self.status < len(_NAMES) else str(self.status)
        return f"gRPC status {name}" + (f" ({self.message})" if self.message else "")


def framed(message: bytes) -> bytes:
    """A message with its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Call:
    """A call of a method with any number of messages both ways."""

    def __init__(self, connection: Connection, method: str, authority: str) -> None:
        self._connection = connection
        self._received = bytearray()
        self._head: dict[str, str] = {}
        self._half_closed = False
        self._end: End | None = None
        self.stream = connection.open(
            (
                (":method", "POST"),
                (":scheme", "https" if connection.secure else "http"),
                (":path", method),
                (":authority", authority),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("user-agent", "ballast-conformance"),
            )
        )

    async def send(
        self, messages: Iterable[bytes], *, frame_bytes: int | None = None, joined: bool = False, end: bool = False
    ) -> None:
        """Send messages, one after the other, in frames of at most `frame_bytes`.

        Each begins a frame of its own, unless they are `joined`. `end`: the last frame half-closes the call.
        """
        parts = [framed(message) for message in messages]
        for at, part in enumerate([b"".join(parts)] if joined else parts):
            last = end and (joined or at == len(parts) - 1)
            await self._connection.send(self.stream, part, most=frame_bytes, end=last)
        self._half_closed = self._half_closed or end

    async def half_close(self) -> None:
        """Say that no more messages come."""
        if not self._half_closed:
            self._half_closed = True
            await self._connection.send(self.stream, b"", end=True)

    def cancel(self) -> None:
        """Break the call off."""
        self._connection.reset(self.stream)

    async def receive(self, timeout_s: float) -> bytes | End:
        """The next message, or the end of the call. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            while True:
                message = self._next_message()
                if message is not None:
                    return message
                if self._end is not None:
                    return self._end
                self._take(await self.stream.events.get())

    def _next_message(self) -> bytes | None:
        if len(self._received) < _PREFIX:
            return None
        end = _PREFIX + int.from_bytes(self._received[1:_PREFIX], "big")
        if len(self._received) < end:
            return None
        message = bytes(self._received[_PREFIX:end])
        del self._received[:end]
        return message

    def _take(self, event: Reset | Headers | Data) -> None:
        if isinstance(event, Reset):
            self._end = End(None, event.why)
        elif isinstance(event, Data):
            self._received += event.content
            if event.end:
                self._end = End(None, "the stream ended without a gRPC status")
        else:
            self._head |= event.fields
            if event.end:
                self._end = self._status()

    def _status(self) -> End:
        text = self._head.get("grpc-status", "")
        if not text.isdecimal():
            return End(None, f"no gRPC status, HTTP {self._head.get(':status', 'without a status')}")
        return End(int(text), unquote(self._head.get("grpc-message", "")))
