"""Names of headers on the wire, and which of them pass from client to engine and back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

REQUEST_ID: Final = b"x-request-id"
OBJECTIVES: Final = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
"""The name of a request's objective; the first is llm-d's, the second the inference extension's."""
PRIORITY: Final = b"x-vllm-priority"
"""Tells an engine that schedules by priority when a request's turn is, lower first; it wins over the body's field."""
_PRIORITY = re.compile(rb"[+-]?[0-9]{1,18}")
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
"""RFC 9110 section 7.6.1: of one connection only."""

CONTROL: Final = frozenset(
    {
        b"x-prefiller-host-port",
        b"x-encoder-hosts-ports",
        b"x-data-parallel-host-port",
        b"x-data-parallel-rank",
        b"x-kv-cache-source-host-port",
        b"endpoint-load-metrics-format",
    }
)
"""Routing internals (llm-d's sidecar, vLLM): a client must not choose where its request goes."""
CONTROL_PREFIX: Final = b"x-gateway-destination-endpoint"
"""Of the endpoint picker protocol, with all its suffixes."""

_REWRITTEN: Final = frozenset(
    {b"host", b"content-length", b"content-type", b"content-encoding", b"expect", b"accept-encoding", REQUEST_ID}
)
"""Set anew for each leg. Engines are asked for no content coding: the stream is looked at as it passes."""
_NOT_UP: Final = HOP_BY_HOP | CONTROL | _REWRITTEN
_NOT_DOWN: Final = HOP_BY_HOP | {b"content-length", REQUEST_ID, b"endpoint-load-metrics"}


def to_engine(headers: Iterable[tuple[bytes, bytes]], *, without: bytes = b"") -> bytes:
    """The lines of a client's headers that an engine may see, but the one `without`. Names are in lower case."""
    listed: set[bytes] = set()
    lines = []
    for name, value in headers:
        if name == b"connection":
            listed |= {item.strip().lower() for item in value.split(b",")}
        elif name not in _NOT_UP and name != without and not name.startswith(CONTROL_PREFIX):
            lines.append((name, value))
    return b"".join([b"%b: %b\r\n" % line for line in lines if line[0] not in listed])


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of an engine's answer that its client may see."""
    return [header for header in headers if header[0] not in _NOT_DOWN]


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The client's own request id, if it gave a usable one: 1 to 128 visible ASCII characters."""
    for name, value in headers:
        if name == REQUEST_ID:
            return value.decode("ascii") if _REQUEST_ID.fullmatch(value) else None
    return None


def priority(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The priority that the client names in a header; None where there is none, or none that can be read."""
    for name, value in headers:
        if name == PRIORITY:
            return int(value) if _PRIORITY.fullmatch(value.strip()) else None
    return None


def objective(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The objective that the client names, or an empty text."""
    for name, value in headers:
        if name in OBJECTIVES:
            return value.decode("latin-1").strip()
    return ""
