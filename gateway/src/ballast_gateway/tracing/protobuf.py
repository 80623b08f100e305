"""OTLP's messages for traces in protobuf, written from spans as the SDK has them (opentelemetry/proto/trace/v1).

Of our own, because no package that brings these messages can be installed beside the picker's (ADR 39); they are a
dozen, and frozen since OTLP 1.0. Sending, with its retries, headers and certificates, is the SDK's exporter's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import Link, SpanContext

CONTENT_TYPE: Final = "application/x-protobuf"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KNOWS_REMOTE, _IS_REMOTE = 0x100, 0x200
"""Bits of a span's flags: whether it is known that its parent is of another process, and whether it is."""


class ProtobufSpanExporter(OTLPSpanExporter):
    """The SDK's exporter with another body."""

    def __init__(self, endpoint: str | None) -> None:
        super().__init__(endpoint, headers={"content-type": CONTENT_TYPE, "user-agent": "OTel-OTLP-Exporter-Ballast"})

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them; called on the queue's thread."""
        if self._shutdown:
            return SpanExportResult.FAILURE
        sent = self._client.export(request_of(spans))
        return SpanExportResult.SUCCESS if sent.success else SpanExportResult.FAILURE


def request_of(spans: Sequence[ReadableSpan]) -> bytes:
    """An `ExportTraceServiceRequest`."""
    groups: dict[tuple[int, int], list[ReadableSpan]] = {}
    for span in spans:
        groups.setdefault((id(span.resource), id(span.instrumentation_scope)), []).append(span)
    return b"".join(_bytes(1, _of_resource(group)) for group in groups.values())


def _of_resource(spans: Sequence[ReadableSpan]) -> bytes:
    """`ResourceSpans` of spans that share resource and scope."""
    resource, scope = spans[0].resource, spans[0].instrumentation_scope
    named = b""
    if scope is not None:
        named = _text(1, scope.name) + _text(2, scope.version) + _attributes(3, scope.attributes)
    scope_url = "" if scope is None else scope.schema_url
    of_scope = _bytes(1, named) + b"".join(_bytes(2, _span(span)) for span in spans) + _text(3, scope_url)
    return _bytes(1, _attributes(1, resource.attributes)) + _bytes(2, of_scope) + _text(3, resource.schema_url)


def _span(span: ReadableSpan) -> bytes:
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    return b"".join(
        (
            _bytes(1, context.trace_id.to_bytes(16, "big")),
            _bytes(2, context.span_id.to_bytes(8, "big")),
            _text(3, context.trace_state.to_header()),
            b"" if parent is None else _bytes(4, parent.span_id.to_bytes(8, "big")),
            _text(5, span.name),
            _number(6, span.kind.value + 1),
            _fixed64(7, span.start_time or 0),
            _fixed64(8, span.end_time or 0),
            _attributes(9, span.attributes),
            _number(10, span.dropped_attributes),
            b"".join(_bytes(11, _event(event)) for event in span.events),
            _number(12, span.dropped_events),
            b"".join(_bytes(13, _link(link)) for link in span.links),
            _number(14, span.dropped_links),
            _bytes(15, _text(2, span.status.description) + _number(3, span.status.status_code.value)),
            _flags(16, parent),
        )
    )


def _event(event: Event) -> bytes:
    attributes = _attributes(3, event.attributes)
    return _fixed64(1, event.timestamp) + _text(2, event.name) + attributes + _number(4, event.dropped_attributes)


def _link(link: Link) -> bytes:
    context = link.context
    ids = _bytes(1, context.trace_id.to_bytes(16, "big")) + _bytes(2, context.span_id.to_bytes(8, "big"))
    rest = _attributes(4, link.attributes) + _number(5, link.dropped_attributes)
    return ids + _text(3, context.trace_state.to_header()) + rest + _flags(6, context)


def _flags(field: int, context: SpanContext | None) -> bytes:
    remote = _IS_REMOTE if context is not None and context.is_remote else 0
    return _varint(field << 3 | _FIXED32) + struct.pack("<I", _KNOWS_REMOTE | remote)


# --- values ----------------------------------------------------------------------------------------------------------


def _attributes(field: int, attributes: Mapping[str, Any] | None) -> bytes:
    return b"".join(_bytes(field, _pair(key, value)) for key, value in (attributes or {}).items())


def _pair(key: str, value: Any) -> bytes:
    return _text(1, key) + _bytes(2, _value(value))


def _value(value: Any) -> bytes:
    """An `AnyValue`; what the SDK lets into attributes is one of these."""
    match value:
        case bool():
            return _varint(2 << 3 | _VARINT) + _varint(int(value))
        case str():
            return _bytes(1, value.encode(errors="replace"))
        case int():
            return _varint(3 << 3 | _VARINT) + _varint(value & (1 << 64) - 1)
        case float():
            return _varint(4 << 3 | _FIXED64) + struct.pack("<d", value)
        case bytes():
            return _bytes(7, value)
        case Mapping():
            return _bytes(6, _attributes(1, value))
        case Sequence():
            return _bytes(5, b"".join(_bytes(1, _value(each)) for each in value))
        case _:
            return b""


# --- the wire --------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _text(field: int, text: str | None) -> bytes:
    """Empty text is the default: it is left out."""
    return _bytes(field, text.encode(errors="replace")) if text else b""


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(number) if number else b""


def _fixed64(field: int, number: int) -> bytes:
    return _varint(field << 3 | _FIXED64) + struct.pack("<Q", number)
