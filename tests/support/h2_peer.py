"""The other end of an HTTP/2 connection, in memory and on a clock of its own: any bytes in, checked frames out.

It reads what a server writes with a reader of its own and holds it to the rules: whole frames, windows kept, header
blocks that decode, an order of HEADERS, DATA and the end in each stream.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import pack, unpack
from typing import Any, NamedTuple, cast

import hpack

from ballast_gateway.h2.connection import Connection
from ballast_gateway.h2.server import Server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 1
END_HEADERS, PADDED, WITH_PRIORITY = 4, 8, 32
PATH = "/test.Service/Echo"


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def raw(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame's bytes."""
    return pack(">L", len(payload))[1:] + bytes((kind, flags)) + pack(">L", stream) + payload


def message(content: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message's bytes."""
    return pack(">BL", compressed, len(content)) + content


def setting(name: int, value: int) -> bytes:
    return pack(">HL", name, value)


class StepLoop:
    """As much of an event loop as a connection needs. `step` runs what is due."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()

    def time(self) -> float:
        return self._now_s

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._soon.append(lambda: callback(*arguments))

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._later, (self._now_s + delay_s, next(self._count), timer))
        return timer

    @property
    def timers(self) -> int:
        """Those that are neither due nor cancelled."""
        return sum(timer.callback is not None for _, _, timer in self._later)

    def step(self, seconds: float = 0.0) -> None:
        """Let time pass."""
        self._run_soon()
        until_s = self._now_s + seconds
        while self._later and self._later[0][0] <= until_s:
            self._now_s, _, timer = heapq.heappop(self._later)
            if timer.callback is not None:
                timer.callback()
            self._run_soon()
        self._now_s = until_s

    def _run_soon(self) -> None:
        while self._soon:
            self._soon.popleft()()


@dataclass(slots=True)
class Timer:
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None


class Pipe(asyncio.Transport):
    """The server's transport: keeps what is written."""

    def __init__(self, loop: StepLoop) -> None:
        super().__init__()
        self._loop = loop
        self.protocol: Any = None
        self.written = bytearray()
        self.closing = False
        self.aborted = False
        self.paused = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.closing, "written after the end"
        self.written += data

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Our peer ends its side as soon as the server has."""
        self.close()

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


@dataclass(slots=True)
class Answer:
    """What the server sent on one stream."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    data: bytes = b""
    trailers: list[tuple[str, str]] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None
    """The error code of its RST_STREAM."""

    @property
    def status(self) -> str | None:
        """gRPC's."""
        return dict(self.headers + self.trailers).get("grpc-status")

    @property
    def messages(self) -> list[bytes]:
        found, rest = [], self.data
        while rest:
            _, size = unpack(">BL", rest[:5])
            found.append(rest[5 : 5 + size])
            rest = rest[5 + size :]
        return found


class Peer:
    """A client that may do anything. `send` gives bytes to the server; then `frames` and `answers` are new."""

    def __init__(self, server: Server, *, greet: bool = True) -> None:
        self.loop = StepLoop()
        self.pipe = Pipe(self.loop)
        self.connection = Connection(server, cast("asyncio.AbstractEventLoop", self.loop))
        self.pipe.protocol = self.connection
        self.frames: list[Frame] = []
        self.answers: dict[int, Answer] = {}
        self.goaway: tuple[int, int, bytes] | None = None
        """Last stream, code, reason."""
        self.window = 65_535
        self.windows: dict[int, int] = {}
        self.initial_window = 65_535
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._read_to = 0
        self.connection.connection_made(self.pipe)
        self.loop.step()
        if greet:
            self.send(PREFACE + raw(SETTINGS))

    def headers_block(self, *more: tuple[str, str], path: str = PATH, method: str = "POST") -> bytes:
        """A request's header block, with the tables of this connection."""
        usual = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers")]
        block: bytes = self._encoder.encode([*usual, ("content-type", "application/grpc"), *more])
        return block

    def open(self, stream: int, *more: tuple[str, str], path: str = PATH, flags: int = 0) -> None:
        """A request's head."""
        self.send(raw(HEADERS, END_HEADERS | flags, stream, self.headers_block(*more, path=path)))

    def resize(self, value: int) -> None:
        """Set the initial window, as SETTINGS does; the windows here first."""
        for stream in self.windows:
            self.windows[stream] += value - self.initial_window
        self.initial_window = value
        self.send(raw(SETTINGS, 0, 0, setting(4, value)))

    def widen(self, stream: int, increment: int) -> None:
        """WINDOW_UPDATE."""
        if stream:
            self.windows[stream] = self.windows.get(stream, self.initial_window) + increment
        else:
            self.window += increment
        self.send(raw(WINDOW_UPDATE, 0, stream, pack(">L", increment)))

    def send(self, data: bytes) -> None:
        """Give these bytes to the server, and read what it says."""
        if not self.pipe.closing:
            self.connection.data_received(data)
        self.step()

    def step(self, seconds: float = 0.0) -> None:
        """Let time pass, with a sweep at its end."""
        self.loop.step(seconds)
        if seconds and not self.pipe.closing:
            self.connection.sweep(self.loop.time())
        self.loop.step()
        self.read()

    def read(self) -> None:
        """Read what the server has written. Raises `AssertionError` where it broke a rule."""
        written, at = self.pipe.written, self._read_to
        while len(written) - at >= 9:
            size = int.from_bytes(written[at : at + 3], "big")
            assert size <= 16_384, "a frame that nobody allowed"
            assert at + 9 + size <= len(written), "a frame that is cut off"
            stream = int.from_bytes(written[at + 5 : at + 9], "big")
            frame = Frame(written[at + 3], written[at + 4], stream, bytes(written[at + 9 : at + 9 + size]))
            at += 9 + size
            self.frames.append(frame)
            self._take(frame)
        assert at == len(written)
        self._read_to = at

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case 0 | 1:
                self._take_answer(frame, self.answers.setdefault(frame.stream, Answer()))
            case 3:
                answer = self.answers.setdefault(frame.stream, Answer())
                assert answer.reset is None, "reset twice"
                answer.reset = unpack(">L", frame.payload)[0]
            case 7:
                last, code = unpack(">LL", frame.payload[:8])
                self.goaway = last, code, frame.payload[8:]
            case 9:
                raise AssertionError("nothing so long was to be sent")

    def _take_answer(self, frame: Frame, answer: Answer) -> None:
        assert not answer.ended, "more after the end"
        assert answer.reset is None, "more after a reset"
        if frame.kind == HEADERS:
            assert frame.flags & END_HEADERS
            fields = [(name, value) for name, value in self._decoder.decode(frame.payload)]
            if answer.headers:
                assert frame.flags & END_STREAM, "a second head"
                answer.trailers = cast("list[tuple[str, str]]", fields)
            else:
                answer.headers = cast("list[tuple[str, str]]", fields)
        else:
            assert answer.headers, "DATA before HEADERS"
            size = len(frame.payload)
            self.window -= size
            self.windows[frame.stream] = self.windows.get(frame.stream, self.initial_window) - size
            assert not size or (self.window >= 0 and self.windows[frame.stream] >= 0), "more than a window"
            answer.data += frame.payload
        answer.ended = bool(frame.flags & END_STREAM)
