"""A small HTTP/2 client (RFC 9113) that writes each frame itself: cut, joined, unknown, or under a small window.

Only what a judge of gRPC servers needs. It offers no dynamic HPACK table and takes no pushes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from ballast_conformance import hpack

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEFAULT_WINDOW: Final = 65_535
_WIDE_WINDOW: Final = 1 << 24
_FRAME_HEAD: Final = 9
CANCEL: Final = 8
"""The error code of a stream that is no longer wanted."""


class FrameType(IntEnum):
    """Section 6."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntEnum):
    """Of frames; ACK is that of SETTINGS and PING."""

    END_STREAM = 0x1
    ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(IntEnum):
    """Section 6.5.2."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    """Type, flags, stream and payload of the next frame. Raises `IncompleteReadError` at the end."""
    head = await reader.readexactly(_FRAME_HEAD)
    size = int.from_bytes(head[:3], "big")
    kind, flags, stream = struct.unpack(">BBI", head[3:])
    return kind, flags, stream & 0x7FFFFFFF, await reader.readexactly(size)


@dataclass(frozen=True, slots=True)
class Reset:
    """The server has broken the stream off, or the connection is gone."""

    why: str


@dataclass(frozen=True, slots=True)
class Headers:
    """A header block: the first of a response, or its trailers."""

    fields: dict[str, str]
    end: bool


@dataclass(frozen=True, slots=True)
class Data:
    """The content of a DATA frame."""

    content: bytes
    end: bool


Event = Reset | Headers | Data


@dataclass(slots=True, eq=False)
class Stream:
    """One request and what has come for it."""

    id: int
    may_send: int
    may_receive: int
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)


class Connection:
    """A connection to a server. Open it with `connect`, close it with `aclose`.

    `window`: bytes that the server may send on a stream before it is given more room. It is given more at once, unless
    `withhold` is set: then only by `allow`.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, window: int, withhold: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._window = window
        self._withhold = withhold
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._may_send = DEFAULT_WINDOW
        self._first_window = DEFAULT_WINDOW
        self._most_frame = 16_384
        self._room = asyncio.Event()
        self._pongs: dict[bytes, asyncio.Event] = {}
        self._block: bytes = b""
        self._block_ends_stream = False
        self.settled = asyncio.Event()
        """The server's first SETTINGS have come."""
        self.ended: str | None = None
        """Why the connection is of no more use."""
        self.overrun = 0
        """Bytes that the server has sent beyond what the window of their stream allowed."""
        over_tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        self.secure = over_tls is not None
        """Whether it runs over TLS."""
        self.alpn = None if over_tls is None else over_tls.selected_alpn_protocol()
        """The protocol that the server chose by ALPN; None without TLS, or if it chose none."""
        self._reading = asyncio.get_running_loop().create_task(self._read())

    def begin(self) -> None:
        """Send the preface."""
        settings = {
            Setting.HEADER_TABLE_SIZE: 0,
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: self._window,
        }
        payload = b"".join(struct.pack(">HI", key, value) for key, value in settings.items())
        self._writer.write(PREFACE + frame(FrameType.SETTINGS, 0, 0, payload))
        self._writer.write(frame(FrameType.WINDOW_UPDATE, 0, 0, struct.pack(">I", _WIDE_WINDOW)))

    def open(self, headers: Iterable[tuple[str, str]]) -> Stream:
        """Begin a request."""
        stream = Stream(self._next, self._first_window, self._window)
        self._next += 2
        self._streams[stream.id] = stream
        if self.ended is not None:
            stream.events.put_nowait(Reset(self.ended))
        self._write(frame(FrameType.HEADERS, Flag.END_HEADERS, stream.id, hpack.encode(headers)))
        return stream

    async def send(self, stream: Stream, content: bytes, *, most: int | None = None, end: bool = False) -> None:
        """Send content in DATA frames of at most `most` bytes, as far as the server's windows allow."""
        largest = min(self._most_frame, most or self._most_frame)
        at = 0
        while at < len(content):
            size = min(largest, len(content) - at, stream.may_send, self._may_send)
            if size <= 0:
                if self.ended is not None:
                    return
                self._room.clear()
                await self._room.wait()
                continue
            stream.may_send -= size
            self._may_send -= size
            at += size
            self._write(
                frame(
                    FrameType.DATA,
                    Flag.END_STREAM if end and at == len(content) else 0,
                    stream.id,
                    content[at - size : at],
                )
            )
        if end and not content:
            self._write(frame(FrameType.DATA, Flag.END_STREAM, stream.id))
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def reset(self, stream: Stream, code: int = CANCEL) -> None:
        """Break a stream off."""
        self._write(frame(FrameType.RST_STREAM, 0, stream.id, struct.pack(">I", code)))

    def allow(self, stream: Stream, size: int) -> None:
        """Let the server send so many bytes more on this stream."""
        stream.may_receive += size
        self._write(frame(FrameType.WINDOW_UPDATE, 0, stream.id, struct.pack(">I", size)))

    def raw(self, content: bytes) -> None:
        """Write bytes as they are."""
        self._write(content)

    async def ping(self, content: bytes) -> None:
        """Send a PING of these eight bytes; returns when it is acknowledged."""
        pong = self._pongs.setdefault(content, asyncio.Event())
        self._write(frame(FrameType.PING, 0, 0, content))
        await pong.wait()

    async def aclose(self) -> None:
        """Close it."""
        self._reading.cancel()
        await asyncio.wait({self._reading})
        if self.secure:
            self._writer.transport.abort()  # a goodbye by TLS would wait for the server's
            return
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()

    def _write(self, content: bytes) -> None:
        if self.ended is None:
            self._writer.write(content)

    async def _read(self) -> None:
        try:
            while True:
                self._take(*await read_frame(self._reader))
        except asyncio.IncompleteReadError:
            self._end("the server has closed the connection")
        except (OSError, ValueError) as error:
            self._end(f"the connection broke: {error}")

    def _end(self, why: str) -> None:
        self.ended = self.ended or why
        self.settled.set()
        self._room.set()
        for stream in self._streams.values():
            stream.events.put_nowait(Reset(self.ended))

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        take = _TAKERS.get(kind)
        if take is not None:
            take(self, self._streams.get(number), flags, payload)

    def _reset(self, stream: Stream | None, flags: int, payload: bytes) -> None:
        if stream is not None:
            code = int.from_bytes(payload, "big")
            stream.events.put_nowait(Reset(f"the server has reset the stream, HTTP/2 error {code}"))

    def _ping(self, stream: Stream | None, flags: int, payload: bytes) -> None:
        if not flags & Flag.ACK:
            self._write(frame(FrameType.PING, Flag.ACK, 0, payload))
        elif payload in self._pongs:
            self._pongs.pop(payload).set()

    def _window_update(self, stream: Stream | None, flags: int, payload: bytes) -> None:
        """Of a stream, or of the connection."""
        more = int.from_bytes(payload, "big")
        if stream is not None:
            stream.may_send += more
        else:
            self._may_send += more
        self._room.set()

    def _go_away(self, stream: Stream | None, flags: int, payload: bytes) -> None:
        code, said = int.from_bytes(payload[4:8], "big"), payload[8:].decode("latin-1")
        if code:
            self._end(f"the server has ended the connection, HTTP/2 error {code} {said}".rstrip())

    def _data(self, stream: Stream | None, flags: int, payload: bytes) -> None:
        size = len(payload)
        if size:
            self._write(frame(FrameType.WINDOW_UPDATE, 0, 0, struct.pack(">I", size)))
        if stream is None:
            return
        stream.may_receive -= size
        self.overrun += max(0, -stream.may_receive)
        if size and not self._withhold and not flags & Flag.END_STREAM:
            self.allow(stream, size)
        content = _unpadded(payload, flags & ~Flag.PRIORITY)
        stream.events.put_nowait(Data(content, bool(flags & Flag.END_STREAM)))

    def _headers(self, stream: Stream | None, flags: int, payload: bytes) -> None:
        self._block_ends_stream = bool(flags & Flag.END_STREAM)
        self._continuation(stream, flags & Flag.END_HEADERS, _unpadded(payload, flags))

    def _continuation(self, stream: Stream | None, flags: int, payload: bytes) -> None:
        self._block += payload
        if not flags & Flag.END_HEADERS:
            return
        fields = dict(hpack.decode(self._block))
        self._block = b""
        if stream is not None:
            stream.events.put_nowait(Headers(fields, self._block_ends_stream))

    def _settings(self, stream: Stream | None, flags: int, payload: bytes) -> None:
        if flags & Flag.ACK:
            return
        for key, value in struct.iter_unpack(">HI", payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                for each in self._streams.values():
                    each.may_send += value - self._first_window
                self._first_window = value
            elif key == Setting.MAX_FRAME_SIZE:
                self._most_frame = value
        self._write(frame(FrameType.SETTINGS, Flag.ACK, 0))
        self.settled.set()
        self._room.set()


_TAKERS: Final[dict[int, Callable[[Connection, Stream | None, int, bytes], None]]] = {
    FrameType.DATA: Connection._data,
    FrameType.HEADERS: Connection._headers,
    FrameType.RST_STREAM: Connection._reset,
    FrameType.SETTINGS: Connection._settings,
    FrameType.PING: Connection._ping,
    FrameType.GOAWAY: Connection._go_away,
    FrameType.WINDOW_UPDATE: Connection._window_update,
    FrameType.CONTINUATION: Connection._continuation,
}


def _unpadded(payload: bytes, flags: int) -> bytes:
    if flags & Flag.PADDED:
        payload = payload[1 : len(payload) - payload[0]]
    return payload[5:] if flags & Flag.PRIORITY else payload


def trust_any() -> ssl.SSLContext:
    """TLS that accepts every certificate, as gateways do with pickers', and asks for HTTP/2."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def connect(
    host: str,
    port: int,
    *,
    tls: bool,
    timeout_s: float,
    window: int = _WIDE_WINDOW,
    withhold: bool = False,
) -> Connection:
    """Open a connection and wait for the server's SETTINGS. Raises `OSError` where no HTTP/2 server answers."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(host, port, ssl=trust_any() if tls else None)
        made = Connection(reader, writer, window=window, withhold=withhold)
        try:
            made.begin()
            await made.settled.wait()
            if made.ended is not None:
                raise ConnectionError(made.ended)
        except BaseException:
            await made.aclose()
            raise
        return made
