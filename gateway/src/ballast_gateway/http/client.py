"""A lean HTTP/1.1 client for engines: keep-alive pools by address, one exchange at a time on a connection.

An exchange is started and calls back. `UpstreamPool.cancel` closes its connection at once, which is how vLLM learns
that it may stop: a disconnect ends the request within some 30 ms. `perform` is the same to await.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeAlias, cast

import httptools

from ballast_core.model import Fault
from ballast_gateway.http.responses import Headers, ResponseReader

POOL_IDLE_S = 4.0
"""Below the 5 s after which uvicorn, and so vLLM, closes an idle connection."""


KEEP_ALIVE: Final = MappingProxyType({"IDLE": 15, "INTVL": 5, "CNT": 3})
"""How the kernel finds a dead peer: seconds of silence, seconds between two probes, probes without an answer."""


class UpstreamError(Exception):
    """The exchange failed: no connection, a broken one, no HTTP, or silence for too long.

    `said`: what the engine sent instead, which may hold what the client sent, and is not part of the message.
    """

    fault = Fault.BROKE

    def __init__(self, *arguments: object, said: bytes = b"") -> None:
        super().__init__(*arguments)
        self.said = said


class NoConnection(UpstreamError):
    """The engine could not be reached: the request was not sent."""

    fault = Fault.UNREACHABLE


class Silence(UpstreamError):
    """Nothing came for too long."""

    fault = Fault.SILENT


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


Over: TypeAlias = Callable[[UpstreamError | None], None]
"""Called when an exchange has ended: with None if its answer is whole, else with what went wrong."""


@dataclass(slots=True, eq=False)
class _Turn:
    """One exchange on its way, over one connection or, if that turns out to be stale, over another one."""

    address: str
    payload: bytes
    exchange: Exchange
    over: Over
    may_be_stale: bool = False
    """The connection was used before and has brought no byte since: if it closes now, the request was not taken."""
    sent: bool = False
    """It was sent once, over a connection that then closed: if there is no new one, the engine has broken off."""
    connecting: asyncio.Task[None] | None = None


class UpstreamConnection(asyncio.Protocol):
    """One connection to one engine."""

    def __init__(self, pool: UpstreamPool, address: str) -> None:
        self._pool = pool
        self._reader = ResponseReader()
        self._turn: _Turn | None = None
        self._used = self._paused = False
        self.address = address
        self.idle_since_s = 0.0
        self.closed = False

    # --- exchanges --------------------------------------------------------------------------------------------------

    def begin(self, turn: _Turn) -> None:
        """Send a request and feed the answer to its exchange. Called by the pool, which is told the end."""
        self._turn = turn
        turn.may_be_stale, self._used = self._used, True
        turn.exchange.connection = self
        self._reader.begin()
        self._transport.write(turn.payload)

    def leave(self) -> None:
        """Hang up on an exchange, which is told nothing any more."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.exchange.connection = None
        self.hang_up()

    def fail(self, error: UpstreamError) -> None:
        """Hang up and end the exchange with an error."""
        self.hang_up()
        self._end_turn(error)

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
        if reader.whole and self._turn is turn:
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
        if self._paused:
            self.resume()
        if self._reader.reusable and not self.closed:
            self._pool.put(self)
        else:
            self.hang_up()
        self._end_turn()

    def _end_turn(self, error: UpstreamError | None = None) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.exchange.connection = None
            self._pool.ended(turn, error)


class UpstreamPool:
    """Connections to engines, by address `host:port`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, connect_timeout_s: float) -> None:
        self._loop = loop
        self.connect_timeout_s = connect_timeout_s
        """Of connections that begin from now on."""
        self._idle: dict[str, deque[UpstreamConnection]] = {}
        self._running: dict[Exchange, _Turn] = {}

    def start(self, address: str, payload: bytes, exchange: Exchange, over: Over) -> None:
        """Send a request to an engine and feed its answer to `exchange`; at the end, and never before this returns,
        `over` is called.

        A pooled connection that turns out to be closed is replaced by a new one.
        """
        turn = self._running[exchange] = _Turn(address, payload, exchange, over)
        self._send(turn)

    def cancel(self, exchange: Exchange) -> None:
        """Hang up on an exchange and forget it: its `over` is not called. One that has ended is left alone."""
        turn = self._running.pop(exchange, None)
        if turn is None:
            return
        if exchange.connection is not None:
            exchange.connection.leave()
        elif turn.connecting is not None:
            turn.connecting.cancel()

    async def perform(self, address: str, payload: bytes, exchange: Exchange) -> None:
        """`start`, and wait for the end. Raises `UpstreamError`; cancelling it cancels the exchange."""
        ended: asyncio.Future[None] = self._loop.create_future()

        def over(error: UpstreamError | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        self.start(address, payload, exchange, over)
        try:
            await ended
        except asyncio.CancelledError:
            self.cancel(exchange)
            raise

    async def get(self, address: str, path: str, *, timeout_s: float, limit_bytes: int) -> Collect:
        """Send a small GET, such as a scrape, whose answer may be so long. Raises `UpstreamError`."""
        exchange = Collect(self._loop.time() + timeout_s, limit_bytes)
        request = f"GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: */*\r\n\r\n"
        await self.perform(address, request.encode(), exchange)
        return exchange

    def put(self, connection: UpstreamConnection) -> None:
        """Take a connection back that is free again. Called by it."""
        connection.idle_since_s = self._loop.time()
        idle = self._idle.get(connection.address)
        if idle is None:
            idle = self._idle[connection.address] = deque()
        idle.append(connection)

    def ended(self, turn: _Turn, error: UpstreamError | None) -> None:
        """An exchange has ended, or its request was not taken and is sent anew. Called by its connection."""
        if isinstance(error, StaleConnection):
            self.drop(turn.address)  # the other pooled connections are as old
            turn.sent = True
            self._send(turn)
        else:
            del self._running[turn.exchange]
            turn.over(error)

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
                exchange.connection.fail(Silence(f"{exchange.connection.address} was silent for too long"))
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

    def _send(self, turn: _Turn) -> None:
        connection = self._take(turn.address)
        if connection is not None:
            connection.begin(turn)
        else:
            turn.connecting = self._loop.create_task(self._connect(turn))

    async def _connect(self, turn: _Turn) -> None:
        address = turn.address
        try:
            host, port = split_address(address)
            async with asyncio.timeout(self.connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(self, address), host, port
                )
        except TimeoutError:
            self._unconnected(turn, f"no connection within {self.connect_timeout_s:g} s")
        except (OSError, ValueError) as error:  # ValueError: an address that is none
            self._unconnected(turn, str(getattr(error, "strerror", None) or error))
        else:
            connection.begin(turn)
        finally:
            turn.connecting = None

    def _unconnected(self, turn: _Turn, problem: str) -> None:
        kind = UpstreamError if turn.sent else NoConnection
        self.ended(turn, kind(f"{turn.address}: {problem}"))


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the kernel detect a dead peer within half a minute: silence alone may be a long generation."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        option = getattr(socket, f"TCP_KEEP{name}", None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


@lru_cache(maxsize=4096)
def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as the two parts of it."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
