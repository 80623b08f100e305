"""What a proxy sends on an ext_proc stream, as protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import struct_pb2

from ballast_conformance import protocol

Pairs: TypeAlias = Sequence[tuple[str, str | bytes]]
"""Headers, in order."""
Metadata: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Fields by namespace."""


def request_headers(
    headers: Pairs,
    *,
    end: bool = False,
    modes: tuple[int, int] | None = (protocol.FULL_DUPLEX_STREAMED, protocol.FULL_DUPLEX_STREAMED),
    metadata: Metadata | None = None,
    early_body: bool = False,
) -> Any:
    """The first message of a stream. `modes`: of the bodies of request and response; None sends no configuration."""
    message = pb.ProcessingRequest(request_headers=_headers(headers, end=end))
    if modes is not None:
        config = message.protocol_config
        config.request_body_mode, config.response_body_mode = modes
        config.send_body_without_waiting_for_header_response = early_body
    return _with(message, metadata)


def request_body(chunk: bytes, *, end: bool = False, metadata: Metadata | None = None) -> Any:
    """A part of the request's body."""
    return _with(pb.ProcessingRequest(request_body=pb.HttpBody(body=chunk, end_of_stream=end)), metadata)


def request_trailers(*, metadata: Metadata | None = None) -> Any:
    """Trailers, which end the request."""
    trailers = pb.HttpTrailers(trailers=_map((("x-checksum", "1"),)))
    return _with(pb.ProcessingRequest(request_trailers=trailers), metadata)


def response_headers(
    headers: Pairs,
    *,
    end: bool = False,
    metadata: Metadata | None = None,
) -> Any:
    """The head of the endpoint's answer."""
    return _with(pb.ProcessingRequest(response_headers=_headers(headers, end=end)), metadata)


def response_body(chunk: bytes, *, end: bool = False) -> Any:
    """A part of the answer's body."""
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=chunk, end_of_stream=end))


def response_trailers() -> Any:
    """Trailers, which end the answer."""
    return pb.ProcessingRequest(response_trailers=pb.HttpTrailers(trailers=_map((("x-checksum", "1"),))))


def with_attributes(message: Any) -> Any:
    """The message, with attributes that no picker knows."""
    unknown = struct_pb2.Struct()
    unknown.update({"request.path": "/nowhere", "of.the.future": {"a": [1, None, "x"]}})
    for name in ("envoy.filters.http.ext_proc", "of.another.filter"):
        message.attributes[name].CopyFrom(unknown)
    return message


def subset(endpoints: Sequence[str] | str) -> Metadata:
    """Metadata with a subset hint: a list as the protocol has it, or one string."""
    value = endpoints if isinstance(endpoints, str) else list(endpoints)
    return {protocol.SUBSET_NAMESPACE: {protocol.SUBSET: value}}


def served(endpoint: str) -> Metadata:
    """Metadata that names the endpoint that served."""
    return {protocol.NAMESPACE: {protocol.SERVED: endpoint}}


def _headers(headers: Pairs, *, end: bool) -> Any:
    return pb.HttpHeaders(headers=_map(headers), end_of_stream=end)


def _map(headers: Pairs) -> Any:
    raw = ((name, value.encode() if isinstance(value, str) else value) for name, value in headers)
    return base_pb2.HeaderMap(headers=[base_pb2.HeaderValue(key=name, raw_value=value) for name, value in raw])


def _with(message: Any, metadata: Metadata | None) -> Any:
    for namespace, fields in (metadata or {}).items():
        content = struct_pb2.Struct()
        content.update(fields)
        message.metadata_context.filter_metadata[namespace].CopyFrom(content)
    return message
