"""Hostile frames against the picker's HTTP/2 server, in this process: any frames in any order, damaged, in pieces.

A seeded generator makes connections of many streams: gRPC messages cut up at random, trailers, padding, windows opened
and closed, resets, settings, priorities, floods, nonsense. 100,000 take some minutes. What must hold:

1. Nothing is raised, and nothing in the server fails (no INTERNAL_ERROR).
2. What it sends are whole frames, in an order that HTTP/2 knows, within the windows that were opened, and readable.
3. Every call that was opened is closed once, and nothing is left: no stream, no timer, no connection.
4. It does not matter where the pieces end (`pieces`), nor when calls go on and time passes (`time`).
5. Where every frame was in order, every call is answered.
6. Processor time is bounded by the bytes.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import pack

from ballast_gateway.h2.calls import Call
from ballast_gateway.h2.connection import Connection
from ballast_gateway.h2.frames import Code
from ballast_gateway.h2.limits import Limits
from ballast_gateway.h2.server import Server
from ballast_gateway.h2.stream import Stream
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row
from tests.support import h2_peer
from tests.support.h2_peer import PATH, Peer, message, raw, setting

LIMITS = Limits(streams=8, header_bytes=4096, stream_window=32_768, connection_window=66_000, unsent_bytes=512)
MAX_MESSAGE_BYTES = 8192
LONGEST_S, LONGEST_S_PER_BYTE = 0.25, 20e-6
"""Processor time for an input: far above what it takes. One that takes longer is tried again, twice: it is the input's
fault only if it is always slow, and not where this process collected its garbage meanwhile."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of the command line."""
    parser.add_argument("--inputs", type=int, default=10_000, help="connections to make")


async def run(lab: Lab) -> list[Row]:
    """A row for each case."""
    inputs = lab.options.inputs
    return [fuzz(case, inputs // len(CASES), lab.options.seed) for case in lab.cases(*CASES)]


def fuzz(case: str, inputs: int, seed: int) -> Row:
    """Try so many connections, each its own by the seed and its number."""
    attempt, ends, found = CASES[case], Counter[str](), Counter[str]()
    longest_s, whole, memory_kib = 0.0, 0, 0
    for number in range(inputs):
        if number == inputs // 10:
            memory_kib = _memory_kib()
        try:
            took_s, size, verdict = _timed(attempt, f"{seed}/{case}/{number}")
        except Exception as error:
            found[f"input {number}: {type(error).__name__}: {str(error)[:200]}"] += 1
            continue
        longest_s = max(longest_s, took_s)
        if took_s > _bound_s(size):
            found[f"input {number}: {took_s:.3f} s for {size} bytes"] += 1
        whole += not verdict
        if verdict:
            ends[verdict] += 1
    return Row(
        case,
        requests=inputs,
        whole=whole,
        broken=0,
        wrong=sum(found.values()),
        stuck=0,
        refused=dict(ends),
        reasons=dict(found.most_common(20)),
        notes={
            "longest": f"{1e3 * longest_s:.1f} ms",
            "more memory than after a tenth": f"{(_memory_kib() - memory_kib) / 1024:.1f} MiB",
        },
        failed=f"{sum(found.values())} inputs broke a promise" if found else "",
    )


def _timed(attempt: Callable[[random.Random], tuple[int, str]], name: str) -> tuple[float, int, str]:
    """The least processor time of an input in s, its bytes, and what came of it."""
    took_s = math.inf
    for _ in range(3):
        begin_s = time.thread_time()
        size, verdict = attempt(random.Random(name))
        took_s = min(took_s, time.thread_time() - begin_s)
        if took_s <= _bound_s(size):
            break
    return took_s, size, verdict


def _bound_s(size: int) -> float:
    return LONGEST_S + size * LONGEST_S_PER_BYTE


def _memory_kib() -> int:
    """The most that this process has ever used."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --- what is served ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Book:
    """What happened to the calls of one connection."""

    events: list[tuple[int, str, bytes]] = field(default_factory=list)
    """Call, what, message."""
    open: set[int] = field(default_factory=set)
    held: list[Echo] = field(default_factory=list)
    opened: int = 0


class Echo:
    """Sends each message back; some of them ask for more: many bytes, an end, a wait."""

    def __init__(self, call: Call, book: Book, *, may_hold: bool) -> None:
        self.call, self._book, self._may_hold = call, book, may_hold
        self._number = book.opened
        book.opened += 1
        book.open.add(self._number)

    def message(self, raw: bytes) -> None:
        assert self._number in self._book.open, "a message after the end"
        self._book.events.append((self._number, "message", raw))
        if raw.startswith(b"more"):
            self.call.write([b"x" * 3000] * 8)
        elif raw.startswith(b"over"):
            self.call.write([raw])
            self.call.finish()
        elif raw.startswith(b"wait") and self._may_hold:
            self.call.hold()
            self._book.held.append(self)
        else:
            self.call.write([raw])

    def ended(self) -> None:
        assert self._number in self._book.open, "an end after the end"
        self._book.events.append((self._number, "ended", b""))
        self.call.finish()

    def closed(self, *, broken: bool) -> None:
        assert self._number in self._book.open, "closed twice"
        self._book.open.remove(self._number)
        self._book.events.append((self._number, "broken" if broken else "closed", b""))


def serving(book: Book, *, may_hold: bool) -> Server:
    """A server of `Echo`."""
    methods = {PATH: lambda call: Echo(call, book, may_hold=may_hold)}
    return Server(methods, max_message_bytes=MAX_MESSAGE_BYTES, limits=LIMITS)


# --- what a peer sends ------------------------------------------------------------------------------------------------

CONTENTS = (b"", b"a", b"hello", b"more", b"over", b"wait", b"y" * 700, b"z" * 5000)
FIELDS = (
    *(("grpc-timeout", "1S"), ("grpc-timeout", "99999999H"), ("grpc-timeout", "x"), ("grpc-encoding", "gzip")),
    *(("x-a", "b"), ("x-long", "c" * 900), ("content-length", "5"), ("content-length", "x"), ("Upper", "case")),
    *(("connection", "close"), ("te", "gzip"), (":path", "/again"), (":late", "x"), ("", "nameless"), ("x", "a\r\nb")),
)


def honest(rng: random.Random, peer: Peer) -> list[bytes]:
    """Calls as they should be, their frames interleaved."""
    calls = []
    for number in range(rng.randrange(1, 5)):
        contents = [rng.choice(CONTENTS) for _ in range(rng.randrange(1, 4))]
        contents = [content for content in contents if content != b"over"]
        stream = 2 * number + 1
        body = b"".join(message(content) for content in contents)
        parts = _cut(rng, body) or [b""]
        block = peer.headers_block()
        frames = _header_frames(rng, stream, block) + [_data(rng, stream, part) for part in parts]
        if rng.random() < 0.5:
            frames.append(raw(h2_peer.DATA, h2_peer.END_STREAM, stream))
        else:
            trailers = b"\x00\x01x\x01y"
            frames.append(raw(h2_peer.HEADERS, h2_peer.END_STREAM | h2_peer.END_HEADERS, stream, trailers))
        calls.append(frames)
    out = [call[0] for call in calls]  # streams begin in order: their tables and numbers depend on it
    rest = [call[1:] for call in calls]
    while rest := [frames for frames in rest if frames]:
        out.append(rng.choice(rest).pop(0))
        if rng.random() < 0.1:
            out.append(raw(h2_peer.PING, 0, 0, b"12345678"))
    return out


def _header_frames(rng: random.Random, stream: int, block: bytes) -> list[bytes]:
    """HEADERS, sometimes with priority, padding and CONTINUATION: one element, because nothing may come between."""
    flags, begin, end = 0, b"", b""
    if rng.random() < 0.2:
        end = bytes(rng.randrange(20))
        flags, begin = h2_peer.PADDED, bytes((len(end),))
    if rng.random() < 0.2:
        flags, begin = flags | h2_peer.WITH_PRIORITY, begin + b"\x00\x00\x00\x00\x10"
    if rng.random() < 0.7:
        return [raw(h2_peer.HEADERS, flags | h2_peer.END_HEADERS, stream, begin + block + end)]
    at = rng.randrange(len(block) + 1)
    return [
        raw(h2_peer.HEADERS, flags, stream, begin + block[:at] + end)
        + raw(h2_peer.CONTINUATION, h2_peer.END_HEADERS, stream, block[at:])
    ]


def _data(rng: random.Random, stream: int, part: bytes, flags: int = 0) -> bytes:
    if rng.random() < 0.1:
        size = rng.randrange(30)
        return raw(h2_peer.DATA, flags | h2_peer.PADDED, stream, bytes((size,)) + part + bytes(size))
    return raw(h2_peer.DATA, flags, stream, part)


def _cut(rng: random.Random, body: bytes, sizes: Sequence[int] = (1, 3, 50, 2000)) -> list[bytes]:
    parts = []
    while body:
        size = rng.choice(sizes)
        parts.append(body[:size])
        body = body[size:]
    return parts


def hostile(rng: random.Random, peer: Peer) -> list[bytes]:
    """Frames of every kind, most of them nearly right, on streams that may or may not be open."""
    return [_any_frame(rng, peer) for _ in range(rng.randrange(1, 30))]


def _any_frame(rng: random.Random, peer: Peer) -> bytes:
    stream = rng.choice((1, 1, 1, 3, 3, 5, 7, 9, 11, 13, 15, 17, 19, 0, 2, 2**31 - 1))
    word = pack(">L", rng.choice((0, 1, 5, 1000, 65_535, 2**31 - 1, 2**32 - 1)))
    kind = rng.choice((0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 8, 9, 10, 0x42))
    match kind:
        case 0:
            body = b"".join(message(rng.choice(CONTENTS), compressed=rng.random() < 0.03) for _ in range(3))
            part = body[: rng.randrange(len(body) + 1)]
            return b"".join(
                _data(rng, stream, each, rng.choice((0, 0, 0, 1, 8, 9))) for each in _cut(rng, part, (1500,))
            )
        case 1:
            fields = rng.sample(FIELDS, rng.choice((0, 0, 0, 1, 2)))
            path = rng.choice((PATH, PATH, PATH, "/other", ""))
            block = peer.headers_block(*fields, path=path, method=rng.choice(("POST", "POST", "GET")))
            if rng.random() < 0.1:
                block = rng.choice((b"", b"\x20", b"\x3f\xe1\x1f", b"\x80", b"\xff" * 200, block[: len(block) // 2]))
            whole = b"".join(_header_frames(rng, stream, block))
            return whole if rng.random() < 0.6 else whole[:4] + bytes((whole[4] | 1,)) + whole[5:]
        case 2:
            return raw(2, 0, stream, (word + b"\x10")[: rng.choice((5, 5, 5, 4))])
        case 3:
            return raw(3, 0, stream, word[: rng.choice((4, 4, 4, 3))])
        case 4:
            pairs = [setting(rng.randrange(9), rng.choice((0, 1, 3, 100, 16_384, 65_535, 2**31))) for _ in range(2)]
            return raw(
                4, rng.choice((0, 0, 0, 1)), rng.choice((0, 0, 0, 1)), b"".join(pairs)[: rng.choice((0, 12, 12, 5))]
            )
        case 6:
            return raw(6, rng.choice((0, 1)), 0, b"drain...") * rng.choice((1, 1, 50))
        case 7:
            return raw(7, 0, 0, word + word + b"bye")
        case 8:
            return raw(8, 0, rng.choice((0, stream)), word)
        case _:
            return raw(kind, rng.randrange(256), stream, rng.randbytes(rng.randrange(20)))


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Some bytes taken out, put in, doubled or changed."""
    for _ in range(rng.randrange(1, 4)):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        match rng.randrange(4):
            case 0:
                data = data[:at] + data[min(to, at + 9) :]
            case 1:
                data = data[:at] + rng.randbytes(rng.randrange(12)) + data[at:]
            case 2:
                data = data[:to] + data[at : min(to, at + 200)] + data[to:]
            case _:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data


def _conversation(rng: random.Random, peer: Peer) -> tuple[list[bytes], bool]:
    """Frames, and whether all of them are in order."""
    kind = rng.random()
    if kind < 0.3:
        return honest(rng, peer), True
    frames = honest(rng, peer) + hostile(rng, peer) if kind < 0.6 else hostile(rng, peer)
    return frames, False


# --- cases ------------------------------------------------------------------------------------------------------------


class LaxPeer(Peer):
    """Does not count the windows: with damaged frames only the server knows what it was granted."""

    def read(self) -> None:
        self.window = 2**40
        self.windows = dict.fromkeys(self.answers, 2**40)
        self.initial_window = 2**40
        super().read()


def _pieces(rng: random.Random, data: bytes) -> list[bytes]:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


def try_pieces(rng: random.Random) -> tuple[int, str]:
    """A connection's bytes at once and in pieces; their number, and how it ended."""
    seed = rng.random()
    make = random.Random(seed)
    frames, orderly = _conversation(make, Peer(serving(Book(), may_hold=False)))
    data = b"".join(frames)
    if not orderly and rng.random() < 0.3:
        data = damaged(rng, data)
    at_once, book = _fed([data])
    in_pieces, other = _fed(_pieces(rng, data))
    if book.events != other.events or at_once.pipe.written != in_pieces.pipe.written:
        raise AssertionError("it matters where pieces end")
    verdict = _end(at_once, book)
    _end(in_pieces, other)
    if orderly and verdict:
        raise AssertionError(f"an orderly connection ended: {verdict}")
    return len(data), verdict or ("" if orderly else "streams only")


def _fed(pieces: Sequence[bytes]) -> tuple[Peer, Book]:
    book = Book()
    peer = LaxPeer(serving(book, may_hold=False))
    for piece in pieces:
        peer.send(piece)
    return peer, book


def try_time(rng: random.Random) -> tuple[int, str]:
    """A connection on which calls wait, windows open late, the socket stalls and time passes."""
    book = Book()
    server = serving(book, may_hold=True)
    peer = Peer(server)
    frames, orderly = _conversation(rng, peer)
    if not orderly:
        peer = LaxPeer(server)
        frames = _conversation(rng, peer)[0]
    size = 0
    for frame in frames:
        if peer.pipe.closing:
            break
        size += len(frame)
        _meanwhile(rng, peer, book, orderly=orderly)
        peer.send(frame)
        _bounded(peer.connection)
    _go_on(peer, book, all_of_them=True)
    if orderly:
        _let_end(peer, book)
    verdict = _end(peer, book)
    if orderly and verdict:
        raise AssertionError(f"an orderly connection ended: {verdict}")
    return size, verdict or ("" if orderly else "streams only")


def _meanwhile(rng: random.Random, peer: Peer, book: Book, *, orderly: bool) -> None:
    """What may happen between two frames."""
    action = rng.random()
    if action < 0.05:
        peer.connection.pause_writing()
        assert peer.pipe.paused
        peer.step(0.1)
        peer.connection.resume_writing()
    elif action < 0.15:
        peer.step(rng.choice((0.01, 0.4, 3.0) if orderly else (0.5, 5.0, 40.0, 4000.0)))
    elif action < 0.3:
        _go_on(peer, book)
    elif action < 0.4 and orderly:
        peer.widen(0, rng.randrange(1, 50_000))
    elif action < 0.42 and not orderly:
        peer.connection.drain()


def _let_end(peer: Peer, book: Book) -> None:
    """Open all windows and let all calls go on: each must end."""
    for stream in list(peer.connection.streams):
        peer.widen(stream, 500_000)
    peer.widen(0, 5_000_000)
    _go_on(peer, book, all_of_them=True)
    late = [answer for answer in peer.answers.values() if not answer.ended]
    if late or book.open:
        raise AssertionError(f"{len(late)} calls without an end")


def _go_on(peer: Peer, book: Book, *, all_of_them: bool = False) -> None:
    """Answer a call that waits, which may wait again."""
    while book.held:
        echo = book.held.pop(0)
        echo.call.write([b"late"])
        echo.call.go_on()
        peer.step()
        if not all_of_them:
            return


def _bounded(connection: Connection) -> None:
    kept = sum(stream.unsent_bytes for stream in connection.streams.values())
    if kept > LIMITS.streams * (LIMITS.unsent_bytes + 3 * 25_000):
        raise AssertionError(f"{kept} bytes wait for the peer's windows")


def _end(peer: Peer, book: Book) -> str:
    """Cut the connection. Returns how the server had ended it, or an empty text; raises where something is left."""
    peer.read()
    ended = peer.goaway
    peer.connection.cut()
    peer.step()
    streams: dict[int, Stream] = peer.connection.streams
    if book.open or streams or peer.loop.timers or not peer.pipe.closing:
        raise AssertionError(f"left: {len(book.open)} calls, {len(streams)} streams, {peer.loop.timers} timers")
    if ended is None:
        return "closed" if peer.pipe.aborted else ""
    if ended[1] == Code.INTERNAL_ERROR:
        raise AssertionError("the server failed")
    if any(answer.status == "13" and "log" in str(answer.trailers) for answer in peer.answers.values()):
        raise AssertionError("a call failed")
    return Code(ended[1]).name


CASES: dict[str, Callable[[random.Random], tuple[int, str]]] = {"pieces": try_pieces, "time": try_time}
