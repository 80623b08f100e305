"""The transport on grpc.aio. Cleartext HTTP/2 (h2c)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import grpc

from ballast_gateway.picker import codec
from ballast_gateway.picker.messages import Inbound, Reply
from ballast_gateway.picker.transport import Session

_log = logging.getLogger(__name__)

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a second process on the port is a mistake, and must fail
    ("grpc.http2.max_ping_strikes", 0),  # proxies ping idle connections as often as they like
)


class _GrpcStream:
    """A `MessageStream`."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context

    async def receive(self) -> Inbound | None:
        message = await self._context.read()
        return message if isinstance(message, Inbound) else None  # else: grpc.aio.EOF

    async def send(self, reply: Reply) -> None:
        await self._context.write(reply)


class GrpcTransport:
    """A listening `Transport`. Start one with `listen`."""

    def __init__(self, server: grpc.aio.Server, port: int) -> None:
        self._server = server
        self.port = port

    async def aclose(self, grace_s: float) -> None:
        await self._server.stop(grace_s)


async def listen(session: Session, *, host: str, port: int, max_message_bytes: int) -> GrpcTransport:
    """Serve ext_proc, each stream in a task of its own that runs `session`. Raises `OSError` if the port is taken."""

    async def process(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            await session(_GrpcStream(context))
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("an ext_proc stream failed")
            await context.abort(grpc.StatusCode.INTERNAL, "the picker failed; its log says why")

    handler = grpc.stream_stream_rpc_method_handler(
        process, request_deserializer=codec.decode, response_serializer=codec.encode
    )
    options = [*_OPTIONS, ("grpc.max_receive_message_length", max_message_bytes)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(codec.SERVICE, {"Process": handler}),))
    return GrpcTransport(server, await start(server, host, port))


async def start(server: grpc.aio.Server, host: str, port: int) -> int:
    """Bind and start; returns the port. Raises `OSError` if the address cannot be bound."""
    shown = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{shown}:{port}")
    except RuntimeError as error:
        raise OSError(f"cannot listen on {shown}:{port}: {error}") from error
    await server.start()
    return bound
