"""A picker that keeps to the protocol in all that the suite asks, to be made wrong in one thing at a time.

A class is one stream; its class attributes are the picker that streams share. It runs on grpc.aio.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import struct_pb2
from grpc_health.v1 import health_pb2

ENDPOINTS = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
STREAMED, BUFFERED, DUPLEX = 1, 2, 4
MOST_IN_FLIGHT = 40
CHUNK_BYTES = 60_000
DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"
CONTROL = ("x-prefiller-host-port",)
KNOWN_SERVICES = ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")


class Broken(Exception):
    """The stream fails with gRPC's INTERNAL."""


@dataclass(slots=True)
class Shared:
    """What the streams of one picker share."""

    picks: int = 0
    in_flight: int = 0
    bodies: list[bytes] = field(default_factory=list)
    ill: bool = False
    open: int = 0


class Honest:
    """One stream."""

    services: ClassVar[Sequence[str]] = KNOWN_SERVICES
    watches: ClassVar[bool] = True

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.modes = (DUPLEX, DUPLEX)
        self.head: dict[str, str] | None = None
        self.body = b""
        self.hint: list[str] | None = None
        self.routed = False
        self.over = False

    # --- messages in --------------------------------------------------------------------------------------------

    def take(self, message: Any) -> list[Any]:
        """The replies to one message."""
        if message.observability_mode:
            return []
        kind = message.WhichOneof("request")
        if kind is None:
            raise Broken("no request")
        if message.HasField("protocol_config"):
            config = message.protocol_config
            self.modes = (config.request_body_mode, config.response_body_mode)
        self.read_hint(message)
        replies: list[Any] = getattr(self, f"on_{kind}")(message)
        return replies

    def read_hint(self, message: Any) -> None:
        """The first hint counts."""
        if self.hint is None:
            self.hint = self.hint_of(message)

    def hint_of(self, message: Any) -> list[str] | None:
        namespaces = message.metadata_context.filter_metadata
        if "envoy.lb.subset_hint" not in namespaces:
            return None
        fields = namespaces["envoy.lb.subset_hint"].fields
        return self.entries(fields[SUBSET]) if SUBSET in fields else None

    def entries(self, value: Any) -> list[str] | None:
        if value.WhichOneof("kind") == "list_value":
            return [each.string_value for each in value.list_value.values]
        return [entry.strip() for entry in value.string_value.split(",")]

    def on_request_headers(self, message: Any) -> list[Any]:
        if self.head is not None:
            return [self.neutral("request_headers")]
        self.head = {h.key: h.raw_value.decode("latin-1") for h in message.request_headers.headers.headers}
        if message.request_headers.end_of_stream:
            return self.route(has_body=False)
        if self.modes[0] == DUPLEX:
            return []
        return [self.neutral("request_headers")] if self.modes[0] == BUFFERED else self.route(has_body=True)

    def on_request_body(self, message: Any) -> list[Any]:
        part = message.request_body
        if self.modes[0] == DUPLEX:
            self.body += part.body
            return self.answer() if part.end_of_stream else []
        if self.modes[0] == BUFFERED:
            return self.route(has_body=True, kind="request_body")
        return [self.neutral("request_body")]

    def on_request_trailers(self, message: Any) -> list[Any]:
        return self.answer(trailers=True)

    def on_response_headers(self, message: Any) -> list[Any]:
        return [self.neutral("response_headers")]

    def on_response_body(self, message: Any) -> list[Any]:
        if self.modes[1] != DUPLEX:
            return [self.neutral("response_body")]
        part = message.response_body
        return self.chunks("response_body", part.body, end=part.end_of_stream)

    def on_response_trailers(self, message: Any) -> list[Any]:
        return [self.neutral("response_trailers")]

    async def on_open(self) -> None:
        """The stream has begun; nothing of it is read before this returns."""

    async def on_half_close(self) -> None:
        """The proxy has said all."""

    # --- decisions ----------------------------------------------------------------------------------------------

    def answer(self, *, trailers: bool = False) -> list[Any]:
        """To a whole request in full duplex."""
        if not self.well_formed():
            return self.malformed()
        replies = self.route(has_body=True)
        if not self.routed:
            return replies
        replies += self.chunks("request_body", self.body, end=not trailers)
        return [*replies, self.neutral("request_trailers")] if trailers else replies

    def well_formed(self) -> bool:
        try:
            return isinstance(json.loads(self.body), dict)
        except (ValueError, RecursionError):
            return False

    def malformed(self) -> list[Any]:
        return self.refuse(400)

    def candidates(self, *, has_body: bool) -> list[str]:
        return [each for each in ENDPOINTS if self.hint is None or each in self.hint]

    def route(self, *, has_body: bool, kind: str = "request_headers") -> list[Any]:
        found = self.candidates(has_body=has_body)
        if not found:
            return self.refuse(503)
        if self.shared.in_flight >= MOST_IN_FLIGHT:
            return self.shed()
        self.shared.picks += 1
        at = self.shared.picks % len(found)
        self.routed = True
        self.shared.in_flight += 1
        return self.send_to([*found[at:], *found[:at]][:2], kind)

    def shed(self) -> list[Any]:
        return self.refuse(429)

    # --- replies ------------------------------------------------------------------------------------------------

    def send_to(self, endpoints: list[str], kind: str) -> list[Any]:
        reply = pb.ProcessingResponse()
        common = getattr(reply, kind).response
        for name, value in self.headers(self.named(endpoints)).items():
            header = base_pb2.HeaderValue(key=name, raw_value=value.encode())
            common.header_mutation.set_headers.append(
                base_pb2.HeaderValueOption(header=header, append_action=self.append_action())
            )
        common.header_mutation.remove_headers.extend(self.removed())
        told = self.in_metadata(self.named(endpoints))
        if told is not None:
            content = struct_pb2.Struct()
            content.update({"envoy.lb": {DESTINATION: told}})
            reply.dynamic_metadata.CopyFrom(content)
        return [reply]

    def named(self, endpoints: list[str]) -> str:
        return ",".join(endpoints)

    def headers(self, destination: str) -> dict[str, str]:
        return {DESTINATION: destination}

    def append_action(self) -> Any:
        return base_pb2.HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD

    def removed(self) -> list[str]:
        return [name for name in CONTROL if name in (self.head or {})]

    def in_metadata(self, destination: str) -> str | None:
        return destination

    def chunks(self, kind: str, body: bytes, *, end: bool) -> list[Any]:
        """Chunks of a full-duplex body."""
        parts = [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)] or [b""]
        return [self.chunk(kind, part, end=end and at == len(parts) - 1) for at, part in enumerate(parts)]

    def chunk(self, kind: str, part: bytes, *, end: bool) -> Any:
        reply = pb.ProcessingResponse()
        streamed = getattr(reply, kind).response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = part, end
        return reply

    def neutral(self, kind: str) -> Any:
        reply = pb.ProcessingResponse()
        getattr(reply, kind).SetInParent()
        return reply

    def refuse(self, status: int) -> list[Any]:
        self.over = True
        reply = pb.ProcessingResponse()
        reply.immediate_response.status.code = status
        return [reply]


@dataclass(frozen=True, slots=True)
class Running:
    """A picker that listens."""

    port: int
    shared: Shared


@asynccontextmanager
async def running(kind: Callable[[Shared], Honest], credentials: Any = None) -> AsyncIterator[Running]:
    """A picker of streams of this kind, and health, on one port of loopback."""
    shared = Shared()

    async def process(requests: AsyncIterator[Any], context: Any) -> None:
        # A coroutine that writes, not a generator: one whose reply cannot be written is left to the garbage collector,
        # and its stream would count as in flight until then.
        stream = kind(shared)
        shared.open += 1
        try:
            await stream.on_open()
            async for message in requests:
                for reply in stream.take(message):
                    await context.write(reply)
                if stream.over:
                    return
            await stream.on_half_close()
        except Broken as broken:
            await context.abort(grpc.StatusCode.INTERNAL, str(broken))
        finally:
            shared.open -= 1
            shared.in_flight -= stream.routed

    server = grpc.aio.server(options=(("grpc.max_receive_message_length", 1 << 24),))
    handler = grpc.stream_stream_rpc_method_handler(
        process, pb.ProcessingRequest.FromString, pb.ProcessingResponse.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("envoy.service.ext_proc.v3.ExternalProcessor", {"Process": handler}),
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", _health(kind)),
        )
    )
    at = "127.0.0.1:0"
    port = server.add_insecure_port(at) if credentials is None else server.add_secure_port(at, credentials)
    await server.start()
    try:
        yield Running(port, shared)
    finally:
        await server.stop(0)


def _health(kind: Any) -> dict[str, Any]:
    serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
    codec = (health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString)

    async def check(request: Any, context: Any) -> Any:
        if request.service not in kind.services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return serving

    async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
        yield serving

    methods: dict[str, Any] = {"Check": grpc.unary_unary_rpc_method_handler(check, *codec)}
    if kind.watches:
        methods["Watch"] = grpc.unary_stream_rpc_method_handler(watch, *codec)
    return methods
