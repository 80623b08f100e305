"""The values that an ext_proc stream carries, free of protobuf: what comes in, and what goes out.

Field for field after `envoy/service/ext_proc/v3/external_processor.proto`, reduced to what a picker uses. Named tuples,
because an exchange makes a dozen of them, and a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

CHUNK_BYTES: Final = 62_000
"""Largest body chunk that is sent to Envoy in one message (it takes up to 64 KiB)."""


NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class BodyMode(IntEnum):
    """`ProcessingMode.BodySendMode`, same numbers: how the proxy shows a body to the picker."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class Kind(StrEnum):
    """The part of the exchange that a message is about. Values are protobuf's field names, the same both ways."""

    REQUEST_HEADERS = "request_headers"
    REQUEST_BODY = "request_body"
    REQUEST_TRAILERS = "request_trailers"
    RESPONSE_HEADERS = "response_headers"
    RESPONSE_BODY = "response_body"
    RESPONSE_TRAILERS = "response_trailers"


class Modes(NamedTuple):
    """`ProtocolConfiguration`, sent with the first message of a stream."""

    request_body: BodyMode
    response_body: BodyMode


class Inbound(NamedTuple):
    """One message from the proxy."""

    kind: Kind
    headers: Mapping[str, str] = NO_HEADERS
    """Of a headers message: names in lower case; of a repeated header the last value."""
    body: bytes = b""
    end_of_stream: bool = False
    modes: Modes | None = None
    subset: tuple[str, ...] | None = None
    """The subset hint as sent, split; None if there is no hint, empty if it allows nothing."""
    served: str | None = None
    observe_only: bool = False
    """The proxy does not listen to answers (`observability_mode`)."""


class HeaderChange(NamedTuple):
    """Headers to set (overwriting) and to remove."""

    set: tuple[tuple[str, str], ...] = ()
    remove: tuple[str, ...] = ()


class HeadersReply(NamedTuple):
    """Answers a headers message."""

    kind: Kind
    change: HeaderChange | None = None
    destination: str | None = None
    """Goes into the dynamic metadata and clears the route cache."""


class BodyReply(NamedTuple):
    """Answers a body message of the classic modes: one for each."""

    kind: Kind
    body: bytes | None = None
    """Replaces what was sent, unless None."""
    change: HeaderChange | None = None
    destination: str | None = None


class StreamedBody(NamedTuple):
    """A chunk of the body in full-duplex mode: any number of them, at any time after the headers' answer."""

    kind: Kind
    body: bytes
    end_of_stream: bool


class TrailersReply(NamedTuple):
    """Answers a trailers message."""

    kind: Kind
    destination: str | None = None


class Immediate(NamedTuple):
    """Answers the client at once and ends the exchange."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    reason: str


Reply: TypeAlias = HeadersReply | BodyReply | StreamedBody | TrailersReply | Immediate


def streamed_body(kind: Kind, body: bytes, *, end_of_stream: bool) -> list[StreamedBody]:
    """The body in chunks that the proxy takes; one empty chunk where only the end of the body is left to send."""
    if len(body) <= CHUNK_BYTES:
        return [StreamedBody(kind, body, end_of_stream)] if body or end_of_stream else []
    last = (len(body) - 1) // CHUNK_BYTES * CHUNK_BYTES
    return [
        StreamedBody(kind, body[at : at + CHUNK_BYTES], end_of_stream and at == last)
        for at in range(0, last + 1, CHUNK_BYTES)
    ]
