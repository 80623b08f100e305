"""The relay copies bytes both ways, passes half-closes on, and outlives broken ends."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from testbed.relay import Relay


async def _echo_after_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers once the client has closed its sending side, as TLS and HTTP clients may."""
    writer.write((await reader.read()).upper())
    writer.close()


def _listener() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Port of a relay in front of the echo server."""
    server = await asyncio.start_server(_echo_after_end, "127.0.0.1", 0)
    listener = _listener()
    relay = Relay(listener, server.sockets[0].getsockname())
    await relay.start()
    yield listener.getsockname()[1]
    await relay.stop()
    server.close()
    await server.wait_closed()


async def _exchange(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_bytes_and_half_closes_pass_both_ways(port: int) -> None:
    """More than one buffer's worth, and several connections at once."""
    data = b"a" * 300_000
    assert await asyncio.gather(*(_exchange(port, data) for _ in range(4))) == [data.upper()] * 4


async def test_a_client_that_vanishes_leaves_the_relay_working(port: int) -> None:
    """A reset connection is nobody else's trouble."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x")
    writer.transport.abort()
    assert await _exchange(port, b"hello") == b"HELLO"


async def test_no_server_behind_means_a_closed_connection() -> None:
    """While the API server starts, clients see a closed connection and try again."""
    unused = _listener()
    address = unused.getsockname()
    unused.close()
    listener = _listener()
    relay = Relay(listener, address)
    await relay.start()
    try:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    finally:
        await relay.stop()
