"""Spans in protobuf, read by OpenTelemetry's own messages: what they say is what the JSON of its exporter says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.json.common._internal.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from ballast_api.errors import InvalidInput
from ballast_gateway.tracing.protobuf import request_of
from tests.gateway.test_tracing import BODY, by_name, post, receiver, the_request, traced
from tests.support.gateway_kit import running_gateway, until
from tests.support.otlp import OFFICIAL, Receiver, from_protobuf
from tests.support.scripted_engine import decode_script, scripted_engine

__all__ = ["receiver"]

needs_official = pytest.mark.skipif(
    OFFICIAL is None and os.environ.get("CI") != "true",
    reason="no messages of OpenTelemetry's: make test installs them",
)
BIG = (1 << 63) - 1
ATTRIBUTES: dict[str, Any] = {
    "text": "Grüße \U0001f600",
    "empty": "",
    "yes": True,
    "no": False,
    "zero": 0,
    "most": BIG,
    "least": -BIG - 1,
    "real": -0.25,
    "list": ("a", "b"),
    "numbers": (1, -2),
}


def context(trace: int, span: int, *, remote: bool = False, state: TraceState | None = None) -> SpanContext:
    return SpanContext(trace, span, remote, TraceFlags(1), state)


def spans() -> list[ReadableSpan]:
    """One of everything, in two resources and three scopes."""
    resources = [Resource({"service.name": "one"}), Resource({"service.name": "two"}, schema_url="https://schema")]
    scopes = [InstrumentationScope("ballast", "1.2"), InstrumentationScope("other", None, "https://scope"), None]
    state = TraceState([("vendor", "value"), ("other", "1")])
    link = Link(context(BIG, 5, remote=True), {"why": "linked"})
    events = (Event("first token", ATTRIBUTES, timestamp=BIG), Event("none", {}, timestamp=1))
    more: list[dict[str, Any]] = [
        {"kind": SpanKind.SERVER, "attributes": ATTRIBUTES, "events": events, "links": (link,)},
        {"kind": SpanKind.CLIENT, "status": Status(StatusCode.ERROR, "no such\nengine"), "parent": context(7, 8)},
        {"parent": context(7, 9, remote=True), "status": Status(StatusCode.OK)},
    ]
    return [
        ReadableSpan(
            f"span {number}",
            context((1 << 128) - 1 - number, number + 1, state=state if number else None),
            resource=resources[number % 2],
            instrumentation_scope=scopes[number],
            start_time=BIG - 1,
            end_time=BIG,
            **each,
        )
        for number, each in enumerate(more)
    ]


def plain(value: Any) -> Any:
    """Without what JSON writes in several ways: defaults that are written or left out, numbers or text."""
    match value:
        case dict():
            kept = {name: plain(each) for name, each in value.items()}
            return {name: each for name, each in kept.items() if each not in ("0", "", [], {}, None)}
        case list():
            return [plain(each) for each in value]
        case bool():
            return value or None
        case int() | float():
            return str(value)
    return value


def by_span(request: dict[str, Any]) -> dict[str, Any]:
    """Each span with its scope and resource."""
    return {
        span["spanId"]: plain(
            {
                "span": span,
                "scope": [of_scope.get("scope"), of_scope.get("schemaUrl")],
                "resource": [of_resource["resource"], of_resource.get("schemaUrl")],
            }
        )
        for of_resource in request["resourceSpans"]
        for of_scope in of_resource["scopeSpans"]
        for span in of_scope["spans"]
    }


@needs_official
def test_the_messages_say_what_the_json_of_the_same_spans_says() -> None:
    """Ids, times, kinds, flags, states, values of each kind, events, links and errors; the least and the greatest."""
    [read] = from_protobuf([request_of(spans())])
    official = by_span(json.loads(encode_spans(spans()).to_json()))
    assert len(official) == 3
    assert by_span(read) == official


@needs_official
async def test_a_request_reaches_a_receiver_of_protobuf(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the setting, compressed as the environment asks; its spans are those that JSON would have brought."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    async with scripted_engine(decode_script) as engine:
        async with traced(engine, tmp_path, receiver, tracing={"protocol": "http/protobuf"}) as gateway:
            assert (await post(gateway, BODY)).status_code == 200
            await until(lambda: receiver.protobuf)
        for request in from_protobuf(receiver.protobuf):
            receiver.read(request)
    root = await the_request(receiver)
    assert root.name == "text_completion tiny"
    assert root.events.keys() == {"first token"}
    assert {"queue", "decide", "decode"} <= by_name(receiver, root).keys()
    assert receiver.headers[0]["content-type"] == "application/x-protobuf"


async def test_the_environment_names_the_protocol_and_one_that_is_not_spoken_is_said(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    async with scripted_engine(decode_script) as engine:
        async with traced(engine, tmp_path, receiver) as gateway:
            await post(gateway, BODY)
        assert receiver.protobuf
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    with pytest.raises(
        InvalidInput, match=r"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'grpc'; .* http/json or http/protobuf"
    ):
        async with running_gateway(tmp_path, {}, tracing={}):
            pass
