"""Which headers pass from client to engine and back, on the proxy face. Names come as bytes in lower case."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from ballast_api import wire_names

REQUEST_ID: Final = wire_names.REQUEST_ID.encode()
PRIORITY: Final = wire_names.PRIORITY.encode()
KEYS: Final = (b"authorization", b"x-api-key")
"""Where clients put API keys: OpenAI's way, and Anthropic's."""
TRACE_CONTEXT: Final = (b"traceparent", b"tracestate")
"""W3C's trace context."""
_OBJECTIVES: Final = tuple(name.encode() for name in wire_names.OBJECTIVES)
_DEADLINE: Final = wire_names.DEADLINE.encode()
_MILLISECONDS = re.compile(rb"0{0,8}[1-9][0-9]{0,8}")
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection only (RFC 9110 section 7.6.1)."""

_CONTROL: Final = frozenset(name.encode() for name in wire_names.CONTROL_HEADERS)
_CONTROL_PREFIX: Final = wire_names.DESTINATION.encode()
_REWRITTEN: Final = frozenset(
    {b"host", b"content-length", b"content-type", b"content-encoding", b"expect", b"accept-encoding", REQUEST_ID}
    | {_DEADLINE}
)
"""Set anew for each leg. Engines get no `accept-encoding`: the gateway reads the stream as it passes."""
_NOT_UP: Final = HOP_BY_HOP | _CONTROL | _REWRITTEN | {b"origin"}
_NOT_DOWN: Final = HOP_BY_HOP | {
    b"content-length",
    REQUEST_ID,
    wire_names.LOAD_REPORT.encode(),
    b"access-control-expose-headers",
}
_CORS_PREFIX: Final = b"access-control-allow-"
"""Which origins may read an answer is the gateway's to say (`http.cors`), so engines see none and say nothing."""


def to_engine(headers: Iterable[tuple[bytes, bytes]], *, without: Collection[bytes] = ()) -> bytes:
    """The lines of a client's headers that pass to an engine, except those named `without`."""
    listed: set[bytes] = set()
    lines = []
    for name, value in headers:
        if name == b"connection":
            listed |= _named_by(value)
        elif name not in _NOT_UP and name not in without and not name.startswith(_CONTROL_PREFIX):
            lines.append((name, value))
    return b"".join([b"%b: %b\r\n" % line for line in lines if line[0] not in listed])


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of an engine's answer that pass to the client."""
    listed: set[bytes] = set()
    lines = []
    for name, value in headers:
        if name == b"connection":
            listed |= _named_by(value)
        elif name not in _NOT_DOWN and not name.startswith(_CORS_PREFIX):
            lines.append((name, value))
    return [line for line in lines if line[0] not in listed]


def _named_by(connection: bytes) -> set[bytes]:
    """The headers that a Connection header says are of this connection only."""
    return {item.strip().lower() for item in connection.split(b",")}


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The client's own request id, if it gave a usable one: 1 to 128 visible ASCII characters."""
    for name, value in headers:
        if name == REQUEST_ID:
            return value.decode("ascii") if _REQUEST_ID.fullmatch(value) else None
    return None


def deadline_s(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """Seconds until the client or a proxy before us gives up; None if they do not say. Raises `ValueError`."""
    for name, value in headers:
        if name == _DEADLINE:
            if not _MILLISECONDS.fullmatch(value.strip()):
                raise ValueError(
                    f"header {wire_names.DEADLINE}: must be milliseconds, a whole number from 1 to 999999999, "
                    f"not {value[:40].decode('latin-1')!r}"
                )
            return int(value) / 1e3
    return None


def first(headers: Iterable[tuple[bytes, bytes]], wanted: str) -> str | None:
    """The first value of a header; None without it."""
    name = wanted.encode()
    for each, value in headers:
        if each == name:
            return value.decode("latin-1")
    return None


def objective(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The objective in the client's header, or an empty text."""
    for name, value in headers:
        if name in _OBJECTIVES:
            return value.decode("latin-1").strip()
    return ""
