"""ext_proc messages from and to protobuf bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import struct_pb2

from ballast_api import wire_names
from ballast_gateway.picker import wire
from ballast_gateway.picker.messages import (
    NO_HEADERS,
    BodyMode,
    BodyReply,
    HeadersReply,
    Immediate,
    Inbound,
    Kind,
    Modes,
    Reply,
    StreamedBody,
    TrailersReply,
)

METHOD: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"

_OVERWRITE: Final = base_pb2.HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
_HEADERS: Final = {kind.value: kind for kind in (Kind.REQUEST_HEADERS, Kind.RESPONSE_HEADERS)}
_BODIES: Final = {kind.value: kind for kind in (Kind.REQUEST_BODY, Kind.RESPONSE_BODY)}
_SHORT_BYTES: Final = 512
_Rest: TypeAlias = tuple[Modes | None, tuple[str, ...] | None, str | None, bool]
"""The last fields of `Inbound`."""
_parse: Final = pb.ProcessingRequest.FromString


def decode(raw: bytes) -> Inbound:
    """One `ProcessingRequest`. Raises `ValueError` if it is none."""
    usual = wire.read(raw)
    if usual is not None:
        kind, headers, body, end_of_stream, rest = usual
        context = _context(rest) if len(rest) <= _SHORT_BYTES else None
        if context is not None:
            return Inbound(kind, headers, body, end_of_stream, *context)
    return _by_protobuf(raw)


def _by_protobuf(raw: bytes) -> Inbound:
    try:
        message = _parse(raw)
    except Exception as error:  # protobuf's own DecodeError has no common name across its implementations
        raise ValueError(f"no ext_proc ProcessingRequest: {error}") from error
    field = message.WhichOneof("request")
    if field is None:
        raise ValueError("an ext_proc ProcessingRequest without a request")
    headers, body, end_of_stream = NO_HEADERS, b"", True
    if kind := _BODIES.get(field):
        part = getattr(message, field)
        body, end_of_stream = part.body, part.end_of_stream or part.end_of_stream_without_message
    elif kind := _HEADERS.get(field):
        part = getattr(message, field)
        headers = {h.key.lower(): h.raw_value.decode("latin-1") or h.value for h in part.headers.headers}
        end_of_stream = part.end_of_stream
    else:
        kind = Kind(field)
    return Inbound(kind, headers, body, end_of_stream, *_rest_of(message))


def encode(reply: Reply) -> bytes:
    """One `ProcessingResponse`."""
    return _ENCODERS[type(reply)](reply)


def _streamed(reply: StreamedBody) -> bytes:
    return wire.write_chunk(reply.kind, reply.body, reply.end_of_stream)


def _headers(reply: HeadersReply) -> bytes:
    change, destination = reply.change, reply.destination
    if change is None and destination is None:
        return _neutral(reply.kind)
    written = wire.write_headers(reply.kind, change, clear_route_cache=destination is not None)
    return written if destination is None else written + wire.write_destination(destination)


def _body(reply: BodyReply) -> bytes:
    if reply.body is None and reply.change is None and reply.destination is None:
        return _neutral(reply.kind)
    message = pb.ProcessingResponse()
    common = getattr(message, reply.kind).response
    common.SetInParent()
    if reply.change is not None:
        mutation = common.header_mutation
        mutation.SetInParent()
        _set(mutation, reply.change.set)
        mutation.remove_headers.extend(reply.change.remove)
    if reply.body:
        common.body_mutation.body = reply.body
    elif reply.body is not None:
        common.body_mutation.clear_body = True
    if reply.destination is None:
        return bytes(message.SerializeToString())
    common.clear_route_cache = True
    return bytes(message.SerializeToString()) + wire.write_destination(reply.destination)


def _trailers(reply: TrailersReply) -> bytes:
    if reply.destination is None:
        return _neutral(reply.kind)
    return _neutral(reply.kind) + wire.write_destination(reply.destination)


def _immediate(reply: Immediate) -> bytes:
    message = pb.ProcessingResponse()
    answer = message.immediate_response
    answer.status.code = reply.status
    _set(answer.headers, reply.headers)
    answer.body = reply.body
    answer.details = f"ballast_{reply.reason}"
    return bytes(message.SerializeToString())


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    HeadersReply: _headers,
    BodyReply: _body,
    StreamedBody: _streamed,
    TrailersReply: _trailers,
    Immediate: _immediate,
}


def _set(mutation: Any, headers: tuple[tuple[str, str], ...]) -> None:
    add = mutation.set_headers.add
    for name, value in headers:
        option = add()
        option.append_action = _OVERWRITE
        header = option.header
        header.key, header.raw_value = name, value.encode("latin-1", "replace")


@lru_cache(maxsize=len(Kind))
def _neutral(kind: Kind) -> bytes:
    message = pb.ProcessingResponse()
    getattr(message, kind).SetInParent()
    return bytes(message.SerializeToString())


@lru_cache(maxsize=1024)
def _context(rest: bytes) -> _Rest | None:
    """What the fields beside headers or a part of a body say; None if protobuf has to see the whole message.

    The messages of one exchange have the same, and mostly those of one endpoint.
    """
    try:
        message = _parse(rest)
    except Exception:
        return None
    return None if message.WhichOneof("request") else _rest_of(message)


def _rest_of(message: Any) -> _Rest:
    modes = _modes(message.protocol_config) if message.HasField("protocol_config") else None
    subset, served = _metadata(message.metadata_context.filter_metadata)
    if served is None and message.attributes:
        served = _upstream(message.attributes)
    return modes, subset, served, message.observability_mode


def _upstream(attributes: Any) -> str | None:
    """The endpoint that serves, as Envoy has it among its own attributes (`response_attributes`)."""
    for named in attributes.values():
        if wire_names.UPSTREAM_ATTRIBUTE in named.fields:
            return named.fields[wire_names.UPSTREAM_ATTRIBUTE].string_value or None
    return None


def _modes(config: Any) -> Modes:
    return Modes(_mode(config.request_body_mode), _mode(config.response_body_mode))


def _mode(number: int) -> BodyMode:
    """The body mode; one that this picker does not know counts as NONE."""
    return BodyMode(number) if number in BodyMode._value2member_map_ else BodyMode.NONE


def _metadata(namespaces: Any) -> tuple[tuple[str, ...] | None, str | None]:
    """Subset hint and served endpoint."""
    subset = served = None
    if wire_names.SUBSET_NAMESPACE in namespaces:
        fields = namespaces[wire_names.SUBSET_NAMESPACE].fields
        subset = _strings(fields[wire_names.SUBSET]) if wire_names.SUBSET in fields else None
    if wire_names.METADATA_NAMESPACE in namespaces:
        fields = namespaces[wire_names.METADATA_NAMESPACE].fields
        served = fields[wire_names.SERVED].string_value or None if wire_names.SERVED in fields else None
    return subset, served


def _strings(value: struct_pb2.Value) -> tuple[str, ...]:
    if value.WhichOneof("kind") == "list_value":
        texts = [item.string_value for item in value.list_value.values]
    else:
        texts = value.string_value.split(",")
    return tuple(text.strip() for text in texts if text.strip())
