"""Whatever a client connection is told to send, in whatever order: what goes out is one answer for each request."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from hypothesis import given
from hypothesis import strategies as st

from ballast_gateway.clients import Clients
from ballast_gateway.errors import GATEWAY_LIMITS, internal_error
from ballast_gateway.http.requests import HttpRequest
from ballast_gateway.http.server import ClientConnection, WrongAnswer


class Wire:
    """In place of the transport."""

    def __init__(self) -> None:
        self.sent = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class SlowWire(Wire):
    """A large answer lies in it."""

    def __init__(self) -> None:
        super().__init__()
        self.untaken = 4_010_000
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def abort(self) -> None:
        self.aborted = True


class Face:
    """In place of the proxy face: leaves every request to the test."""

    max_header_bytes = max_body_bytes = max_text_body_bytes = 1 << 16
    request_timeout_s = body_timeout_s = keep_alive_timeout_s = client_stall_timeout_s = 60.0
    min_body_bytes_per_s = 1
    body_limit_names = GATEWAY_LIMITS
    closing = False
    cors = None

    def __init__(self) -> None:
        self.connections: set[ClientConnection] = set()
        self.clients = Clients(most_bytes=1 << 20, most_client_bytes=1 << 20, most_client_connections=100)
        self.requests = 0

    def handle(self, client: ClientConnection, request: HttpRequest) -> None:
        self.requests += 1

    def disconnected(self, client: ClientConnection) -> None: ...

    def refused(self, error: object) -> None: ...


class Reader:
    """The client, strict."""

    def __init__(self) -> None:
        self.heads = self.wholes = 0
        self.parser = httptools.HttpResponseParser(self)

    def on_headers_complete(self) -> None:
        self.heads += 1

    def on_message_complete(self) -> None:
        self.wholes += 1


REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\n\r\n{}"


@given(st.lists(st.sampled_from(["ask", "respond", "error", "begin", "write", "end", "abort"]), max_size=30))
def test_no_byte_goes_out_without_its_head(steps: list[str]) -> None:
    """In a wrong order nothing is written at all."""

    async def live() -> None:
        wire, face, reader = Wire(), Face(), Reader()
        client = ClientConnection(cast("Any", face), asyncio.get_running_loop())
        client.connection_made(cast("asyncio.BaseTransport", wire))
        does = {
            "ask": lambda: client.data_received(REQUEST),
            "respond": lambda: client.respond(200, [], b"{}"),
            "error": lambda: client.respond_error(internal_error()),
            "begin": lambda: client.start_stream(200, []),
            "write": lambda: client.write(b"data: x\n\n"),
            "end": client.end,
            "abort": client.abort,
        }
        for step in steps:
            was = wire.sent
            try:
                does[step]()
            except WrongAnswer:
                assert wire.sent == was
            await asyncio.sleep(0)
        reader.parser.feed_data(wire.sent)
        assert reader.wholes <= reader.heads <= min(face.requests, reader.wholes + 1)

    asyncio.run(live())


async def test_the_rest_of_a_last_answer_that_is_taken_slowly_has_time_of_its_own() -> None:
    """The time that the rest of the buffer has begins when it lies there, not when the connection began to close."""
    wire, face = SlowWire(), Face()
    face.client_stall_timeout_s = 0.2
    client = ClientConnection(cast("Any", face), asyncio.get_running_loop())
    client.connection_made(cast("asyncio.BaseTransport", wire))
    client.data_received(REQUEST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    client.pause_writing()
    client.respond(200, [], b"")
    assert wire.closed
    for _ in range(4):
        await asyncio.sleep(0.1)
        wire.untaken -= 1_000_000
        client.sweep(asyncio.get_running_loop().time())
    client.resume_writing()
    client.sweep(asyncio.get_running_loop().time())
    assert not wire.aborted
    await asyncio.sleep(0.3)
    client.sweep(asyncio.get_running_loop().time())
    assert wire.aborted


def test_the_last_part_of_a_stream_leaves_with_its_end() -> None:
    """One write to the socket for both, and none is lost where the stream breaks off in between."""

    async def live(end: str) -> tuple[bytes, list[int]]:
        wire, face = Wire(), Face()
        client = ClientConnection(cast("Any", face), asyncio.get_running_loop())
        client.connection_made(cast("asyncio.BaseTransport", wire))
        client.data_received(REQUEST)
        client.start_stream(200, [])
        sizes = []
        for does in (
            lambda: client.write(b"data: a\n\n"),
            lambda: client.write(b"data: [DONE]\n\n", last=True),
            getattr(client, end),
        ):
            was = len(wire.sent)
            does()
            sizes.append(len(wire.sent) - was)
        return wire.sent, sizes

    for end in ("end", "abort"):
        sent, sizes = asyncio.run(live(end))
        assert b"data: a\n\n" in sent
        assert b"data: [DONE]\n\n" in sent
        assert (sizes[1], sizes[2] > len(b"data: [DONE]\n\n")) == (0, True)
        assert sent.endswith(b"0\r\n\r\n") is (end == "end")
