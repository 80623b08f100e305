"""What a request's header block asks for, and whether it may (RFC 9113, section 8)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED: Final = frozenset({b":method", b":scheme", b":path"})
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
"""They mean nothing in HTTP/2, and are forbidden (8.2.2)."""
_WRONG_NAME: Final = re.compile(rb"[\x00-\x20A-Z\x7f-\xff]|(?!^):")
_WRONG_VALUE: Final = re.compile(rb"[\x00\r\n]|^[ \t]|[ \t]$")
_UNITS_S: Final = {ord("H"): 3600.0, ord("M"): 60.0, ord("S"): 1.0, ord("m"): 1e-3, ord("u"): 1e-6, ord("n"): 1e-9}
_TIMEOUT: Final = re.compile(rb"[0-9]{1,8}[HMSmun]")


class Request(NamedTuple):
    """The head of a request."""

    path: str
    is_grpc: bool
    """A POST of content type `application/grpc`, with or without a suffix."""
    timeout_s: float | None
    """gRPC's: from now on the call may take so long."""
    length: int | None
    """Announced bytes of the body."""
    compressed: bool
    """Its messages may be."""
    wrong: str
    """Which rule it breaks; empty if none."""


def read_request(headers: Iterable[tuple[bytes, bytes]]) -> Request:
    """Read decoded headers. Never raises: see `Request.wrong`."""
    found: dict[bytes, bytes] = {}
    wrong, regular = "", False
    for name, value in headers:
        if name[:1] == b":":
            if regular or name in found or name not in _PSEUDO:
                wrong = wrong or f"pseudo-header field {name!r} is unknown, repeated or late"
        else:
            regular = True
            wrong = wrong or _wrong_field(name, value)
        if _WRONG_NAME.search(name) or not name or _WRONG_VALUE.search(value):
            wrong = wrong or f"malformed header field {name[:40]!r}"
        if found.setdefault(name, value) != value and name == b"content-length":
            wrong = wrong or "two lengths"
    length = found.get(b"content-length")
    if not wrong and (not found.keys() >= _REQUIRED or not found[b":path"]):
        wrong = "a request needs :method, :scheme and :path"
    if length is not None and not re.fullmatch(rb"[0-9]{1,18}", length):
        wrong, length = wrong or "content-length is no number", None
    content_type = found.get(b"content-type", b"")
    return Request(
        path=found.get(b":path", b"").decode("latin-1"),
        is_grpc=found.get(b":method") == b"POST" and re.match(rb"application/grpc(?![^+;])", content_type) is not None,
        timeout_s=_timeout_s(found.get(b"grpc-timeout", b"")),
        length=None if length is None else int(length),
        compressed=found.get(b"grpc-encoding", b"identity") != b"identity",
        wrong=wrong,
    )


def wrong_trailers(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Which rule the trailers of a request break; empty if none."""
    for name, value in headers:
        if not name or name[:1] == b":" or _WRONG_NAME.search(name) or _WRONG_VALUE.search(value):
            return f"{name[:40]!r} in trailers"
        if wrong := _wrong_field(name, value):
            return wrong
    return ""


def _wrong_field(name: bytes, value: bytes) -> str:
    if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
        return f"{name.decode()} is not for HTTP/2"
    return ""


def _timeout_s(value: bytes) -> float | None:
    """gRPC's `Timeout`; one that cannot be read sets no limit."""
    if not _TIMEOUT.fullmatch(value):
        return None
    return int(value[:-1]) * _UNITS_S[value[-1]]
