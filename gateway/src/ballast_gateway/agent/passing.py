"""Requests that are not held: the bytes go to the local engine and its bytes come back, as they are.

What is read is only where a request and an answer end (llhttp, strict), so that connections serve again, and the names
of headers: those of control are taken out. Each side is read as fast as the other takes it.

WebSockets pass (vLLM has routes of that kind). Every other offer of an upgrade is taken out: nothing here needs one,
and a server may ignore it. What a client sends behind its offer may be the other protocol or one more request, and only
the engine's 101 tells which, so it waits for that. Connections on which an offer was made serve no other request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol, cast

import httptools

from ballast_api import wire_names
from ballast_gateway.errors import ApiError, invalid_request, unsupported
from ballast_gateway.http.client import POOL_IDLE_S, keep_alive, split_address
from ballast_gateway.http.requests import UPGRADES, Headers, without_offer

_MOST_KEPT_BYTES: Final = 64 * 1024
"""Of a request, to send it once more where the engine has closed an idle connection just then."""
_MOST_WAITING_BYTES: Final = 256 * 1024
"""That a client may send before its turn: while the engine is connected to, or before the last answer has ended."""


def engine_unreachable(problem: str) -> ApiError:
    """The engine beside the agent takes no connection: 503, and another endpoint may be tried."""
    message = f"the engine of this pod cannot be reached: {problem}"
    return ApiError(status=503, type="service_unavailable_error", code="engine-unreachable", message=message)


class BadRequest(Exception):
    """No request that can be passed on; `error` is the answer."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class Framing:
    """Where a request ends. Raises `BadRequest`."""

    def __init__(self, head: bytes) -> None:
        """`head`: with the empty line at its end."""
        self._read(head)
        self._rewritten = not self.offers and any(name in UPGRADES for name, _ in self._names)
        if self._rewritten:  # llhttp reads no body behind an offer
            offered = [(name, without_offer(name, value)) for name, value in self._names]
            self._read(self._head_of([(name, value) for name, value in offered if value is not None]))
        self._left: int | None = None
        """Bytes of the body that are still to come, where its head says how many it has."""
        lengths = [value for name, value in self._names if name == b"content-length"]
        if lengths and not self.complete:
            self._left = int(lengths[0])

    def _read(self, head: bytes) -> None:
        self.complete = False
        self.offers = False
        """Whether the client offers to go on as a WebSocket."""
        self.keep_alive = False
        self.method = b""
        self._names: Headers = []
        self._target = b""
        self._begun = 0
        self._parser = httptools.HttpRequestParser(self)
        self._feed(head)
        if self._begun != 1:
            raise BadRequest(invalid_request("this is not one request's head", code="bad-http"))
        if self.method == b"CONNECT":
            raise BadRequest(unsupported(405, "CONNECT is not supported"))

    def head(self, head: bytes, without: Iterable[bytes]) -> bytes:
        """The head to send: as it came, unless it has headers that are not passed on."""
        named = {name for name, _ in self._names}
        dropped = named.intersection(without) | {name for name in named if name.startswith(_CONTROL_PREFIX)}
        if not dropped and not self._rewritten:
            return head
        return self._head_of([header for header in self._names if header[0] not in dropped])

    def _head_of(self, headers: Headers) -> bytes:
        version = self._parser.get_http_version().encode()
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return b"%b %b HTTP/%b\r\n%b\r\n" % (self.method, self._target, version, lines)

    def body(self, data: bytes) -> tuple[bytes, bytes]:
        """What of these bytes belongs to the body, and what comes after it."""
        if self.complete:
            return b"", data
        if self._left is None:
            self._feed(data)
            if self._begun > 1:
                raise BadRequest(invalid_request("send the next request after this one's answer", code="bad-http"))
            return data, b""
        part, rest = data[: self._left], data[self._left :]
        self._left -= len(part)
        self.complete = not self._left
        return part, rest

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.complete = True
        except httptools.HttpParserError as error:
            raise BadRequest(invalid_request(f"this is not HTTP/1.1: {error}", code="bad-http")) from error

    def on_message_begin(self) -> None:
        self._begun += 1

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._names.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._begun == 1:
            self.method = self._parser.get_method()
            self.keep_alive = self._parser.should_keep_alive()
            self.offers = self._parser.should_upgrade() and self.method == b"GET" and self._is_web_socket()

    def on_message_complete(self) -> None:
        self.complete = True

    def _is_web_socket(self) -> bool:
        """Whether the upgrade is to that alone, and the request has no body: servers differ in where one would end."""
        found = [(name, value.strip().lower()) for name, value in self._names if name in _OF_WEB_SOCKETS]
        return [header for header in found if header != (b"content-length", b"0")] == [(b"upgrade", b"websocket")]


_OF_WEB_SOCKETS: Final = frozenset({b"upgrade", b"content-length", b"transfer-encoding"})
CONTROL: Final = frozenset(name.encode() for name in wire_names.CONTROL_HEADERS)
"""What no engine gets from outside, unless the agent trusts it."""
_CONTROL_PREFIX: Final = wire_names.DESTINATION.encode()


class Caller(Protocol):
    """The client's end of a passage."""

    def pass_back(self, data: bytes) -> None:
        """Bytes of the answer."""
        ...

    def pause_sending(self) -> None:
        """The engine is slow: read no more of the client for now."""
        ...

    def resume_sending(self) -> None:
        """Read on."""
        ...

    def passed(self, *, keep_alive: bool, rest: bytes) -> None:
        """The answer is whole. `rest`: what the client has sent after its request."""
        ...

    def not_passed(self, error: ApiError | None) -> None:
        """The engine gave no answer (`error` says why), or broke off in it (None)."""
        ...


class Link(asyncio.Protocol):
    """One connection to the engine."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._parser = httptools.HttpResponseParser(self)
        self._passage: Passage | None = None
        self._whole = self._framed = self._keeps = False
        self.status = 0
        """Of the answer, once its head has come."""
        self.used = False
        self.closed = False
        self.idle_since_s = 0.0

    def begin(self, passage: Passage) -> None:
        """Answers are this passage's now."""
        self._passage = passage
        self._whole = self._framed = False
        self.status = 0

    def write(self, data: bytes) -> None:
        """To the engine."""
        if not self.closed:
            self._transport.write(data)

    def pause(self) -> None:
        """The client is slow."""
        if not self.closed:
            self._transport.pause_reading()

    def resume(self) -> None:
        """It has caught up."""
        if not self.closed:
            self._transport.resume_reading()

    def hang_up(self) -> None:
        """Close at once: the engine stops."""
        self._passage = None
        self.closed = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        passage = self._passage
        if passage is None:
            self.hang_up()  # no request is out
            return
        passage.answering(data)
        if passage.tunnels:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if passage.offers:
                passage.switch()
                return
            self.hang_up()  # nobody has offered to
            passage.broke()
            return
        except httptools.HttpParserError:
            self.hang_up()
            passage.broke()
            return
        if self._whole or (passage.headless and self.status >= 200):
            self._finish(passage)

    def _finish(self, passage: Passage) -> None:
        reusable = self._whole and self._keeps and passage.sent and not passage.offers and not self.closed
        self._passage, self.used = None, True
        if reusable:
            self._links.put(self)
        else:
            self.hang_up()
        passage.whole(keep_alive=reusable)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._links.forget(self)
        passage, self._passage = self._passage, None
        if passage is None:
            return
        if passage.tunnels or (self.status and not self._framed and exc is None):
            passage.whole(keep_alive=False)  # a body that ends with its connection (RFC 9112 section 6.3)
        else:
            passage.broke(stale=self.used)

    def pause_writing(self) -> None:
        if self._passage is not None:
            self._passage.engine_slow()

    def resume_writing(self) -> None:
        if self._passage is not None:
            self._passage.engine_ready()

    # --- called by the parser ---------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self._framed = False  # of an interim answer, which has no body

    def on_message_complete(self) -> None:
        self._whole = self.status >= 200
        self._keeps = self._parser.should_keep_alive()


class Links:
    """Connections to the engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str, *, connect_timeout_s: float) -> None:
        self.loop = loop
        self._address = address
        self._host, self._port = split_address(address)
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[Link] = deque()

    def take(self) -> Link | None:
        """An idle one."""
        while self._idle:
            link = self._idle.pop()
            if not link.closed and self.loop.time() - link.idle_since_s <= POOL_IDLE_S:
                return link
            link.hang_up()
        return None

    def put(self, link: Link) -> None:
        """It serves again."""
        link.idle_since_s = self.loop.time()
        self._idle.append(link)

    def forget(self, link: Link) -> None:
        """It is closed."""
        if link in self._idle:
            self._idle.remove(link)

    def drop(self) -> None:
        """Close all that are idle."""
        while self._idle:
            self._idle.pop().hang_up()

    def sweep(self) -> None:
        """Called periodically: close what has been idle for too long."""
        oldest_s = self.loop.time() - POOL_IDLE_S
        while self._idle and self._idle[0].idle_since_s < oldest_s:
            self._idle.popleft().hang_up()

    async def connect(self) -> Link:
        """A new one. Raises `OSError`; `TimeoutError` is one."""
        async with asyncio.timeout(self._connect_timeout_s):
            _, link = await self.loop.create_connection(lambda: Link(self), self._host, self._port)
        return link


class Passage:
    """One request on its way through."""

    def __init__(self, links: Links, caller: Caller, head: bytes, *, without: Iterable[bytes]) -> None:
        """`head`: of the request, with its empty line. Raises `BadRequest`."""
        self._links = links
        self._caller = caller
        self._framing = Framing(head)
        self.headless = self._framing.method == b"HEAD"
        """Its answer has no body, whatever its length says."""
        self.tunnels = False
        """Another protocol is spoken by now: bytes go both ways until one side closes."""
        self._link: Link | None = None
        self._kept: list[bytes] | None = [self._framing.head(head, without)]
        """What was sent, as long as it could be sent again."""
        self._kept_bytes = len(head)
        self._rest = b""
        self._answers = False
        self._paused = self._slow = False
        self._connecting: asyncio.Task[None] | None = None
        self._over = False

    @property
    def sent(self) -> bool:
        """Whether the client has sent all of its request."""
        return self._framing.complete

    @property
    def offers(self) -> bool:
        """Whether the client offers to go on as a WebSocket."""
        return self._framing.offers

    def start(self) -> None:
        """Send the head on."""
        link = self._links.take()
        if link is None:
            self._connect()
        else:
            self._begin(link)

    def from_client(self, data: bytes) -> None:
        """The client goes on. Raises `BadRequest`."""
        part, rest = (data, b"") if self.tunnels else self._framing.body(data)
        if part:
            self._send(part)
        if rest:
            self._rest += rest
            if len(self._rest) > _MOST_WAITING_BYTES:
                self._caller.pause_sending()

    def client_gone(self) -> None:
        """Leave the engine."""
        self._over = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.hang_up()

    def pause(self) -> None:
        """The client is slow."""
        self._paused = True
        if self._link is not None:
            self._link.pause()

    def resume(self) -> None:
        """It has caught up."""
        self._paused = False
        if self._link is not None:
            self._link.resume()

    # --- called by the link -----------------------------------------------------------------------------------------

    def answering(self, data: bytes) -> None:
        """Bytes of the answer."""
        self._answers = True
        self._kept = None
        self._caller.pass_back(data)

    def switch(self) -> None:
        """The engine goes on as a WebSocket: what has waited for that is sent."""
        self.tunnels = True
        rest, self._rest = self._rest, b""
        if rest:
            self._send(rest)
        if len(rest) > _MOST_WAITING_BYTES and not self._slow:
            self._caller.resume_sending()

    def engine_slow(self) -> None:
        """It takes no more for now."""
        self._slow = True
        self._caller.pause_sending()

    def engine_ready(self) -> None:
        """It takes more."""
        self._slow = False
        self._caller.resume_sending()

    def whole(self, *, keep_alive: bool) -> None:
        """The answer has ended."""
        self._link, self._over = None, True
        if self._slow:
            self._caller.resume_sending()
        self._caller.passed(keep_alive=keep_alive and self._framing.keep_alive, rest=self._rest)

    def broke(self, *, stale: bool = False) -> None:
        """The engine has closed."""
        self._link = None
        if stale and self._kept is not None:
            self._links.drop()  # the others are as old
            self._connect()
            return
        self._over = True
        self._caller.not_passed(None if self._answers else engine_unreachable("it closed the connection"))

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        if self._kept is not None:
            self._kept.append(data)
            self._kept_bytes += len(data)
            if self._link is None:
                if self._kept_bytes > _MOST_WAITING_BYTES:
                    self._caller.pause_sending()
                return
            if self._kept_bytes > _MOST_KEPT_BYTES:
                self._kept = None
        if self._link is not None:
            self._link.write(data)

    def _begin(self, link: Link) -> None:
        self._link = link
        link.begin(self)
        assert self._kept is not None
        link.write(self._kept[0] if len(self._kept) == 1 else b"".join(self._kept))
        if self._kept_bytes > _MOST_KEPT_BYTES:
            self._kept = None
        if self._paused:
            link.pause()

    def _connect(self) -> None:
        self._connecting = self._links.loop.create_task(self._connected())

    async def _connected(self) -> None:
        problem = ""
        try:
            link = await self._links.connect()
        except TimeoutError:
            problem = "no connection in time"
        except OSError as error:
            problem = error.strerror or str(error)
        self._connecting = None
        if problem:
            self._over = True
            self._caller.not_passed(engine_unreachable(problem))
        else:
            waited = self._kept_bytes > _MOST_WAITING_BYTES
            self._begin(link)
            if waited and not self._slow:
                self._caller.resume_sending()
