"""Bytes in, one HTTP/1.1 answer after another out. Does no I/O; framing is llhttp's in its strict mode (RFC 9112)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import httptools

Headers = list[tuple[bytes, bytes]]
"""Names in lower case."""

_MAX_HEADER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer."""

    status: int
    headers: Headers
    framed: bool
    """Whether the headers give the length of the body; else the body ends with its connection."""


class ResponseReader:
    """Reads the answers on one connection: `begin` before each, then `feed` until it is `whole`."""

    __slots__ = (
        *("_dirty", "_framed", "_header_bytes", "_headers", "_parser", "_parts", "_reusable", "_unread_bytes"),
        *("head", "whole"),
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._dirty = False
        """Bytes came that belong to no request: they must not mix with an answer."""
        self._reusable = False
        self._unread_bytes = 0
        """What came since the last head or part of a body was whole: a head, a trailer, the length of a chunk."""
        self._begin_head()
        self.begin()

    def begin(self) -> None:
        """Expect the answer to a request."""
        self.head: Head | None = None
        """None until it is complete."""
        self.whole = False
        """The answer has come to its end."""

    @property
    def reusable(self) -> bool:
        """Whether the connection may serve another request after a whole answer."""
        return self._reusable and not self._dirty

    def feed(self, data: bytes) -> bytes:
        """Take in one read; returns the part of the body in it, and none before `head` is there. Raises
        `httptools.HttpParserError` or `-Upgrade`; the former for a head, or what else is no body, of more than 64 KiB:
        the parser would keep all of it."""
        self._unread_bytes += len(data)
        self._parser.feed_data(data)
        if self._unread_bytes > _MAX_HEADER_BYTES or self._header_bytes > _MAX_HEADER_BYTES:
            raise httptools.HttpParserError(f"more than {_MAX_HEADER_BYTES} bytes of headers")
        parts = self._parts
        if not parts:
            return b""
        if self.head is None:  # llhttp reads chunks after any 1xx but 100; it can have none (RFC 9110 section 15.2)
            raise httptools.HttpParserError("an interim answer with a body")
        self._parts = []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _begin_head(self) -> None:
        self._headers: Headers = []
        self._header_bytes = 0
        self._framed = False

    # --- called by the parser: these never raise ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.whole:
            self._dirty = True
        else:
            self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADER_BYTES or self.head is not None:
            return  # `feed` raises, a trailer, or a second answer
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._unread_bytes = 0
        status = self._parser.get_status_code()
        if status >= 200 and self.head is None:
            self.head = Head(status, self._headers, self._framed)

    def on_body(self, part: bytes) -> None:
        self._unread_bytes = 0
        if not self.whole:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        self._unread_bytes = 0
        if self.head is not None and not self.whole:  # not a 1xx, not a second answer
            self.whole = True
            self._reusable = self._parser.should_keep_alive()
