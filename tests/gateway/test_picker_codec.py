"""ext_proc messages from and to real protobuf bytes, and the subset hint in every spelling."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import json_format, struct_pb2
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ballast_gateway.picker import codec
from ballast_gateway.picker.messages import (
    CHUNK_BYTES,
    BodyMode,
    BodyReply,
    HeaderChange,
    HeadersReply,
    Immediate,
    Kind,
    Modes,
    StreamedBody,
    TrailersReply,
)
from ballast_gateway.picker.subset import allowed, binding


def request(**fields: Any) -> bytes:
    return bytes(pb.ProcessingRequest(**fields).SerializeToString())


def metadata(namespace: str, key: str, value: Any) -> Any:
    fields = struct_pb2.Struct()
    fields.update({key: value})
    return base_pb2.Metadata(filter_metadata={namespace: fields})


def response(raw: bytes) -> Any:
    return json_format.MessageToDict(pb.ProcessingResponse.FromString(raw), preserving_proto_field_name=True)


def test_headers_come_lowercased_from_either_value_field() -> None:
    """Envoy fills `raw_value`, older proxies `value`."""
    headers = base_pb2.HeaderMap(
        headers=[
            base_pb2.HeaderValue(key="X-A", raw_value="caf\u00e9".encode("latin-1")),
            base_pb2.HeaderValue(key="x-b", value="two"),
        ]
    )
    message = codec.decode(request(request_headers=pb.HttpHeaders(headers=headers, end_of_stream=True)))
    assert message.kind is Kind.REQUEST_HEADERS
    assert message.headers == {"x-a": "caf\u00e9", "x-b": "two"}
    assert message.end_of_stream
    assert message.modes is None


@pytest.mark.parametrize(("number", "mode"), [*((int(mode), mode) for mode in BodyMode), (77, BodyMode.NONE)])
def test_modes_are_read_and_newer_ones_are_not_fatal(number: int, mode: BodyMode) -> None:
    """An unknown mode is treated like NONE."""
    config = pb.ProtocolConfiguration(request_body_mode=number, response_body_mode=BodyMode.STREAMED)
    message = codec.decode(request(request_body=pb.HttpBody(body=b"x"), protocol_config=config))
    assert message.modes == Modes(mode, BodyMode.STREAMED)
    assert message.body == b"x"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["10.0.0.1:80", "[::1]:80"], ("10.0.0.1:80", "[::1]:80")),
        ("10.0.0.1:80, [::1]:80", ("10.0.0.1:80", "[::1]:80")),
        ([], ()),
        ("", ()),
    ],
    ids=["list", "string", "empty list", "empty string"],
)
def test_the_subset_hint_comes_as_list_or_string(value: Any, expected: tuple[str, ...]) -> None:
    """An empty hint is a hint: it allows nothing."""
    context = metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", value)
    raw = request(request_headers=pb.HttpHeaders(), metadata_context=context)
    assert codec.decode(raw).subset == expected


def test_the_served_endpoint_is_read() -> None:
    """Of the response phase; without metadata there is neither hint nor feedback."""
    context = metadata("envoy.lb", "x-gateway-destination-endpoint-served", "10.0.0.1:80")
    assert codec.decode(request(response_headers=pb.HttpHeaders(), metadata_context=context)).served == "10.0.0.1:80"
    bare = codec.decode(request(response_headers=pb.HttpHeaders()))
    assert (bare.subset, bare.served) == (None, None)


def test_the_served_endpoint_is_read_from_envoys_own_attributes_too() -> None:
    """Envoy writes no such metadata, but its ext_proc filter sends attributes. What a proxy says in metadata wins."""
    attributes = {"envoy.filters.http.ext_proc": struct_pb2.Struct()}
    attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "[::1]:80", "response.code": 200})
    told = request(response_headers=pb.HttpHeaders(), attributes=attributes)
    assert codec.decode(told).served == "[::1]:80"
    context = metadata("envoy.lb", "x-gateway-destination-endpoint-served", "10.0.0.1:80")
    both = request(response_headers=pb.HttpHeaders(), attributes=attributes, metadata_context=context)
    assert codec.decode(both).served == "10.0.0.1:80"


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_a_value_error(raw: bytes) -> None:
    """A broken peer must not break more than its own stream."""
    with contextlib.suppress(ValueError):
        codec.decode(raw)


READ_BY_HAND = [Kind.REQUEST_HEADERS, Kind.RESPONSE_HEADERS, Kind.REQUEST_BODY, Kind.RESPONSE_BODY]


def by_protobuf(raw: bytes) -> tuple[object, ...] | None:
    """What a message of these kinds says, read by protobuf alone; None if it is none."""
    try:
        message = pb.ProcessingRequest.FromString(raw)
    except DecodeError:
        return None
    field = message.WhichOneof("request")
    if field not in READ_BY_HAND:
        return None
    part, hints = getattr(message, field), message.metadata_context.filter_metadata
    subset = hints["envoy.lb.subset_hint"].fields if "envoy.lb.subset_hint" in hints else {}
    name = "x-gateway-destination-endpoint-subset"
    if isinstance(part, pb.HttpBody):
        content, end = part.body, part.end_of_stream or part.end_of_stream_without_message
    else:
        content, end = {}, part.end_of_stream
        for header in part.headers.headers:
            content[header.key.lower()] = header.raw_value.decode("latin-1") or header.value
    return (
        field,
        content,
        end,
        message.HasField("protocol_config"),
        subset[name].string_value if name in subset else None,
        message.observability_mode,
    )


def by_codec(raw: bytes) -> tuple[object, ...] | None:
    """The same by ours."""
    try:
        message = codec.decode(raw)
    except ValueError:
        return None
    if message.kind not in READ_BY_HAND:
        return None
    content = message.body if message.kind in READ_BY_HAND[2:] else message.headers
    subset = None if message.subset is None else ",".join(message.subset)
    return message.kind, content, message.end_of_stream, message.modes is not None, subset, message.observe_only


BODIES = st.builds(
    pb.HttpBody,
    body=st.binary(max_size=300) | st.integers(0, 40_000).map(bytes),
    end_of_stream=st.booleans(),
    end_of_stream_without_message=st.sampled_from([False, False, True]),
)
HEADER = st.builds(
    base_pb2.HeaderValue,
    key=st.sampled_from(["", ":path", "X-A", "caf\u00e9", "x" * 200]),
    value=st.sampled_from(["", "", "", "v"]),
    raw_value=st.sampled_from([b"", b"1", "caf\u00e9".encode("latin-1"), b"x" * 127, b"x" * 20_000]),
)
HEADERS = st.builds(
    lambda headers, attributes, **more: pb.HttpHeaders(
        headers=None if headers is None else base_pb2.HeaderMap(headers=headers), attributes=attributes, **more
    ),
    st.none() | st.lists(HEADER, max_size=5),
    st.sampled_from([{}, {}, {"a": struct_pb2.Struct()}]),
    end_of_stream=st.booleans(),
)
OTHER_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "metadata_context": st.sampled_from(
            [
                base_pb2.Metadata(),
                metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", "10.0.0.1:80"),
                metadata("envoy.lb", "x-gateway-destination-endpoint", "10.0.0.1:80"),
                metadata("envoy.lb", "long", "x" * 1000),
            ]
        ),
        "protocol_config": st.just(pb.ProtocolConfiguration(request_body_mode=4)),
        "observability_mode": st.just(True),
    },
)


@given(st.sampled_from(READ_BY_HAND), BODIES, HEADERS, OTHER_FIELDS, st.data())
def test_what_is_read_by_hand_is_what_protobuf_reads(
    kind: Kind, body: Any, headers: Any, others: dict[str, Any], data: Any
) -> None:
    """As sent, cut off, with a byte changed, before another message (protobuf merges them), or reordered."""
    part = body if kind in READ_BY_HAND[2:] else headers
    raw = request(**{kind: part}, **others)
    assert by_codec(raw) == by_protobuf(raw) is not None
    at = data.draw(st.integers(0, min(len(raw) - 1, 24)) | st.integers(0, len(raw) - 1))
    changed = raw[:at] + bytes((data.draw(st.integers(0, 255)),)) + raw[at + 1 :]
    alone, beside = request(**{kind: part}), request(**others)
    for other in (raw[:at], raw[at:], changed, raw + raw, beside + alone, raw + request(request_trailers={})):
        assert by_codec(other) == by_protobuf(other)


@given(
    st.sampled_from([Kind.REQUEST_BODY, Kind.RESPONSE_BODY]),
    st.binary(max_size=300) | st.sampled_from([0, 127, 128, 16_370, 16_384, CHUNK_BYTES, 3_000_000]).map(bytes),
    st.booleans(),
)
def test_a_chunk_has_the_bytes_that_protobuf_writes(kind: Kind, body: bytes, last: bool) -> None:
    """In order of fields, without those at their defaults."""
    chunk = pb.StreamedBodyResponse(body=body, end_of_stream=last)
    common = pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=chunk))
    expected = pb.ProcessingResponse(**{kind: pb.BodyResponse(response=common)}).SerializeToString()
    assert codec.encode(StreamedBody(kind=kind, body=body, end_of_stream=last)) == expected


NAMES = st.sampled_from(["x-a", "x-gateway-destination-endpoint", "x" * 200])
VALUES = st.sampled_from(["", "10.0.0.1:8000", "caf\u00e9", "\u4e2d", "x" * 200])


@given(
    st.sampled_from([Kind.REQUEST_HEADERS, Kind.RESPONSE_HEADERS]),
    st.none() | st.builds(HeaderChange, st.lists(st.tuples(NAMES, VALUES)).map(tuple), st.lists(NAMES).map(tuple)),
    st.none() | st.sampled_from(["10.0.0.1:8000", "[fd00::1]:8000"]),
)
def test_changed_headers_have_the_bytes_that_protobuf_writes(
    kind: Kind, change: HeaderChange | None, destination: str | None
) -> None:
    """Set, removed, and with the endpoint in the metadata."""
    message = pb.ProcessingResponse(**{kind: pb.HeadersResponse()})
    if change is not None or destination is not None:
        getattr(message, kind).response.clear_route_cache = destination is not None
    if change is not None:
        getattr(message, kind).response.header_mutation.SetInParent()
    for name, value in () if change is None else change.set:
        header = base_pb2.HeaderValue(key=name, raw_value=value.encode("latin-1", "replace"))
        option = base_pb2.HeaderValueOption(header=header, append_action="OVERWRITE_IF_EXISTS_OR_ADD")
        getattr(message, kind).response.header_mutation.set_headers.append(option)
    for name in () if change is None else change.remove:
        getattr(message, kind).response.header_mutation.remove_headers.append(name)
    if destination is not None:
        message.dynamic_metadata.update({"envoy.lb": {"x-gateway-destination-endpoint": destination}})
    reply = HeadersReply(kind=kind, change=change, destination=destination)
    assert codec.encode(reply) == message.SerializeToString()


def test_a_routing_answer_names_the_endpoint_in_header_and_metadata() -> None:
    """The header overwrites whatever is there; the route is chosen anew."""
    change = HeaderChange(set=(("x-gateway-destination-endpoint", "a:1"),), remove=("x-b",))
    answer = response(codec.encode(HeadersReply(kind=Kind.REQUEST_HEADERS, change=change, destination="a:1")))
    common = answer["request_headers"]["response"]
    (header,) = common["header_mutation"]["set_headers"]
    assert header["append_action"] == "OVERWRITE_IF_EXISTS_OR_ADD"
    assert header["header"]["key"] == "x-gateway-destination-endpoint"
    assert common["header_mutation"]["remove_headers"] == ["x-b"]
    assert common["clear_route_cache"]
    assert answer["dynamic_metadata"] == {"envoy.lb": {"x-gateway-destination-endpoint": "a:1"}}


@pytest.mark.parametrize("kind", list(Kind))
def test_a_neutral_answer_changes_nothing(kind: Kind) -> None:
    """An empty message of the kind that was asked."""
    replies = {"headers": HeadersReply, "body": BodyReply, "trailers": TrailersReply}
    reply = replies[kind.value.partition("_")[2]](kind=kind)
    assert response(codec.encode(reply)) == {kind.value: {}}


def test_bodies_are_replaced_cleared_or_streamed() -> None:
    """An empty replacement is said by `clear_body`."""
    body, gone = (codec.encode(BodyReply(kind=Kind.REQUEST_BODY, body=text)) for text in (b"x", b""))
    assert response(body)["request_body"]["response"]["body_mutation"] == {"body": "eA=="}
    assert response(gone)["request_body"]["response"]["body_mutation"] == {"clear_body": True}
    chunk = codec.encode(StreamedBody(kind=Kind.RESPONSE_BODY, body=b"x", end_of_stream=True))
    streamed = response(chunk)["response_body"]["response"]["body_mutation"]["streamed_response"]
    assert streamed == {"body": "eA==", "end_of_stream": True}


def test_an_immediate_answer_carries_status_headers_and_body() -> None:
    """Its reason goes into Envoy's access log as a detail."""
    answer = response(codec.encode(Immediate(429, (("retry-after", "1"),), b"{}", "saturated")))["immediate_response"]
    assert answer["status"] == {"code": "TooManyRequests"}
    assert answer["details"] == "ballast_saturated"
    assert answer["headers"]["set_headers"][0]["header"]["key"] == "retry-after"


KNOWN = ("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000", "pod.ns.svc:8000")


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (["10.0.0.1:8000"], {"10.0.0.1:8000"}),
        (["10.0.0.1"], {"10.0.0.1:8000", "10.0.0.1:8001"}),
        (["[fd00:0:0::1]:8000"], {"[fd00::1]:8000"}),
        (["fd00::1"], {"[fd00::1]:8000"}),
        (["[FD00::1]"], {"[fd00::1]:8000"}),
        (["POD.ns.svc:8000"], {"pod.ns.svc:8000"}),
        (["10.0.0.2:8001", "10.0.0.9:8000", "nonsense", ":", "[", ""], set()),
        ([], set()),
    ],
)
def test_the_hint_allows_known_endpoints_only(hint: list[str], expected: set[str]) -> None:
    """With ports, without, and in other spellings of the same IPv6 address."""
    assert allowed(hint, KNOWN) == expected


def test_the_hint_binds_to_endpoints_that_are_not_ready_yet_as_they_would_be_spelled() -> None:
    """Where it has their ports."""
    hint = ["10.0.0.1", "[FD00:0::7]:80", "10.0.0.9:8000", "10.0.0.8", "nonsense"]
    assert binding(hint, KNOWN) == {"10.0.0.1:8000", "10.0.0.1:8001", "[fd00::7]:80", "10.0.0.9:8000"}
