"""ext_proc messages from and to protobuf bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.type.v3 import http_status_pb2
from google.protobuf import struct_pb2

from ballast_api import wire_names
from ballast_gateway.picker.messages import (
    BodyMode,
    BodyReply,
    HeaderChange,
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

_KINDS: Final = {kind.value: kind for kind in Kind}
_OVERWRITE: Final = base_pb2.HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD


def decode(raw: bytes) -> Inbound:
    """One `ProcessingRequest`. Raises `ValueError` if it is none."""
    try:
        message = pb.ProcessingRequest.FromString(raw)
    except Exception as error:  # protobuf's own DecodeError has no common name across its implementations
        raise ValueError(f"no ext_proc ProcessingRequest: {error}") from error
    field = message.WhichOneof("request")
    if field is None:
        raise ValueError("an ext_proc ProcessingRequest without a request")
    kind = _KINDS[field]
    part = getattr(message, field)
    headers: dict[str, str] = {}
    body, end_of_stream = b"", False
    match kind:
        case Kind.REQUEST_HEADERS | Kind.RESPONSE_HEADERS:
            headers = {h.key.lower(): h.raw_value.decode("latin-1") or h.value for h in part.headers.headers}
            end_of_stream = part.end_of_stream
        case Kind.REQUEST_BODY | Kind.RESPONSE_BODY:
            body, end_of_stream = part.body, part.end_of_stream or part.end_of_stream_without_message
        case Kind.REQUEST_TRAILERS | Kind.RESPONSE_TRAILERS:
            end_of_stream = True
    subset, served = _metadata(message)
    return Inbound(
        kind=kind,
        headers=headers,
        body=body,
        end_of_stream=end_of_stream,
        modes=_modes(message.protocol_config) if message.HasField("protocol_config") else None,
        subset=subset,
        served=served,
        observe_only=message.observability_mode,
    )


def encode(reply: Reply) -> bytes:
    """One `ProcessingResponse`."""
    match reply:
        case HeadersReply(change=None, destination=None) | BodyReply(body=None, change=None, destination=None):
            return _neutral(reply.kind)
        case TrailersReply(destination=None):
            return _neutral(reply.kind)
        case Immediate():
            return _immediate(reply)
    kind, destination, part = reply.kind.value, None, _part(reply)
    if not isinstance(reply, StreamedBody):
        destination = reply.destination
    message = pb.ProcessingResponse(**{kind: part})
    if destination is not None:
        message.dynamic_metadata.CopyFrom(_destination(destination))
    return bytes(message.SerializeToString())


def _part(reply: HeadersReply | BodyReply | StreamedBody | TrailersReply) -> Any:
    match reply:
        case HeadersReply(change=change, destination=destination):
            return pb.HeadersResponse(
                response=pb.CommonResponse(header_mutation=_mutation(change), clear_route_cache=destination is not None)
            )
        case StreamedBody(body=chunk, end_of_stream=end):
            streamed = pb.StreamedBodyResponse(body=chunk, end_of_stream=end)
            return pb.BodyResponse(
                response=pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=streamed))
            )
        case BodyReply(change=change, destination=destination):
            return pb.BodyResponse(
                response=pb.CommonResponse(
                    header_mutation=_mutation(change),
                    body_mutation=_replacement(reply.body),
                    clear_route_cache=destination is not None,
                )
            )
        case TrailersReply():
            return pb.TrailersResponse()


def _replacement(body: bytes | None) -> Any:
    if body is None:
        return None
    return pb.BodyMutation(body=body) if body else pb.BodyMutation(clear_body=True)


def _mutation(change: HeaderChange | None) -> Any:
    if change is None:
        return None
    return pb.HeaderMutation(
        set_headers=[_header(name, value) for name, value in change.set], remove_headers=change.remove
    )


def _header(name: str, value: str) -> Any:
    return base_pb2.HeaderValueOption(
        header=base_pb2.HeaderValue(key=name, raw_value=value.encode("latin-1", "replace")), append_action=_OVERWRITE
    )


def _immediate(reply: Immediate) -> bytes:
    message = pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=http_status_pb2.HttpStatus(code=reply.status),
            headers=pb.HeaderMutation(set_headers=[_header(name, value) for name, value in reply.headers]),
            body=reply.body,
            details=f"ballast_{reply.reason}",
        )
    )
    return bytes(message.SerializeToString())


@lru_cache(maxsize=len(Kind))
def _neutral(kind: Kind) -> bytes:
    name = kind.value.removeprefix("request_").removeprefix("response_").title()
    return bytes(pb.ProcessingResponse(**{kind.value: getattr(pb, f"{name}Response")()}).SerializeToString())


@lru_cache(maxsize=4096)
def _destination(address: str) -> struct_pb2.Struct:
    metadata = struct_pb2.Struct()
    metadata.update({wire_names.METADATA_NAMESPACE: {wire_names.DESTINATION: address}})
    return metadata


def _modes(config: Any) -> Modes:
    return Modes(_mode(config.request_body_mode), _mode(config.response_body_mode))


def _mode(number: int) -> BodyMode:
    """The body mode; one that this picker does not know counts as NONE."""
    return BodyMode(number) if number in BodyMode._value2member_map_ else BodyMode.NONE


def _metadata(message: Any) -> tuple[tuple[str, ...] | None, str | None]:
    """Subset hint and served endpoint."""
    if not message.HasField("metadata_context"):
        return None, None
    namespaces = message.metadata_context.filter_metadata
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
