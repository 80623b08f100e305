"""The transport on grpc.aio: the reference for the gateway's own. Cleartext HTTP/2 (h2c)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol

import grpc

from ballast_gateway.picker import codec
from ballast_gateway.picker.messages import Inbound, Reply
from ballast_gateway.picker.transport import OpenSession

_log = logging.getLogger(__name__)

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a second process on the port is a mistake, and must fail
    ("grpc.http2.max_ping_strikes", 0),  # proxies ping idle connections as often as they like
)


class GrpcTransport:
    """A listening `Transport`. Start one with `listen`."""

    def __init__(self, server: grpc.aio.Server, port: int) -> None:
        self._server = server
        self.port = port

    async def aclose(self, grace_s: float) -> None:
        await self._server.stop(grace_s)


async def listen(open_session: OpenSession, *, host: str, port: int, max_message_bytes: int) -> GrpcTransport:
    """Serve ext_proc, each stream in a task of its own. Raises `OSError` if the port is taken."""

    async def process(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            await converse(open_session, context)
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


class MessageStream(Protocol):
    """What is used of a `grpc.aio.ServicerContext`."""

    async def read(self) -> object:
        """The next `Inbound`; anything else when the proxy has closed its side."""

    async def write(self, message: Reply) -> None:
        """Send; returns when the transport has taken it."""


async def converse(open_session: OpenSession, stream: MessageStream) -> None:
    """One stream: each message when all replies to the one before have been written. A broken stream cancels this."""
    late: asyncio.Future[list[Reply]] | None = None

    def answer_late(replies: list[Reply]) -> None:
        if late is not None and not late.done():
            late.set_result(replies)

    session, broken = open_session(answer_late), False
    read, write = stream.read, stream.write
    try:
        while not session.over:
            message = await read()
            if not isinstance(message, Inbound):  # grpc.aio.EOF
                return
            replies = session.receive(message)
            if session.waits:
                late = asyncio.get_running_loop().create_future()
                replies += await late
            for reply in replies:
                await write(reply)
    except asyncio.CancelledError:
        broken = True
        raise
    finally:
        session.close(broken=broken)


async def start(server: grpc.aio.Server, host: str, port: int) -> int:
    """Bind and start; returns the port. Raises `OSError` if the address cannot be bound."""
    shown = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{shown}:{port}")
    except RuntimeError as error:
        raise OSError(f"cannot listen on {shown}:{port}: {error}") from error
    await server.start()
    return bound
