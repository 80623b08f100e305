"""gRPC calls on the streams of HTTP/2: messages in pieces, statuses, deadlines.

After grpc's `PROTOCOL-HTTP2.md`. Messages are not compressed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Final, Protocol, TypeAlias

from ballast_gateway.h2 import blocks
from ballast_gateway.h2.requests import Request
from ballast_gateway.h2.stream import Receiver, Stream

_log = logging.getLogger(__name__)

_HEAD: Final = Struct(">BL")
_OK_HEAD: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_HEAD_BLOCK: Final = blocks.write(_OK_HEAD)
_FAILED: Final = "the server failed; its log says why"
_NO_GRPC: Final = b"this port speaks gRPC only\n"
_NO_GRPC_BLOCK: Final = blocks.write(
    (
        (b":status", b"415"),
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(_NO_GRPC)).encode()),
    )
)


class Status(IntEnum):
    """The gRPC status codes that this server gives."""

    OK = 0
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Handler(Protocol):
    """Serves one call."""

    def message(self, raw: bytes) -> None:
        """One message of the client, whole. Not called while the call is held, and never within itself."""

    def ended(self) -> None:
        """The client has sent its last message."""

    def closed(self, *, broken: bool) -> None:
        """The call is over, however it came to that; called once. `broken`: by the client, the network, or time."""


Method: TypeAlias = "Callable[[Call], Handler]"
"""Called at the begin of a call, which it may answer at once."""


class Call:
    """One call: `write` messages, then `finish` it. All at any time; after the end nothing happens any more."""

    __slots__ = ("_begun", "_buffer", "_ended", "_handler", "_held", "_max_bytes", "_stream", "_timer", "_uncredited")

    def __init__(self, stream: Stream, request: Request, method: Method, max_message_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_message_bytes
        self._begun = self._ended = self._held = False
        self._buffer = bytearray()
        self._uncredited = 0
        self._timer: asyncio.TimerHandle | None = None
        self._handler: Handler | None = None
        self._handler = method(self)
        if request.timeout_s is not None:
            self._timer = stream.loop.call_later(request.timeout_s, self._too_late)

    # --- what a handler does ----------------------------------------------------------------------------------------

    def write(self, messages: Sequence[bytes]) -> None:
        """Send these messages."""
        if self._handler is None or not messages:
            return
        stream = self._stream
        if not self._begun:
            self._begun = True
            stream.send_headers(_HEAD_BLOCK)
        stream.send(b"".join([part for raw in messages for part in (_HEAD.pack(0, len(raw)), raw)]))

    def hold(self) -> None:
        """Pass no message on until `go_on`."""
        self._held = True

    def go_on(self) -> None:
        """Pass messages on again."""
        self._held = False
        self._advance()

    def finish(self, status: Status = Status.OK, message: str = "") -> None:
        """End the call."""
        self._finish(status, message, broken=False)

    # --- a receiver -------------------------------------------------------------------------------------------------

    def data(self, data: bytes, *, ended: bool) -> None:
        self._ended = ended
        size = len(data)
        self._uncredited += size
        if self._buffer or self._stopped:
            self._buffer += data
        else:
            at = self._take(data)
            if at < size:
                self._buffer += data[at:]
        if self._handler is not None and not self._stopped:
            self._advance()

    def room(self) -> None:
        if not self._held:
            self._advance()

    def lost(self) -> None:
        self._close(broken=True)

    # --- messages ---------------------------------------------------------------------------------------------------

    @property
    def _stopped(self) -> bool:
        return self._held or self._stream.stuffed

    def _take(self, data: bytes | bytearray) -> int:
        """Pass on whole messages; returns where the rest begins."""
        at, size = 0, len(data)
        while size - at >= _HEAD.size and not self._stopped and self._handler is not None:
            compressed, length = _HEAD.unpack_from(data, at)
            if compressed:
                self._fail(Status.UNIMPLEMENTED, "compressed messages are not read")
                break
            if length > self._max_bytes:
                self._fail(Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes; the most is {self._max_bytes}")
                break
            end = at + _HEAD.size + length
            if end > size:
                break
            raw = bytes(data[at + _HEAD.size : end])
            at = end
            self._guarded(self._handler.message, raw)
        return at

    def _advance(self) -> None:
        """Go on with what is there: messages, then the end."""
        if self._buffer:
            del self._buffer[: self._take(self._buffer)]
        if self._handler is None or self._stopped:
            return
        size, self._uncredited = self._uncredited, 0
        self._stream.credit(size)
        if not self._ended:
            return
        if self._buffer:
            self._fail(Status.INTERNAL, "the client ended within a message")
        else:
            self._guarded(self._handler.ended)

    def _guarded(self, do: Callable[..., None], *arguments: bytes) -> None:
        try:
            do(*arguments)
        except Exception:
            _log.exception("a gRPC call failed")
            self._fail(Status.INTERNAL, _FAILED)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _too_late(self) -> None:
        self._finish(Status.DEADLINE_EXCEEDED, "the deadline is over", broken=True)

    def _fail(self, status: Status, message: str) -> None:
        self._finish(status, message, broken=False)

    def cut(self) -> None:
        """The server ends."""
        self._finish(Status.UNAVAILABLE, "the server ends", broken=True)

    def _finish(self, status: Status, message: str, *, broken: bool) -> None:
        if self._handler is None:
            return
        block = _end_block(status, message) if self._begun else _only_block(status, message)
        self._stream.finish(block)
        self._close(broken=broken)

    def _close(self, *, broken: bool) -> None:
        handler, self._handler = self._handler, None
        self._buffer.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if handler is not None:
            try:
                handler.closed(broken=broken)
            except Exception:  # the others of a lost connection must hear of it, too
                _log.exception("a gRPC call failed at its end")


class NoCall:
    """Takes a request that is no call of ours, and answers at its end."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def data(self, data: bytes, *, ended: bool) -> None:
        self._stream.credit(len(data))
        if ended:
            self._stream.send_headers(_NO_GRPC_BLOCK)
            self._stream.send(_NO_GRPC)
            self._stream.finish(b"")

    def room(self) -> None:
        pass

    def lost(self) -> None:
        pass

    def cut(self) -> None:
        pass


class Refused:
    """Takes what still comes for a call that has been answered."""

    def data(self, data: bytes, *, ended: bool) -> None:
        pass

    def room(self) -> None:
        pass

    def lost(self) -> None:
        pass

    def cut(self) -> None:
        pass


_NOBODY: Final = Refused()


def accept(stream: Stream, request: Request, methods: Mapping[str, Method], max_message_bytes: int) -> Receiver:
    """The receiver of a request: a call of one of `methods`, by path, or what refuses it."""
    if not request.is_grpc:
        return NoCall(stream)
    method = methods.get(request.path)
    if method is None:
        stream.finish(_only_block(Status.UNIMPLEMENTED, f"no method {request.path[:200]}"))
        return _NOBODY
    if request.compressed:
        stream.finish(_only_block(Status.UNIMPLEMENTED, "compressed messages are not read"))
        return _NOBODY
    try:
        return Call(stream, request, method, max_message_bytes)
    except Exception:
        _log.exception("a gRPC call failed at its begin")
        stream.finish(_only_block(Status.INTERNAL, _FAILED))
        return _NOBODY


def _fields(status: Status, message: str) -> tuple[tuple[bytes, bytes], ...]:
    """Of the trailers; the message percent-encoded, see `Status-Message`."""
    fields = ((b"grpc-status", str(int(status)).encode()),)
    if not message:
        return fields
    encoded = "".join(chr(b) if 0x20 <= b < 0x7F and b != 0x25 else f"%{b:02X}" for b in message.encode())
    return (*fields, (b"grpc-message", encoded.encode()))


@lru_cache(maxsize=64)
def _end_block(status: Status, message: str) -> bytes:
    return blocks.write(_fields(status, message))


@lru_cache(maxsize=64)
def _only_block(status: Status, message: str) -> bytes:
    """A call without an answer: head and trailers in one."""
    return blocks.write(_OK_HEAD + _fields(status, message))
