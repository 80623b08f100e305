"""A lean HTTP/1.1 client for engines: keep-alive pools by address, one exchange at a time on a connection.

Cancelling `UpstreamPool.perform` closes the connection at once, which is how vLLM learns that it may stop: a disconnect
ends the request within some 30 ms.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import httptools

from ballast_gateway.http.responses import Headers, ResponseReader

POOL_IDLE_S = 4.0
"""Below the 5 s after which uvicorn, and so vLLM, closes an idle connection."""


class UpstreamError(Exception):
    """The exchange failed: no connection, a broken one, no HTTP, or silence for too long."""


class StaleConnection(UpstreamError):
    """A pooled connection was closed by the engine before it answered anything: the request was not taken."""


class StoppedReading(UpstreamError):
    """An exchange needs no more of its answer. Raise it from `on_data` to hang up."""


class Exchange:
    """One request and the handling of its answer. This class ignores the body; subclasses use it."""

    __slots__ = ("connection", "deadline_s", "status")

    def __init__(self, deadline_s: float = float("inf")) -> None:
        self.status = 0
        self.deadline_s = deadline_s
        """On the loop's clock; `UpstreamPool.sweep` fails the exchange when it has passed."""
        self.connection: UpstreamConnection | None = None

    def on_head(self, status: int, headers: Headers) -> None:
        """The head of the answer has come."""
        self.status = status

    def on_data(self, data: bytes) -> None:
        """A part of the body has come: everything that one read returned."""

    def on_end(self) -> None:
        """The answer is whole."""


class TooLarge(UpstreamError):
    """The answer is larger than the limit for whole answers."""


class Collect(Exchange):
    """Keeps the whole answer."""

    __slots__ = ("_limit_bytes", "_parts", "headers", "size_bytes")

    def __init__(self, deadline_s: float = float("inf"), limit_bytes: int = 64 * 1024 * 1024) -> None:
        super().__init__(deadline_s)
        self.headers: Headers = []
        self.size_bytes = 0
        self._parts: list[bytes] = []
        self._limit_bytes = limit_bytes

    @property
    def body(self) -> bytes:
        """The body so far."""
        return b"".join(self._parts)

    def on_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers

    def on_data(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self.size_bytes > self._limit_bytes:
            raise TooLarge(f"the answer is larger than {self._limit_bytes} bytes")
        self._parts.append(data)


@dataclass(slots=True, eq=False)
class _Turn:
    """One exchange on a connection, until it is over."""

    exchange: Exchange
    done: asyncio.Future[None]
    may_be_stale: bool
    """The connection was used before and has brought no byte since: if it closes now, the request was not taken."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to one engine."""

    def __init__(self, pool: UpstreamPool, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._reader = ResponseReader()
        self._turn: _Turn | None = None
        self._used = self._paused = False
        self.address = address
        self.idle_since_s = 0.0
        self.closed = False

    # --- exchanges --------------------------------------------------------------------------------------------------

    async def run(self, payload: bytes, exchange: Exchange) -> None:
        """Send a request and feed the answer to `exchange`. Raises `UpstreamError`; on cancellation hangs up."""
        self._turn = turn = _Turn(exchange, self._loop.create_future(), self._used)
        exchange.connection = self
        self._reader.begin()
        self._transport.write(payload)
        try:
            await turn.done
        except BaseException:
            if self._turn is turn:  # else it is over, and the connection may serve another one
                self._turn = None
                self.hang_up()
            raise
        finally:
            exchange.connection = None
            self._used = True

    def fail(self, error: Exception) -> None:
        """End the exchange with an error and hang up."""
        self._end_turn(error)
        self.hang_up()

    def hang_up(self) -> None:
        """Close at once; what is unsent stays unsent."""
        self.closed = True
        self._transport.abort()

    def pause(self) -> None:
        """Read no more for now: the client is slow."""
        if not self.closed and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again: the client has caught up."""
        if not self.closed and self._paused:
            self._paused = False
            self._transport.resume_reading()

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        turn, reader = self._turn, self._reader
        if turn is None:
            self.hang_up()  # no request is out
            return
        turn.may_be_stale = False
        exchange, headless = turn.exchange, reader.head is None
        try:
            body = reader.feed(data)
            if headless and reader.head is not None:
                exchange.on_head(reader.head.status, reader.head.headers)
            if body:
                exchange.on_data(body)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(UpstreamError(f"{self.address} answered what is not HTTP/1.1: {error}"))
            return
        except UpstreamError as error:
            self.fail(error)
            return
        if reader.whole:
            exchange.on_end()
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._pool.forget(self)
        turn, head = self._turn, self._reader.head
        if turn is None:
            return
        if head is not None and not head.framed and exc is None:
            turn.exchange.on_end()  # a body that ends with its connection (RFC 9112 section 6.3)
            self._end_turn()
        elif turn.may_be_stale:
            self._end_turn(StaleConnection(f"{self.address} closed a pooled connection"))
        else:
            self._end_turn(UpstreamError(f"{self.address} broke the connection: {exc or 'closed'}"))

    def _finish(self) -> None:
        self.resume()
        self._end_turn()
        if self._reader.reusable and not self.closed:
            self._pool.put(self)
        else:
            self.hang_up()

    def _end_turn(self, error: Exception | None = None) -> None:
        turn, self._turn = self._turn, None
        if turn is None or turn.done.done():
            return
        if error is None:
            turn.done.set_result(None)
        else:
            turn.done.set_exception(error)


class UpstreamPool:
    """Connections to engines, by address `host:port`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, connect_timeout_s: float) -> None:
        self._loop = loop
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[str, deque[UpstreamConnection]] = {}
        self._running: set[Exchange] = set()

    async def perform(self, address: str, payload: bytes, exchange: Exchange) -> None:
        """Send a request to an engine and feed its answer to `exchange`.

        Raises `UpstreamError`. A pooled connection that turns out to be closed is replaced by a new one.
        """
        self._running.add(exchange)
        try:
            while True:
                connection = self._take(address) or await self._connect(address)
                try:
                    await connection.run(payload, exchange)
                except StaleConnection:
                    self.drop(address)  # the other pooled connections are as old
                else:
                    return
        finally:
            self._running.discard(exchange)

    async def get(self, address: str, path: str, *, timeout_s: float) -> Collect:
        """Send a small GET, such as a scrape. Raises `UpstreamError`."""
        exchange = Collect(self._loop.time() + timeout_s)
        request = f"GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: */*\r\n\r\n"
        await self.perform(address, request.encode(), exchange)
        return exchange

    def put(self, connection: UpstreamConnection) -> None:
        """Take a connection back that is free again. Called by it."""
        connection.idle_since_s = self._loop.time()
        self._idle.setdefault(connection.address, deque()).append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """Drop a connection that is lost. Called by it."""
        idle = self._idle.get(connection.address)
        if idle is not None:
            try:
                idle.remove(connection)
            except ValueError:
                return
            if not idle:
                del self._idle[connection.address]

    def drop(self, address: str) -> None:
        """Close the idle connections to an address."""
        for connection in self._idle.pop(address, ()):
            connection.hang_up()

    def sweep(self, now_s: float) -> None:
        """Called periodically: fail exchanges past their deadline, close connections that are idle for too long."""
        for exchange in [exchange for exchange in self._running if exchange.deadline_s < now_s]:
            if exchange.connection is not None:
                exchange.connection.fail(UpstreamError(f"{exchange.connection.address} was silent for too long"))
        for address, idle in list(self._idle.items()):
            while idle and now_s - idle[0].idle_since_s > POOL_IDLE_S:
                idle.popleft().hang_up()
            if not idle:
                self._idle.pop(address, None)

    def close(self) -> None:
        """Close all idle connections."""
        for address in list(self._idle):
            self.drop(address)

    def _take(self, address: str) -> UpstreamConnection | None:
        idle = self._idle.get(address)
        oldest_s = self._loop.time() - POOL_IDLE_S
        while idle:
            connection = idle.pop()  # the one used last, so that the others can grow old and be closed
            if not connection.closed and connection.idle_since_s >= oldest_s:
                return connection
            connection.hang_up()
        return None

    async def _connect(self, address: str) -> UpstreamConnection:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(self, address, self._loop), host, port
                )
        except TimeoutError:
            raise UpstreamError(f"{address}: no connection within {self._connect_timeout_s:g} s") from None
        except OSError as error:
            raise UpstreamError(f"{address}: {error.strerror or error}") from error
        return connection


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the kernel detect a dead peer within half a minute: silence alone may be a long generation."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


@lru_cache(maxsize=4096)
def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as the two parts of it."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
