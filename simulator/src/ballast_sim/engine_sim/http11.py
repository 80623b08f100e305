"""A lean HTTP/1.1 server protocol: httptools parses, one `Exchange` at a time answers.

FastAPI and uvicorn serve admin traffic elsewhere; this is a byte path, where a streamed token must cost microseconds.
Pipelined requests wait their turn; the exchange of a client that disconnects is notified.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

import httptools

MAX_BODY_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 64 * 2**10
MAX_PIPELINED = 32

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
EVENT_STREAM = b"text/event-stream; charset=utf-8\r\ncache-control: no-cache"
CHUNKED = b"transfer-encoding: chunked\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def message_head(status: int, content_type: bytes, framing: bytes, keep_alive: bool) -> bytes:
    """An answer's head; `framing` is the header line that says where the body ends."""
    close = b"" if keep_alive else b"connection: close\r\n"
    return b"%bcontent-type: %b\r\n%b%b\r\n" % (_STATUS_LINES[status], content_type, framing, close)


def chunk(data: bytes) -> bytes:
    """Bytes with chunked framing around them."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(slots=True)
class Request:
    """One parsed request; header names are lower case."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes


class Exchange:
    """The answer to one request. Writes after the client has gone are dropped."""

    __slots__ = ("head_only", "keep_alive", "on_disconnect", "open", "protocol", "started")

    def __init__(self, protocol: "HttpProtocol", keep_alive: bool, head_only: bool = False) -> None:
        """The handler may set `on_disconnect`; `head_only` leaves out the body, as HEAD wants it."""
        self.protocol = protocol
        self.head_only = head_only
        self.keep_alive = keep_alive
        self.started = False
        self.open = True
        self.on_disconnect: Callable[[], None] | None = None

    def respond(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        """The whole answer at once."""
        if not self.open:
            return
        head = message_head(status, content_type, b"content-length: %d\r\n" % len(body), self.keep_alive)
        self._write(head if self.head_only else head + body)
        self.started = True
        self._done()

    def start_stream(self) -> None:
        """The head of a server-sent event stream; `write_framed` follows."""
        self.started = True
        self._write(message_head(200, EVENT_STREAM, CHUNKED, self.keep_alive))

    def write_framed(self, data: bytes) -> None:
        """Bytes that carry their chunk framing already: the hot path."""
        if self.open:
            self.protocol.transport.write(data)

    def finish(self, data: bytes = b"") -> None:
        """The last bytes of a stream."""
        self._write(chunk(data) + LAST_CHUNK if data else LAST_CHUNK)
        self._done()

    def _write(self, data: bytes) -> None:
        if self.open:
            self.protocol.transport.write(data)

    def _done(self) -> None:
        if self.open:
            self.open = False
            self.on_disconnect = None
            self.protocol.exchange_done(self)

    def break_off(self) -> None:
        """Break an answer off in its middle, so that the client notices."""
        self.open = False
        self.protocol.transport.abort()

    def disconnected(self) -> None:
        """The client has gone."""
        if not self.open:
            return
        self.open = False
        callback, self.on_disconnect = self.on_disconnect, None
        if callback is not None:
            callback()


Handler = Callable[[Request, Exchange], None]


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, handler: Handler, connections: "set[HttpProtocol]") -> None:
        """`connections` holds every open connection, for shutting down."""
        self._handler = handler
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._current: Exchange | None = None
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0

    # -- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports derive from nothing
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._connections.discard(self)
        self._waiting.clear()
        if self._current is not None:
            self._current.disconnected()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        try:
            rest = memoryview(data)
            while rest:
                try:
                    self._parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    # The request was answered as plain HTTP/1.1 (RFC 9110 section 7.8 allows that); on to the next one.
                    self._parser = httptools.HttpRequestParser(self)
                    rest = rest[upgrade.args[0] :]
        except _RefusedError as refused:
            self._refuse(refused.status, str(refused))
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _RefusedError):
                self._refuse(cause.status, str(cause))
            else:
                self._refuse(400, "The request is not valid HTTP/1.1.")

    def _refuse(self, status: int, message: str) -> None:
        if self._current is None and not self.transport.is_closing():
            exchange = Exchange(self, keep_alive=False)
            exchange.respond(
                status,
                b'{"error":{"message":"%b","type":"%b","param":null,"code":%d}}'
                % (message.encode(), HTTPStatus(status).phrase.replace(" ", "").encode() + b"Error", status),
            )
        self.transport.close()

    # -- httptools ---------------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers[name.lower()] = value
        self._count_header(len(name) + len(value))

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise _RefusedError(431, f"The request's head is larger than {MAX_HEADER_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._current is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._body.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > MAX_BODY_BYTES:
            raise _RefusedError(413, f"The request's body is larger than {MAX_BODY_BYTES} bytes.")

    def on_message_complete(self) -> None:
        """A whole request."""
        path = self._url.split(b"?", 1)[0].decode("ascii", "replace")
        method = self._parser.get_method().decode("ascii", "replace")
        request = Request(method, path, self._headers, b"".join(self._body))
        keep_alive = self._parser.should_keep_alive()
        self._reset()
        self._waiting.append((request, keep_alive))
        if len(self._waiting) >= MAX_PIPELINED:
            self.transport.pause_reading()
        self._next()

    def _next(self) -> None:
        while self._current is None and self._waiting:
            request, keep_alive = self._waiting.popleft()
            exchange = self._current = Exchange(self, keep_alive, head_only=request.method == "HEAD")
            self._handler(request, exchange)

    def replace_exchange(self, exchange: Exchange) -> None:
        """Answer the present request with this exchange instead."""
        self._current = exchange

    def exchange_done(self, exchange: Exchange) -> None:
        """The answer has been written."""
        self._current = None
        if not exchange.keep_alive:
            self.transport.close()
        elif self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def close_when_idle(self) -> None:
        """Shut down: now if nothing is being answered, else after the answer."""
        if self._current is None:
            self.transport.close()
        else:
            self._current.keep_alive = False

    def abort(self) -> None:
        """Shut down at once."""
        self.transport.abort()

    def reset(self) -> None:
        """Shut down at once, and with RST rather than FIN."""
        linger = struct.pack("ii", 1, 0)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()


class _RefusedError(Exception):
    """A request that is refused while it is being read."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
