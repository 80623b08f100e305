"""OpenTelemetry: who is sampled, and the way of spans to a collector. Nothing here waits on the event loop.

The loop puts finished spans into a bounded queue (`BatchSpanProcessor`), whose own thread encodes and sends them. What
finds the queue full is dropped, with a warning in the log. Sampler, resource, queue and exporter are the SDK's: what
the settings leave out comes from its environment variables (`OTEL_*`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Final, NamedTuple

from opentelemetry import context as contexts
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ballast_core.model import RequestId
from ballast_core.model.effects import Dispatch, Effect, Handoff, Hold, Reject
from ballast_gateway.records import RequestRecord
from ballast_gateway.spans import RecordedTrace, Span, Trace, Value
from ballast_gateway.tracing.protobuf import ProtobufSpanExporter

_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""`gen_ai.operation.name` of paths, as far as the conventions have one."""
_OTHER_OPERATION: Final = "generate_content"
_ERRORS: Final = frozenset({"failed", "rejected"})
"""Outcomes that are ours, not the client's."""
_PATH: Final = "/v1/traces"
_FLUSH_S: Final = 2.0
"""For spans that are still queued when the process ends."""
_MOST_STATE_CHARS: Final = 1024
_RECORDED: Final = otel.TraceFlags(otel.TraceFlags.SAMPLED)
_NOT_RECORDED: Final = otel.TraceFlags(otel.TraceFlags.DEFAULT)
_NOWHERE: Final = contexts.Context()
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_QUOTING: Final = ("opentelemetry.trace.span", "opentelemetry.trace.propagation.tracecontext")
"""Loggers that warn of what clients write, and quote it."""


class _Context(NamedTuple):
    """Where a recorded request belongs."""

    trace_id: int
    state: otel.TraceState
    parent: otel.SpanContext | None


class Tracing:
    """Makes the traces of one gateway or agent, and sends them."""

    def __init__(
        self,
        *,
        service: str,
        instance: str,
        endpoint: str | None,
        protobuf: bool,
        sample_ratio: float | None,
        follow_clients: bool,
        now_s: Callable[[], float],
        unix_s: float,
    ) -> None:
        """`endpoint`: base URL of an OTLP/HTTP receiver, which gets `protobuf` or JSON; `sample_ratio`: of traces that
        begin here; where they are None the environment says. `follow_clients`: a request with a trace context belongs
        to its caller's trace, and is recorded if that is. `unix_s` plus `now_s` gives seconds since 1970."""
        for name in _QUOTING:
            logging.getLogger(name).setLevel(logging.ERROR)
        sampler = None if sample_ratio is None else ParentBased(TraceIdRatioBased(sample_ratio))
        self._provider = TracerProvider(sampler, _resource(service, instance), shutdown_on_exit=False)
        self._sampler = self._provider.sampler
        self._resource = self._provider.resource
        url = None if endpoint is None else endpoint.rstrip("/").removesuffix(_PATH) + _PATH
        self._processor = BatchSpanProcessor(ProtobufSpanExporter(url) if protobuf else OTLPSpanExporter(url))
        self._provider.add_span_processor(self._processor)
        self._follow_clients = follow_clients
        self._now_s = now_s
        self._unix_ns = int(1e9 * unix_s)
        self._scope = InstrumentationScope("ballast", version("ballast"))
        self._of: dict[str, RecordedTrace] = {}
        """Those in flight of which the Director knows."""

    # --- making -----------------------------------------------------------------------------------------------------

    def begin(self, parents: list[str], states: list[str]) -> Trace:
        """The trace of a request with these values of `traceparent` and `tracestate`. What is no trace context begins a
        trace of its own."""
        before = self._parent(parents, states) if parents and self._follow_clients else _NOWHERE
        remote = None
        if before is not _NOWHERE:
            remote = otel.get_current_span(before).get_span_context()
            remote = remote if remote.is_valid else None
        trace_id = remote.trace_id if remote is not None else self._provider.id_generator.generate_trace_id()
        sampled = self._sampler.should_sample(before, trace_id, "request", otel.SpanKind.SERVER)
        state = sampled.trace_state or otel.TraceState()
        lines = f"tracestate: {state.to_header()}\r\n" if state else ""
        if sampled.decision is not Decision.RECORD_AND_SAMPLE:
            span_id = remote.span_id if remote is not None else self._provider.id_generator.generate_span_id()
            return Trace(_lines(trace_id, span_id, _NOT_RECORDED, lines))
        return RecordedTrace(
            _Context(trace_id, state, remote),
            now_s=self._now_s,
            header_of=lambda span_id: _lines(trace_id, span_id, _RECORDED, lines),
        )

    def begin_by(self, headers: Iterable[tuple[bytes, bytes]]) -> Trace:
        """The same, by a request's headers."""
        parents, states = [], []
        for name, value in headers:
            if name == b"traceparent":
                parents.append(value.decode("latin-1"))
            elif name == b"tracestate":
                states.append(value.decode("latin-1"))
        return self.begin(parents, states)

    def expect(self, request_id: RequestId, trace: Trace) -> None:
        """The Director is about to be asked about this request."""
        if isinstance(trace, RecordedTrace):
            trace.request_id = request_id
            trace.arrived(self._now_s())
            self._of[request_id] = trace

    def effect(self, effect: Effect, now_s: float) -> None:
        """A listener of the driver's effects: what was decided, and how long that took."""
        if isinstance(effect, Dispatch | Handoff | Hold | Reject):
            trace = self._of.get(effect.request_id)
            if trace is None:
                return
            if isinstance(effect, Dispatch | Handoff):
                trace.placed(effect, now_s, self._now_s())
            elif isinstance(effect, Hold):
                trace.held(now_s)
            else:
                trace.rejected(now_s)

    def _parent(self, parents: list[str], states: list[str]) -> contexts.Context:
        if len(parents) != 1:
            return _NOWHERE
        carrier, state = {"traceparent": parents[0].strip()}, ",".join(states)
        if state and len(state) <= _MOST_STATE_CHARS and state.isascii():
            carrier["tracestate"] = state
        return _PROPAGATOR.extract(carrier, _NOWHERE)

    # --- sending ----------------------------------------------------------------------------------------------------

    def ended(self, record: RequestRecord) -> None:
        """A request has ended: its spans, if it is recorded, are queued."""
        trace = record.trace
        if not isinstance(trace, RecordedTrace):
            return
        self._of.pop(trace.request_id, None)
        context = trace.context
        assert isinstance(context, _Context)
        error = record.reason if record.outcome in _ERRORS else ""
        trace.end(record.ended_s, error)
        own = self._context(context, trace.id)
        operation = _OPERATIONS.get(record.path, _OTHER_OPERATION)
        first_s = record.first_token_s
        events = () if first_s is None else (Event("first token", timestamp=self._ns(first_s)),)
        request = self._readable(
            f"{operation} {record.model}".rstrip(),
            own,
            context.parent,
            (record.arrived_s, record.ended_s),
            _attributes(record, operation),
            kind=otel.SpanKind.SERVER,
            error=error,
            events=events,
        )
        children = {span.id: self._context(context, span.id) for span in trace.spans}
        for span in trace.spans:
            self._processor.on_end(self._child(span, children[span.id], children.get(span.parent, own)))
        self._processor.on_end(request)

    def _child(self, span: Span, context: otel.SpanContext, parent: otel.SpanContext) -> ReadableSpan:
        kind = otel.SpanKind.CLIENT if span.outbound else otel.SpanKind.INTERNAL
        said = span.attributes
        if span.outbound:
            host, _, port = str(said["server.address"]).rpartition(":")
            if port.isdecimal():  # an address that a client wrote may have none
                said |= {"server.address": host.strip("[]"), "server.port": int(port)}
        times_s = span.start_s, span.end_s
        return self._readable(span.name, context, parent, times_s, said, kind=kind, error=span.error)

    def _readable(
        self,
        name: str,
        context: otel.SpanContext,
        parent: otel.SpanContext | None,
        times_s: tuple[float, float],
        attributes: dict[str, Value],
        *,
        kind: otel.SpanKind,
        error: str,
        events: tuple[Event, ...] = (),
    ) -> ReadableSpan:
        status = _FINE
        if error:
            status = otel.Status(otel.StatusCode.ERROR, error)
            attributes["error.type"] = error
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            attributes,
            events,
            kind=kind,
            status=status,
            start_time=self._ns(times_s[0]),
            end_time=self._ns(times_s[1]),
            instrumentation_scope=self._scope,
        )

    def _context(self, of: _Context, span_id: int) -> otel.SpanContext:
        return otel.SpanContext(of.trace_id, span_id, is_remote=False, trace_flags=_RECORDED, trace_state=of.state)

    def _ns(self, at_s: float) -> int:
        return int(1e9 * at_s) + self._unix_ns

    async def close(self) -> None:
        """Send what is queued, for a moment."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _FLUSH_S
        while ending.is_alive() and loop.time() < until_s:  # noqa: ASYNC110 - a thread sets no event of ours
            await asyncio.sleep(0.01)


_FINE: Final = otel.Status(otel.StatusCode.UNSET)


def is_disabled() -> bool:
    """Whether the environment forbids it (`OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER=none`)."""
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return disabled or os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"


def _resource(service: str, instance: str) -> Resource:
    """The environment's words win, where it has some."""
    ours = {"service.version": version("ballast"), "service.instance.id": instance, "service.name": service}
    said = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in ours.items() if name not in said})


def _lines(trace_id: int, span_id: int, flags: otel.TraceFlags, state: str) -> bytes:
    return f"traceparent: 00-{trace_id:032x}-{span_id:016x}-{flags:02x}\r\n{state}".encode()


def _attributes(record: RequestRecord, operation: str) -> dict[str, Value]:
    said: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "vllm",
        "gen_ai.usage.input_tokens": record.measured_prompt_tokens or record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "http.request.method": "POST",
        "url.path": record.path,
        "ballast.request_id": record.id,
        "ballast.outcome": record.outcome,
        "ballast.stream": record.stream,
    }
    if record.model:
        said["gen_ai.request.model"] = record.model
    if record.status:
        said["http.response.status_code"] = record.status
    if record.asked is not None and record.asked.max_output_tokens is not None:
        said["gen_ai.request.max_tokens"] = record.asked.max_output_tokens
    where_it_applies: dict[str, Value] = {
        "ballast.prefill": record.prefill,
        "ballast.decode": record.decode,
        "ballast.cut_tokens": record.cut_tokens,
        "ballast.retries": record.retries,
        "ballast.rescues": record.rescues,
        "ballast.moves": len(record.moves),
        "ballast.objective": "" if record.objective is None else record.objective.name,
        "ballast.reason": record.reason,
    }
    said |= {name: value for name, value in where_it_applies.items() if value}
    if record.met is not None:
        said["ballast.objective.met"] = record.met
    if record.ttft_s is not None:
        said["ballast.ttft_s"] = round(record.ttft_s, 6)
    return said
