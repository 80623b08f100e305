"""One HTTP/2 connection of the picker's server: flow control both ways, its bounds, its end.

What the RFC says of single frames is h2spec's (`tests/gateway/test_h2spec.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from struct import pack

import pytest

from ballast_gateway.h2.calls import Call
from ballast_gateway.h2.frames import Code
from ballast_gateway.h2.limits import Limits
from ballast_gateway.h2.server import Server
from tests.support import h2_peer
from tests.support.h2_peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PATH,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Peer,
    message,
    raw,
    setting,
)


@dataclass
class Handler:
    """Does what the test says with each message; by default nothing."""

    call: Call
    do: Callable[[Handler, bytes], None]
    seen: list[bytes] = field(default_factory=list)
    half_closed: bool = False
    over: list[str] = field(default_factory=list)

    def message(self, raw: bytes) -> None:
        self.seen.append(raw)
        self.do(self, raw)

    def ended(self) -> None:
        self.half_closed = True
        self.call.finish()

    def closed(self, *, broken: bool) -> None:
        self.over.append("broken" if broken else "closed")


def echo(handler: Handler, raw: bytes) -> None:
    handler.call.write([raw])


def keep(handler: Handler, raw: bytes) -> None:
    pass


USUAL = Limits()


class Stage:
    """A peer of a server whose calls the test sees."""

    def __init__(
        self,
        do: Callable[[Handler, bytes], None] = echo,
        limits: Limits = USUAL,
        *,
        greet: bool = True,
    ) -> None:
        self.handlers: list[Handler] = []

        def open_call(call: Call) -> Handler:
            self.handlers.append(Handler(call, do))
            return self.handlers[-1]

        self.server = Server({PATH: open_call}, max_message_bytes=1 << 20, limits=limits)
        self.peer = Peer(self.server, greet=greet)

    def said(self, kind: int) -> list[h2_peer.Frame]:
        return [frame for frame in self.peer.frames if frame.kind == kind]

    @property
    def broken_by(self) -> int | None:
        """The error that ended the connection."""
        return None if self.peer.goaway is None else self.peer.goaway[1]


def test_an_answer_waits_for_the_streams_window() -> None:
    """And goes on byte by byte, as it opens."""
    stage = Stage()
    peer = stage.peer
    peer.resize(4)
    peer.open(1)
    peer.send(raw(DATA, END_STREAM, 1, message(b"hello")))
    assert peer.answers[1].data == message(b"hello")[:4]
    assert not peer.answers[1].ended
    peer.widen(1, 5)
    assert peer.answers[1].data == message(b"hello")[:9]
    peer.widen(1, 100)
    assert peer.answers[1].messages == [b"hello"]
    assert peer.answers[1].status == "0"
    assert stage.handlers[0].over == ["closed"]


def burst(peer: Peer, streams: range) -> bytes:
    """A request on each of these streams."""
    return b"".join(
        raw(HEADERS, END_HEADERS, stream, peer.headers_block()) + raw(DATA, END_STREAM, stream, message(b"%d" % stream))
        for stream in streams
    )


def test_a_burst_leaves_turns_to_others_and_is_answered_in_order() -> None:
    """A few at a time; what comes meanwhile waits behind it, and nothing is read before its turn."""
    stage = Stage()
    peer, streams = stage.peer, range(1, 401, 2)
    taken: list[int] = []

    def another() -> None:
        taken.append(len(stage.handlers))
        if len(taken) < 50:
            peer.loop.call_soon(another)

    peer.connection.data_received(burst(peer, streams[:150]))
    paused = [peer.pipe.paused]
    peer.connection.data_received(burst(peer, streams[150:]))
    another()
    peer.step()
    assert 0 < taken[0] < 60
    assert all(after - before <= 30 for before, after in pairwise(taken))
    assert [*paused, peer.pipe.paused] == [True, False]
    assert [handler.seen for handler in stage.handlers] == [[b"%d" % stream] for stream in streams]
    assert all(peer.answers[stream].messages == [b"%d" % stream] for stream in streams)


def test_a_peer_that_reads_again_does_not_cut_a_bursts_turn_short() -> None:
    """Reading goes on when both are over: the stall and the turn."""
    stage = Stage()
    peer, paused = stage.peer, list[bool]()
    peer.connection.data_received(burst(peer, range(1, 401, 2)))
    peer.connection.pause_writing()
    peer.connection.resume_writing()
    paused.append(peer.pipe.paused)
    peer.connection.pause_writing()
    peer.step()
    paused.append(peer.pipe.paused)
    peer.connection.resume_writing()
    assert [*paused, peer.pipe.paused] == [True, True, False]
    assert len(stage.handlers) == 200


def test_a_connection_that_is_lost_in_a_burst_takes_nothing_more() -> None:
    stage = Stage(keep)
    stage.peer.connection.data_received(burst(stage.peer, range(1, 401, 2)))
    taken = len(stage.handlers)
    assert 0 < taken < 200
    stage.peer.connection.connection_lost(None)
    stage.peer.loop.step()
    assert len(stage.handlers) == taken


def test_a_window_that_the_peer_takes_back_is_paid_off_first() -> None:
    """It may be below zero (RFC 9113, 6.9.2)."""
    peer = Stage().peer
    peer.open(1)
    peer.send(raw(DATA, 0, 1, message(b"x" * 1000)))
    peer.resize(10)
    peer.send(raw(DATA, END_STREAM, 1, message(b"y" * 10)))
    assert len(peer.answers[1].data) == 1005
    peer.widen(1, 995)
    assert len(peer.answers[1].data) == 1005
    peer.widen(1, 15)
    assert peer.answers[1].messages == [b"x" * 1000, b"y" * 10]


def test_streams_share_the_connections_window() -> None:
    """Those that wait for it go on in the order in which they began to wait."""
    peer = Stage().peer
    peer.resize(1 << 20)
    for stream in (1, 3, 5):
        peer.open(stream)
        peer.send(raw(DATA, 0, stream, message(b"x" * 10_000)) * 3 + raw(DATA, END_STREAM, stream))
    assert [peer.answers[stream].ended for stream in (1, 3, 5)] == [True, True, False]
    assert peer.window == 0
    peer.widen(0, 100_000)
    assert [len(peer.answers[stream].messages) for stream in (1, 3, 5)] == [3, 3, 3]


def test_no_more_messages_are_taken_while_answers_cannot_leave() -> None:
    """The peer's own window closes then: what is kept is bounded."""
    limits = Limits(stream_window=20_000, unsent_bytes=1000)
    stage = Stage(limits=limits)
    peer = stage.peer
    peer.resize(0)
    peer.open(1)
    peer.send(raw(DATA, 0, 1, message(b"x" * 995)) * 20)
    assert len(stage.handlers[0].seen) == 2  # the first fills what may be kept, the second is beyond it
    assert not [frame for frame in stage.said(WINDOW_UPDATE) if frame.stream == 1]
    peer.send(raw(DATA, 0, 1, b"\x00"))
    assert peer.answers[1].reset == Code.FLOW_CONTROL_ERROR
    assert stage.handlers[0].over == ["broken"]


def test_a_held_call_takes_nothing_until_it_goes_on() -> None:
    """Neither messages nor the end; then all of it, in order."""
    stage = Stage(do=lambda handler, raw: handler.call.hold())
    peer = stage.peer
    peer.open(1)
    peer.send(raw(DATA, END_STREAM, 1, message(b"a") + message(b"b")))
    handler = stage.handlers[0]
    assert (handler.seen, handler.half_closed) == ([b"a"], False)
    handler.call.go_on()
    assert (handler.seen, handler.half_closed) == ([b"a", b"b"], False)
    handler.call.go_on()
    assert handler.half_closed
    peer.step()
    assert peer.answers[1].status == "0"


def test_windows_open_again_as_messages_are_taken() -> None:
    """Both of them: a stream and a connection never come to a halt by themselves."""
    stage = Stage(do=keep, limits=Limits(stream_window=20_000, connection_window=70_000))
    peer = stage.peer
    peer.open(1)
    for _ in range(50):
        peer.send(raw(DATA, 0, 1, message(b"x" * 9_995)))
    assert len(stage.handlers[0].seen) == 50
    assert stage.broken_by is None
    for stream in (0, 1):
        granted = sum(int.from_bytes(frame.payload) for frame in stage.said(WINDOW_UPDATE) if frame.stream == stream)
        assert granted >= 500_000 - 45_000


def test_padding_is_given_back() -> None:
    """It counts in the windows (RFC 9113, 6.9.1), though nobody reads it."""
    stage = Stage(do=keep, limits=Limits(stream_window=20_000))
    stage.peer.open(1)
    stage.peer.send(raw(DATA, 0, 1, message(b"x" * 90_000)[:5]))
    for _ in range(200):
        stage.peer.send(raw(DATA, h2_peer.PADDED, 1, b"\xff" + b"x" * 100 + bytes(255)))
    granted = sum(int.from_bytes(frame.payload) for frame in stage.said(WINDOW_UPDATE) if frame.stream == 1)
    assert granted >= 200 * 356 - 10_000
    assert stage.peer.answers.get(1) is None


def test_a_peer_that_overruns_the_connections_window_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stream need have its own window overrun."""
    limits = Limits(stream_window=60_000, connection_window=65_535, unsent_bytes=0)
    stage = Stage(do=lambda handler, raw: handler.call.hold(), limits=limits)
    peer = stage.peer
    for stream in (1, 3):
        peer.open(stream)
    half = raw(DATA, 0, 1, message(b"x" * 16_000)) + raw(DATA, 0, 3, message(b"x" * 16_000))
    monkeypatch.setattr(peer.connection, "_refill", lambda: None)  # else only a burst in one read could overrun it
    peer.send(half * 2)
    assert not peer.pipe.closing
    peer.send(half)
    assert stage.broken_by == Code.FLOW_CONTROL_ERROR
    assert [handler.over for handler in stage.handlers] == [["broken"], ["broken"]]


def test_a_message_longer_than_the_window_is_read() -> None:
    """What lies in half a message counts as taken, up to the longest message."""
    stage = Stage(limits=Limits(stream_window=16_384))
    peer = stage.peer
    peer.resize(1 << 20)
    peer.widen(0, 1 << 20)
    peer.open(1)
    whole = message(b"x" * 300_000)
    for at in range(0, len(whole), 8_000):
        peer.send(raw(DATA, 0, 1, whole[at : at + 8_000]))
    assert peer.answers[1].messages == [b"x" * 300_000]


def many(frame: bytes, count: int) -> Callable[[Peer], bytes]:
    return lambda peer: frame * count


def resets(peer: Peer) -> bytes:
    """CVE-2023-44487."""
    block = peer.headers_block()
    return b"".join(
        raw(HEADERS, END_HEADERS, n, block) + raw(RST_STREAM, 0, n, pack(">L", 8)) for n in range(1, 1000, 2)
    )


def made_resets(peer: Peer) -> bytes:
    """CVE-2025-8671: the server is made to reset."""
    block = peer.headers_block()
    return b"".join(
        raw(HEADERS, END_HEADERS, n, block) + raw(WINDOW_UPDATE, 0, n, pack(">L", 0)) for n in range(1, 1000, 2)
    )


def continuations(peer: Peer) -> bytes:
    """CVE-2024-27316."""
    return raw(HEADERS, 0, 1, b"") + raw(CONTINUATION, 0, 1, b"\x00\x01x\x01y" * 100) * 1000


FLOODS: dict[str, Callable[[Peer], bytes]] = {
    "rapid reset": resets,
    "made you reset": made_resets,
    "continuations": continuations,
    "empty continuations": lambda peer: raw(HEADERS, 0, 1, b"") + raw(CONTINUATION, 0, 1, b"") * 1000,
    "pings": many(raw(PING, 0, 0, b"12345678"), 1000),
    "settings": many(raw(SETTINGS), 1000),
    "acknowledgements": many(raw(SETTINGS, h2_peer.ACK), 1000),
    "priorities": many(raw(h2_peer.PRIORITY, 0, 1, b"\x00\x00\x00\x00\x10"), 1000),
    "empty data": lambda peer: raw(HEADERS, END_HEADERS, 1, peer.headers_block()) + raw(DATA, 0, 1) * 1000,
    "windows": many(raw(WINDOW_UPDATE, 0, 0, pack(">L", 1)), 1000),
    "unknown frames": many(raw(0x42, 0, 0, b""), 1000),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_ends_the_connection(flood: str) -> None:
    """ENHANCE_YOUR_CALM, and every call is closed."""
    stage = Stage(limits=Limits(nuisances=200))
    stage.peer.send(FLOODS[flood](stage.peer))
    assert stage.broken_by == Code.ENHANCE_YOUR_CALM
    assert all(handler.over == ["broken"] for handler in stage.handlers)
    assert stage.peer.pipe.closing


def test_patience_comes_back() -> None:
    """By time, and by calls that are answered: what a proxy does in an hour is no flood."""
    stage = Stage(limits=Limits(nuisances=200, nuisances_per_s=100))
    peer = stage.peer
    for _ in range(5):
        peer.send(raw(PING, 0, 0, b"12345678") * 150)
        peer.step(1.5)
    for n in range(1, 2000, 2):
        peer.open(n)
        peer.send(raw(DATA, 0, n, message(b"")) + raw(RST_STREAM, 0, n, pack(">L", 8)))
    assert stage.broken_by is None
    assert len(stage.handlers) == 1000
    assert peer.connection.streams == {}


def test_streams_beyond_the_limit_are_refused() -> None:
    """REFUSED_STREAM says that nothing was done: the proxy may ask again."""
    stage = Stage(limits=Limits(streams=2))
    for stream in (1, 3, 5):
        stage.peer.open(stream)
    assert stage.peer.answers[5].reset == Code.REFUSED_STREAM
    stage.peer.send(raw(DATA, END_STREAM, 5, message(b"x")))  # was on its way
    stage.peer.send(raw(DATA, END_STREAM, 1, message(b"x")))
    stage.peer.open(7)
    assert len(stage.handlers) == 3
    assert stage.broken_by is None


def test_too_long_headers_end_the_connection() -> None:
    """Also if they are short as sent: a table of the peer's own makes them long."""
    stage = Stage()
    block = stage.peer.headers_block(("x", "y" * 3000))
    stage.peer.send(raw(HEADERS, END_HEADERS, 1, block))
    assert len(stage.handlers) == 1
    stage.peer.send(raw(HEADERS, END_HEADERS, 3, stage.peer.headers_block() + b"\xbe" * 1000))
    assert stage.broken_by == Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("begin", [b"", PREFACE[:10], PREFACE, PREFACE + raw(SETTINGS)[:5]])
def test_a_peer_that_never_greets_is_sent_away(begin: bytes) -> None:
    """10 s for preface and SETTINGS."""
    stage = Stage(greet=False)
    stage.peer.send(begin)
    stage.peer.step(9)
    assert not stage.peer.pipe.closing
    stage.peer.step(2)
    assert stage.broken_by == Code.SETTINGS_TIMEOUT
    assert stage.peer.pipe.closing


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"PRI * HTTP/1.1\r\n"])
def test_another_protocol_is_told_at_its_first_bytes(begin: bytes) -> None:
    stage = Stage(greet=False)
    stage.peer.send(begin)
    assert stage.broken_by == Code.PROTOCOL_ERROR


def test_a_header_block_that_never_ends_ends_the_connection() -> None:
    """Nothing else may come in between, so nothing else would end it."""
    stage = Stage()
    stage.peer.send(raw(HEADERS, 0, 1, stage.peer.headers_block()[:3]))
    stage.peer.step(11)
    assert stage.peer.pipe.closing


def test_a_silent_peer_is_asked_and_then_given_up() -> None:
    """A host that is gone closes nothing: its calls must leave the books."""
    stage = Stage()
    stage.peer.open(1)
    for _ in range(5):
        stage.peer.step(20)
        asked = stage.said(PING)
        if asked:
            break
    assert asked
    stage.peer.send(raw(PING, h2_peer.ACK, 0, asked[0].payload))
    for _ in range(3):
        stage.peer.step(10)
    assert not stage.peer.pipe.closing
    for _ in range(6):
        stage.peer.step(15)
    assert stage.peer.pipe.aborted
    assert stage.handlers[0].over == ["broken"]


def test_a_peer_that_reads_nothing_is_given_up() -> None:
    """And as long as it reads nothing, nothing is read of it."""
    stage = Stage()
    stage.peer.open(1)
    stage.peer.connection.pause_writing()
    assert stage.peer.pipe.paused
    stage.peer.step(20)
    assert not stage.peer.pipe.aborted
    stage.peer.step(20)
    assert stage.peer.pipe.aborted


def test_a_finished_answer_whose_window_stays_closed_is_reset() -> None:
    """Its call is closed long since; only bytes are left."""
    stage = Stage()
    stage.peer.resize(3)
    stage.peer.open(1)
    stage.peer.send(raw(DATA, END_STREAM, 1, message(b"hello")))
    for _ in range(4):
        stage.peer.step(10)
    assert stage.peer.answers[1].reset == Code.CANCEL
    assert stage.peer.connection.streams == {}
    assert not stage.peer.pipe.closing


def test_an_idle_connection_is_closed_in_order() -> None:
    """After an hour without a stream."""
    stage = Stage()
    for _ in range(200):
        stage.peer.step(19)
        stage.peer.send(raw(PING, 0, 0, b"12345678"))
    assert stage.broken_by == Code.NO_ERROR
    assert stage.peer.pipe.closing


def test_a_drain_takes_what_is_on_its_way_and_closes_after_the_last() -> None:
    """RFC 9113, 6.8: a GOAWAY that refuses nothing, a PING, and when it is answered, the last stream's number."""
    stage = Stage()
    peer = stage.peer
    peer.open(1)
    peer.connection.drain()
    peer.step()
    assert peer.goaway == (2**31 - 1, Code.NO_ERROR, b"")
    peer.open(3)
    peer.send(raw(PING, h2_peer.ACK, 0, stage.said(PING)[-1].payload))
    assert peer.goaway == (3, Code.NO_ERROR, b"")
    peer.open(5)
    assert peer.answers[5].reset == Code.REFUSED_STREAM
    for stream in (1, 3):
        assert not peer.pipe.closing
        peer.send(raw(DATA, END_STREAM, stream, message(b"x")))
        assert peer.answers[stream].status == "0"
    assert peer.pipe.closing
    assert len(stage.handlers) == 2


def test_a_drain_does_not_wait_for_a_peer_that_does_not_answer() -> None:
    """A second is enough for what is on its way."""
    stage = Stage()
    stage.peer.connection.drain()
    stage.peer.step(0.5)
    assert not stage.peer.pipe.closing
    stage.peer.step(1)
    assert stage.peer.goaway == (0, Code.NO_ERROR, b"")
    assert stage.peer.pipe.closing


def test_calls_that_are_cut_are_told() -> None:
    """UNAVAILABLE: a proxy may ask another picker."""
    stage = Stage()
    stage.peer.open(1)
    stage.peer.connection.cut()
    stage.peer.step()
    assert stage.peer.answers[1].status == "14"
    assert stage.handlers[0].over == ["broken"]
    assert stage.peer.pipe.closing


def test_a_peer_that_leaves_gets_its_answers_first() -> None:
    """Its GOAWAY means that it opens no more streams."""
    stage = Stage()
    peer = stage.peer
    peer.open(1)
    peer.send(raw(GOAWAY, 0, 0, bytes(8)))
    assert not peer.pipe.closing
    peer.send(raw(DATA, END_STREAM, 1, message(b"x")))
    assert peer.answers[1].status == "0"
    assert peer.pipe.closing


def test_the_first_block_says_that_we_keep_no_table() -> None:
    """A peer that allows none may insist on it (RFC 7541, 4.2)."""
    stage = Stage()
    stage.peer.send(raw(SETTINGS, 0, 0, setting(1, 0)))
    for stream in (1, 3):
        stage.peer.open(stream)
        stage.peer.send(raw(DATA, END_STREAM, stream, message(b"x")))
    blocks = [frame.payload for frame in stage.said(HEADERS)]
    assert [block[:1] == b"\x20" for block in blocks] == [True, False, False, False]


def test_connections_beyond_the_limit_are_closed() -> None:
    stage = Stage(limits=Limits(connections=1))
    more = Peer(stage.server, greet=False)
    assert more.pipe.closing
    assert not stage.peer.pipe.closing
