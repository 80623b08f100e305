"""gRPC calls over the picker's HTTP/2, and header blocks: what is read, and what is said where nothing is served."""

from __future__ import annotations

import random
from collections.abc import Callable

import hpack
import pytest

from ballast_gateway.h2 import blocks, calls
from ballast_gateway.h2.blocks import BlockReader
from ballast_gateway.h2.calls import Call, Handler
from ballast_gateway.h2.requests import read_request
from ballast_gateway.h2.server import Server
from tests.support.h2_peer import DATA, END_HEADERS, END_STREAM, HEADERS, PATH, RST_STREAM, Answer, Peer, message, raw

USUAL = [(":method", "POST"), (":scheme", "http"), (":path", PATH), (":authority", "x"), ("te", "trailers")]


class Echo:
    def __init__(self, call: Call) -> None:
        self._call = call

    def message(self, raw: bytes) -> None:
        if raw == b"fail":
            raise LookupError("as asked")
        self._call.write([raw])

    def ended(self) -> None:
        self._call.finish()

    def closed(self, *, broken: bool) -> None:
        pass


def peer(method: Callable[[Call], Handler] = Echo) -> Peer:
    return Peer(Server({PATH: method}, max_message_bytes=1000))


def answer(to: Peer, data: bytes, *more: tuple[str, str], path: str = PATH, flags: int = END_STREAM) -> Answer:
    to.open(1, *more, path=path)
    to.send(raw(DATA, flags, 1, data))
    return to.answers[1]


def test_messages_come_in_any_pieces() -> None:
    """By single bytes, and many in one."""
    contents = [b"", b"a", b"x" * 1000, b"", b"end"]
    data = b"".join(message(content) for content in contents)
    assert answer(peer(), data).messages == contents
    slow = peer()
    slow.open(1)
    for byte in data:
        slow.send(raw(DATA, 0, 1, bytes((byte,))))
    assert slow.answers[1].messages == contents


def test_a_message_beyond_the_limit_is_refused_by_its_head() -> None:
    """Before any of it has been kept."""
    to = peer()
    found = answer(to, message(b"x" * 1001)[:5], flags=0)
    assert (found.status, found.messages, found.ended) == ("8", [], True)
    assert found.reset == 0  # the rest is not wanted


@pytest.mark.parametrize(
    ("data", "more", "status"),
    [
        (message(b"x", compressed=True), (), "12"),
        (message(b"x"), (("grpc-encoding", "gzip"),), "12"),
        (message(b"whole") + message(b"half")[:7], (), "13"),
        (message(b"x") + message(b"fail"), (), "13"),
    ],
    ids=["compressed", "may be compressed", "half a message", "the handler fails"],
)
def test_what_cannot_be_served_has_a_status(data: bytes, more: tuple[tuple[str, str], ...], status: str) -> None:
    assert answer(peer(), data, *more).status == status


def test_a_handler_that_fails_at_its_begin_or_end_harms_no_other_call() -> None:
    """Its call ends with INTERNAL, or as it would have; the connection and its other calls go on."""
    made: list[Echo] = []
    ends: list[Echo] = []

    class Fragile(Echo):
        def __init__(self, call: Call) -> None:
            if len(made) == 1:
                made.append(self)
                raise LookupError("as asked")
            super().__init__(call)
            made.append(self)

        def closed(self, *, broken: bool) -> None:
            ends.append(self)
            if self is made[0]:
                raise LookupError("as asked")

    to = peer(Fragile)
    for stream in (1, 3, 5):
        to.open(stream)
    assert to.answers[3].status == "13"
    to.connection.connection_lost(None)
    assert ends == [made[0], made[2]]


def test_an_unknown_method_is_unimplemented() -> None:
    """Head and trailers in one, as clients expect of an error without an answer."""
    found = answer(peer(), message(b"x"), path="/other.Service/\u00e9%")
    assert found.status == "12"
    assert dict(found.headers)["grpc-message"].startswith("no method /other.Service/")
    assert dict(found.headers)["grpc-message"].endswith("%25")


def test_what_is_no_grpc_is_told_so() -> None:
    """415 at its end, whatever it is."""
    to = peer()
    block = hpack.Encoder().encode([(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x")])
    to.send(raw(HEADERS, END_HEADERS | END_STREAM, 1, block))
    assert dict(to.answers[1].headers)[":status"] == "415"
    assert to.answers[1].data == b"this port speaks gRPC only\n"
    assert to.answers[1].ended


def test_a_deadline_ends_the_call() -> None:
    """DEADLINE_EXCEEDED, at the client's own time."""
    to = peer()
    to.open(1, ("grpc-timeout", "1500m"))
    to.send(raw(DATA, 0, 1, message(b"x")))
    to.step(1)
    assert not to.answers[1].ended
    to.step(0.6)
    assert to.answers[1].status == "4"
    assert to.loop.timers == 0


def test_a_call_that_ends_in_time_leaves_no_timer() -> None:
    to = peer()
    assert answer(to, message(b"x"), ("grpc-timeout", "1H")).status == "0"
    to.open(3, ("grpc-timeout", "1H"))
    to.send(raw(RST_STREAM, 0, 3, bytes(4)))
    assert to.loop.timers == 0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1H", 3600),
        ("2M", 120),
        ("3S", 3),
        ("5m", 0.005),
        ("6u", 6e-6),
        ("7n", 7e-9),
        ("100000000S", None),
        ("S", None),
    ],
)
def test_timeouts_are_read(value: str, seconds: float | None) -> None:
    fields = [(name.encode(), text.encode()) for name, text in [*USUAL, ("grpc-timeout", value)]]
    assert read_request(fields).timeout_s == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("content_type", "is_grpc"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("application/grpc;x=y", True),
        ("application/grpc-web", False),
        ("application/json", False),
    ],
)
def test_content_types_are_grpcs_with_a_suffix(content_type: str, is_grpc: bool) -> None:
    fields = [(name.encode(), text.encode()) for name, text in [*USUAL, ("content-type", content_type)]]
    assert read_request(fields).is_grpc is is_grpc


def test_blocks_mean_what_they_mean_whatever_was_remembered() -> None:
    """The same bytes mean something else once the peer's table has changed; a reader that forgets nothing judges."""
    rng = random.Random(1)
    encoder, reader, judge = hpack.Encoder(), BlockReader(1 << 14), hpack.Decoder()
    values = [str(n) * 40 for n in range(40)]
    for _ in range(2000):
        number = rng.choice((0, 0, 0, 0, 0, 0, 0, rng.randrange(40)))
        if rng.random() < 0.02:
            encoder.header_table_size = rng.choice((0, 100, 4096))
        block = encoder.encode([*USUAL, ("content-type", "application/grpc"), ("x", values[number])])
        fields = [(bytes(name), bytes(value)) for name, value in judge.decode(block, raw=True)]
        assert reader.request(block) == read_request(fields)


def test_equal_blocks_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's reader would be most of a call's cost."""
    reader, encoder = BlockReader(1 << 14), hpack.Encoder()
    sent = [encoder.encode([*USUAL, ("content-type", "application/grpc")]) for _ in range(10)]
    for block in sent[:2]:
        reader.request(block)
    monkeypatch.setattr(reader._decoder, "decode", None)
    assert {reader.request(block).path for block in sent[2:]} == {PATH}


def test_written_blocks_can_be_read() -> None:
    """Of any length."""
    fields = ((b"a", b""), (b"grpc-message", b"x" * 126), (b"b", b"y" * 127), (b"c", b"z" * 5000))
    read = hpack.Decoder(1 << 16).decode(blocks.NO_TABLE + blocks.write(fields), raw=True)
    assert tuple((bytes(name), bytes(value)) for name, value in read) == fields


def test_status_messages_are_percent_encoded() -> None:
    """Line breaks would be no header."""
    assert b"caf%C3%A9%0A100%25" in calls._end_block(calls.Status.INTERNAL, "caf\u00e9\n100%")
