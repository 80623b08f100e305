"""One client connection: requests in order, one answer at a time, backpressure both ways.

Reading goes on while a request is served, because only a reader notices that the client is gone. Requests that a
client pipelines wait in the reader; when two wait, reading stops until one is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Protocol, cast

from ballast_gateway.clients import Clients, Held
from ballast_gateway.errors import ApiError, BodyLimitNames, request_timeout
from ballast_gateway.http.cors import Cors
from ballast_gateway.http.requests import HttpRequest, Reading, RequestReader

Header = tuple[bytes, bytes]

_STATUS_LINES = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}
_MAX_WAITING = 2
_SHARE_BYTES = 64 * 1024
"""Of what a slow client has not taken: with each it has so long for the next as for the first."""
_LINGER_S = 2.0
"""How long a refused client may still send before its connection is cut: closing at once would lose the answer."""


class Flow(Protocol):
    """The source of an answer, which can pause."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Work(Protocol):
    """What answers a request later."""

    def client_gone(self) -> None:
        """The connection was closed before the client had the whole answer."""
        ...

    def shut_down(self) -> None:
        """The gateway ends: end the answer, and say why."""
        ...


class Server(Protocol):
    """What a connection needs of the face that it belongs to."""

    max_header_bytes: int
    max_body_bytes: int
    max_text_body_bytes: int
    body_limit_names: BodyLimitNames
    """What refusals call these two."""
    request_timeout_s: float
    body_timeout_s: float
    min_body_bytes_per_s: int
    keep_alive_timeout_s: float
    client_stall_timeout_s: float
    cors: Cors | None
    """Rules for browsers of other origins; None admits none."""
    closing: bool
    """Connections close after the request that they serve."""
    connections: set[ClientConnection]
    clients: Clients

    def handle(self, client: ClientConnection, request: HttpRequest) -> Work | None:
        """Answer at once, or return what will."""
        ...

    def disconnected(self, client: ClientConnection) -> None:
        """The connection is gone."""
        ...

    def refused(self, error: ApiError) -> None:
        """Bytes were refused before they made a request."""
        ...


class WrongAnswer(Exception):
    """An answer that would not be HTTP: a body without its head, or a second head. Nothing of it was written."""


class ClientConnection(asyncio.Protocol):
    """The server's end of one client connection; also the writer of its answers.

    For each request: `respond`, or `start_stream`, then `write`, then `end`; `abort` ends either. In any other order
    they raise `WrongAnswer`, so that no client gets bytes that belong to no answer.
    """

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._reader = RequestReader(
            max_header_bytes=server.max_header_bytes,
            max_body_bytes=server.max_body_bytes,
            max_text_body_bytes=server.max_text_body_bytes,
            limit_names=server.body_limit_names,
        )
        self._held: Held | None = None
        """What lies in the reader, if anything does between two reads."""
        self._body = 0
        """The number of the body that is read; when it began; when its last share of bytes began, and at which one."""
        self._body_since_s = self._share_since_s = 0.0
        self._share_from = 0
        self._late = ""
        """Which limit `_deadline_s` is, while a request is read."""
        self._request: HttpRequest | None = None
        self._work: Work | None = None
        """What answers the request, as long as it has not."""
        self._advancing = False
        self._reading_paused = False
        self._discarding = False
        self._chunked = False
        self._unsent = b""
        """The head of a stream that has begun leaves with its first part, the last part with the end: a system call
        costs as much as all that is done with a part."""
        self._streams = False
        """The head of a stream is sent, and not its end: the only time at which parts may be written."""
        self.head_sent = False
        """The answer to the request has begun."""
        self._stalled_since_s: float | None = None
        self._untaken_bytes = 0
        """What lay ready then."""
        self._deadline_s = loop.time() + server.keep_alive_timeout_s
        self._flow: Flow | None = None
        self._served = False
        """It has been given an answer."""
        self.gone = False

    # --- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)
        peer = transport.get_extra_info("peername")
        self.address: str = peer[0] if isinstance(peer, tuple) else ""
        """Of the peer: a client, or a proxy in front."""
        error = self._server.clients.connect(self.address)
        if error is not None:
            self._refuse(error)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        was = self._reader.reading
        self._reader.feed(data)
        now = self._reader.reading
        if now is not was or now is Reading.BODY:
            self._set_deadline(now)
        self._advance()
        if self._held is not None or self._reader.held_bytes:
            self._book()

    def eof_received(self) -> bool:
        """A client that closes its sending half counts as gone, as with uvicorn (and so vLLM)."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._release()
        self._server.clients.disconnect(self.address)
        self._server.disconnected(self)
        work, self._work = self._work, None
        if work is not None:
            work.client_gone()

    def pause_writing(self) -> None:
        self._stall()
        if self._flow is not None:
            self._flow.pause()

    def _stall(self) -> None:
        self._stalled_since_s = self._loop.time()
        self._untaken_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self._stalled_since_s = None
        if self._transport.is_closing():
            self._deadline_s = self._loop.time() + self._server.client_stall_timeout_s
        if self._flow is not None:
            self._flow.resume()
        if self._reader.requests:
            self._loop.call_soon(self._advance)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Serve waiting requests, as long as the client takes its answers.

        A loop, not recursion: thousands of pipelined requests may be answered at once.
        """
        if self._advancing or self.gone:
            return
        self._advancing = True
        reader = self._reader
        while self._request is None and reader.requests and not self._discarding and self._stalled_since_s is None:
            self._request = reader.take()
            if self._held is not None:
                self._book()
            self.head_sent = False
            work = self._server.handle(self, self._request)
            self._work = None if self._request is None else work  # it may have answered already
        self._advancing = False
        if self._request is None and not reader.requests and not self._discarding:
            self._ask_on()
        waiting = len(reader.requests) >= _MAX_WAITING
        if waiting is not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = waiting
            (self._transport.pause_reading if waiting else self._transport.resume_reading)()

    def _ask_on(self) -> None:
        """No request waits: refuse what came instead of one, or have the client send the body that it holds back."""
        if self._reader.error is not None:
            self._refuse(self._reader.error)
        elif self._reader.continue_wanted and self._reader.reading is Reading.BODY:
            self._reader.continue_wanted = False
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _book(self) -> None:
        """Book what lies in the reader on the client, or refuse to read on."""
        reader = self._reader
        if not reader.held_bytes:
            self._release()
            return
        error = None
        if self._held is None:
            clients = self._server.clients
            names = clients.names(self.address, reader.headers)
            self._held = clients.hold(names)
            error = clients.fits(names, reader.announced_bytes)  # known before it comes: no use in reading it
        error = error or self._held.set(reader.held_bytes)
        if error is not None and not self._discarding:
            reader.refuse(error)
            self._release()
            self._advance()

    def _release(self) -> None:
        if self._held is not None:
            self._held.set(0)
            self._held = None

    def attach(self, flow: Flow) -> None:
        """Pause this flow, from now on, while the client is slow."""
        self._flow = flow
        if self._stalled_since_s is not None:
            flow.pause()

    def detach(self, flow: Flow) -> None:
        """Pause this flow no more."""
        if self._flow is flow:
            self._flow = None

    # --- answers ----------------------------------------------------------------------------------------------------

    @property
    def answering(self) -> bool:
        """Whether the answer to a request is still due, or under way."""
        return self._request is not None

    def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Answer with a whole body."""
        if self._request is None:
            raise WrongAnswer("an answer without a request")
        self._respond(status, headers, body)

    def respond_error(self, error: ApiError, extra: tuple[Header, ...] = ()) -> None:
        """Answer with an error in OpenAI's shape."""
        self.respond(error.status, *_error(error, extra))

    def _refuse(self, error: ApiError) -> None:
        """Answer what made no request."""
        self._server.refused(error)
        self._respond(error.status, *_error(error, ()))

    def _respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        head = self._head(status, headers, b"content-length: %d\r\n" % len(body))
        silent = self._request is not None and self._request.method == b"HEAD"
        self._send(head if silent else head + body)
        self._finish()

    def start_stream(self, status: int, headers: Iterable[Header]) -> None:
        """Answer with a body of unknown length; `write` and then `end` it. The head leaves with the first of it."""
        if self._request is None:
            raise WrongAnswer("a stream without a request")
        self._chunked = self._request.http11
        self._unsent = self._head(status, headers, b"transfer-encoding: chunked\r\n" if self._chunked else b"")
        self._streams = True

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Send a part of a stream. `last`: `end` follows at once, so both leave together."""
        if not self._streams:
            raise WrongAnswer("a part of a stream that has not begun, or is over")
        transport = self._transport
        if not transport.is_closing():
            part = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
            if self._unsent:
                part, self._unsent = self._unsent + part, b""
            if last:
                self._unsent = part
            else:
                transport.write(part)

    def end(self) -> None:
        """The stream is whole."""
        if not self._streams:
            raise WrongAnswer("the end of a stream that has not begun, or is over")
        last = self._unsent + (b"0\r\n\r\n" if self._chunked else b"")
        self._unsent = b""
        if last:
            self._send(last)
        self._finish()

    def abort(self) -> None:
        """Cut the connection, which shows the client that the answer is not whole."""
        if self._unsent:
            self._send(self._unsent)
        self._request, self._streams, self._unsent = None, False, b""
        self._close()

    def _send(self, data: bytes) -> None:
        """Unless the connection is closing: transports of uvloop refuse that."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        """Close once everything is sent; `sweep` bounds the wait."""
        self._discarding = True
        self._deadline_s = self._loop.time() + self._server.client_stall_timeout_s
        self._transport.close()

    def _head(self, status: int, headers: Iterable[Header], framing: bytes) -> bytes:
        if self._streams:
            raise WrongAnswer("a second head")
        self.head_sent = True
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d -\r\n" % status]
        lines += [b"%b: %b\r\n" % header for header in headers]
        lines.append(framing)
        cors, request = self._server.cors, self._request
        if cors is not None:  # a page that is refused while it sends is to read why, too
            lines += cors.answer_lines(self._reader.headers if request is None else request.headers)
        if self._closes():
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _closes(self) -> bool:
        request = self._request
        return request is None or not request.keep_alive or not request.http11 or self._server.closing

    def _finish(self) -> None:
        refused = self._request is None
        closes = self._closes()
        self._request = self._flow = self._work = None
        self._served = True
        self._chunked = self._streams = False
        if refused:
            self._linger()
        elif closes:
            self._close()
        else:
            now_s = self._loop.time()
            self._deadline_s = now_s + self._server.keep_alive_timeout_s
            self._body_since_s = self._share_since_s = now_s  # a body that has begun may have been kept waiting by us
            if self._reader.requests or self._reader.error is not None or self._reader.continue_wanted:
                self._loop.call_soon(self._advance)  # what answers this one may have more to do at its end

    def _linger(self) -> None:
        self._discarding = True
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
        self._deadline_s = self._loop.time() + _LINGER_S

    # --- time -------------------------------------------------------------------------------------------------------

    def _set_deadline(self, reading: Reading) -> None:
        """A head has `request_timeout_s` in all. A body has so long for each share of bytes that the least rate asks
        for in that time, or for its end; and a total."""
        server, reader, now_s = self._server, self._reader, self._loop.time()
        self._deadline_s = now_s + server.request_timeout_s
        self._late = f"limits.requestTimeoutS is {server.request_timeout_s:g}"
        if reading is not Reading.BODY:
            return
        if self._body != reader.bodies:
            self._body, self._body_since_s = reader.bodies, now_s
            self._share_since_s, self._share_from = now_s, 0
        elif reader.body_bytes - self._share_from >= server.min_body_bytes_per_s * server.request_timeout_s:
            self._share_since_s, self._share_from = now_s, reader.body_bytes
        else:
            self._deadline_s = self._share_since_s + server.request_timeout_s
            self._late = f"limits.minBodyBytesPerS is {server.min_body_bytes_per_s}"
        due_s = self._body_since_s + server.body_timeout_s
        if due_s < self._deadline_s:
            self._deadline_s, self._late = due_s, f"limits.bodyTimeoutS is {server.body_timeout_s:g}"

    def sweep(self, now_s: float) -> None:
        """Called periodically: close the connection if it has been silent for too long."""
        if self._stalled_since_s is not None:
            if self._untaken_bytes - self._transport.get_write_buffer_size() >= _SHARE_BYTES:
                self._stall()
            elif now_s - self._stalled_since_s > self._server.client_stall_timeout_s:
                self._transport.abort()
        elif self._request is None and now_s > self._deadline_s:
            if self._discarding:
                self._transport.abort()
            elif self._reader.reading is Reading.NOTHING:
                self._close()
            else:
                self._refuse(request_timeout(self._late))

    # --- the end of the gateway ---------------------------------------------------------------------------------

    def close_if_idle(self, *, fresh: bool) -> None:
        """Close the connection if no request is on its way. `fresh`: also where none has come yet."""
        if self._is_idle and (fresh or self._served) and not self._discarding:
            self._close()

    @property
    def _is_idle(self) -> bool:
        return self._request is None and not self._reader.requests and self._reader.reading is Reading.NOTHING

    def shut_down(self, error: ApiError) -> None:
        """End what is served, refuse with `error` what has begun to come, and close."""
        if self._work is not None:
            self._work.shut_down()
        elif not self._is_idle and self._request is None and not self._discarding:
            self._refuse(error)
        self.close_if_idle(fresh=True)


def _error(error: ApiError, extra: tuple[Header, ...]) -> tuple[list[Header], bytes]:
    """Headers and body, in OpenAI's shape."""
    return [*((name.encode(), value.encode()) for name, value in error.headers()), *extra], error.body()
