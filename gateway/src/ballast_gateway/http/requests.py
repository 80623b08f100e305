"""Bytes in, whole HTTP/1.1 requests out: framing, limits and everything that is refused before routing.

Does no I/O. Framing is llhttp's in its strict mode (RFC 9112); on top of it come the limits and the few rules that
llhttp leaves to its user: one Host, `chunked` as the only transfer coding, no trailers into the headers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import httptools

from ballast_gateway.errors import (
    GATEWAY_LIMITS,
    ApiError,
    BodyLimitNames,
    body_encoded,
    body_too_large,
    headers_too_large,
    invalid_request,
    unsupported,
)
from ballast_gateway.openai_body import may_hold_media

Headers = list[tuple[bytes, bytes]]
"""Names in lower case."""

UPGRADES: Final = frozenset({b"upgrade", b"http2-settings"})
"""Headers that offer an upgrade."""
_CHECKED = frozenset({b"host", b"transfer-encoding", b"expect", b"content-length", b"content-encoding"})
_RAW_BODY_FACTOR = 8
"""A chunked body may take this many times its limit on the wire: chunks of one byte do."""


@dataclass(slots=True)
class HttpRequest:
    """One whole request."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    keep_alive: bool
    http11: bool


class Reading(Enum):
    """What the next byte belongs to."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class RequestReader:
    """Feed it bytes; `take` the `requests`. After `error` is set nothing more comes.

    Bodies may have `max_text_body_bytes`, and up to `max_body_bytes` where they hold media.
    """

    def __init__(
        self,
        *,
        max_header_bytes: int,
        max_body_bytes: int,
        max_text_body_bytes: int | None = None,
        limit_names: BodyLimitNames = GATEWAY_LIMITS,
    ) -> None:
        self.requests: deque[HttpRequest] = deque()
        self.error: ApiError | None = None
        self.reading = Reading.NOTHING
        self.continue_wanted = False
        """The client waits for `100 Continue`; the sender of it sets this back."""
        self._max_header_bytes = max_header_bytes
        self._max_body_bytes = max_body_bytes
        self._max_text_bytes = (
            max_body_bytes if max_text_body_bytes is None else min(max_text_body_bytes, max_body_bytes)
        )
        self._limit_names = limit_names
        self._most_bytes = self._max_text_bytes
        """Of this body, as far as it has come."""
        self.bodies = 0
        """Bodies that have begun, empty ones too."""
        self.announced_bytes = 0
        """Length of the body that is read, if its head says one."""
        self._queued_bytes = 0
        self._last = False
        """The last request of this connection has come; later bytes are ignored."""
        self._began_here = False
        self._body_here = False
        self._upgrading = False
        self._target = b""
        self.headers: Headers = []
        """Of the request that is read."""
        self._head_bytes = 0
        self._raw_bytes = 0
        self._quiet_bytes = 0
        """Bytes since the last piece of a body: chunk extensions and trailers, which llhttp's user holds in memory."""
        self._body: list[bytes] = []
        self.body_bytes = 0
        """Of the body that is read, so far."""
        self._keep_alive = self._http11 = True
        self._hosts = self._codings = 0
        self._parser = httptools.HttpRequestParser(self)

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies that lie here, whole or not."""
        return self.body_bytes + self._queued_bytes

    def take(self) -> HttpRequest:
        """The first of `requests`."""
        request = self.requests.popleft()
        self._queued_bytes -= len(request.body)
        return request

    def feed(self, data: bytes) -> None:
        """Take in what the client sent."""
        self._began_here = self._body_here = False
        pending = [memoryview(data)]
        while pending and self.error is None and not self._last:
            piece = pending.pop()
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                pending += [piece[upgrade.args[0] :], memoryview(self._without_upgrade())]
            except httptools.HttpParserError as error:
                if not self._last:
                    self.refuse(invalid_request(f"this is not HTTP/1.1: {error}", code="bad-http"))
        self._check_size(len(data))

    def _without_upgrade(self) -> bytes:
        """RFC 9110 section 7.8: a server may ignore an upgrade. llhttp cannot, so the head is read again without it.

        Java's HTTP client offers h2c with every first request.
        """
        method = self._parser.get_method()
        if self.error is not None:
            return b""
        if method == b"CONNECT":
            self.refuse(unsupported(405, "CONNECT is not supported"))
            return b""
        kept = [(name, without_offer(name, value)) for name, value in self.headers]
        lines = [b"%b: %b\r\n" % (name, value) for name, value in kept if value is not None]
        version = self._parser.get_http_version().encode()
        self._parser = httptools.HttpRequestParser(self)
        self._upgrading = False
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._target, version, b"".join(lines))

    def _check_size(self, fed: int) -> None:
        """Bounds what llhttp takes in without calling back: a head, a chunk extension or a trailer that never ends."""
        if self.reading is Reading.HEAD and not self._began_here:
            self._head_bytes += fed
            if self._head_bytes > self._max_header_bytes:
                self.refuse(headers_too_large(self._max_header_bytes))
        elif self.reading is Reading.BODY:
            self._raw_bytes += fed
            self._quiet_bytes = 0 if self._body_here else self._quiet_bytes + fed
            if self._quiet_bytes > self._max_header_bytes:
                self.refuse(headers_too_large(self._max_header_bytes))
            if self._raw_bytes > _RAW_BODY_FACTOR * self._max_body_bytes + self._max_header_bytes:
                self.refuse(body_too_large(self._max_body_bytes, self._limit_names.whole))

    def refuse(self, error: ApiError) -> None:
        """Take nothing more."""
        if self.error is None:
            self.error = error
            self._body = []
            self.body_bytes = 0

    # --- called by the parser: these never raise ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.reading = Reading.HEAD
        self._began_here = True
        self._target = b""
        self.headers = []
        self._body = []
        self._quiet_bytes = 0
        self._head_bytes = self._raw_bytes = self.body_bytes = self._hosts = self._codings = self.announced_bytes = 0
        self._most_bytes = self._max_text_bytes

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self.reading is not Reading.HEAD:
            return  # a trailer: it must not pass for a header
        name = name.lower()
        self.headers.append((name, value))
        if name in _CHECKED:
            self._check_header(name, value)

    def on_headers_complete(self) -> None:
        parser = self._parser
        self.reading = Reading.BODY
        self.bodies += 1
        version = parser.get_http_version()
        self._http11 = version == "1.1"
        if not self._http11:
            self.continue_wanted = False  # RFC 9110 section 10.1.1: to HTTP/1.0 it says nothing
        self._keep_alive = parser.should_keep_alive()
        self._upgrading = parser.should_upgrade()
        if version not in ("1.1", "1.0"):
            self.refuse(unsupported(400, f"HTTP/{version} is not supported; use HTTP/1.1", code="bad-http"))
        elif self._head_bytes + len(self._target) > self._max_header_bytes:
            self.refuse(headers_too_large(self._max_header_bytes))
        elif self._hosts != 1 and (self._http11 or self._hosts > 1):
            self.refuse(invalid_request("the request must have one Host header", code="bad-http"))
        elif self._codings and not self._http11:
            self.refuse(invalid_request("HTTP/1.0 has no Transfer-Encoding", code="bad-http"))

    def on_body(self, part: bytes) -> None:
        self._body_here = True
        if self.error is not None:
            return
        self._body.append(part)
        self.body_bytes += len(part)
        if self.body_bytes > self._most_bytes:
            self._check_media()

    def _check_media(self) -> None:
        """At the limit for text."""
        if self.body_bytes > self._max_body_bytes:
            self.refuse(body_too_large(self._max_body_bytes, self._limit_names.whole))
        elif may_hold_media(self._body):
            self._most_bytes = self._max_body_bytes
        else:
            self.refuse(body_too_large(self._max_text_bytes, self._limit_names.text, text=True))

    def on_message_complete(self) -> None:
        if self.error is not None or self._upgrading or self._last:
            return
        self.reading = Reading.NOTHING
        self.continue_wanted = False
        self._last = not self._keep_alive
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self.body_bytes = 0
        self._queued_bytes += len(body)
        self.requests.append(
            HttpRequest(self._parser.get_method(), self._target, self.headers, body, self._keep_alive, self._http11)
        )

    def _check_header(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._hosts += 1
        elif name == b"content-length":
            if len(value) <= 20 and value.isdigit():
                self.announced_bytes = int(value)
                if self.announced_bytes > self._max_body_bytes:
                    self.refuse(body_too_large(self._max_body_bytes, self._limit_names.whole))
        elif name == b"transfer-encoding":
            self._codings += 1
            if value.strip().lower() != b"chunked" or self._codings > 1:
                self.refuse(unsupported(400, "the only transfer coding here is chunked", code="bad-http"))
        elif name == b"content-encoding":
            if value.strip().lower() != b"identity":
                self.refuse(body_encoded())
        elif value.strip().lower() == b"100-continue":
            self.continue_wanted = True
        else:
            self.refuse(unsupported(417, "the only expectation here is 100-continue"))


def without_offer(name: bytes, value: bytes) -> bytes | None:
    """What is left of a header when the offer of an upgrade is ignored; None: nothing."""
    if name in UPGRADES:
        return None
    if name != b"connection":
        return value
    options = [option.strip() for option in value.split(b",")]
    return b", ".join(option for option in options if option.lower() not in UPGRADES) or None
