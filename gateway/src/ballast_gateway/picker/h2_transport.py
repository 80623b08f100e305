"""The transport: ext_proc on the gateway's own HTTP/2, with TLS or without (h2c)."""

from __future__ import annotations

from ballast_gateway.h2.calls import Call, Handler
from ballast_gateway.h2.server import Server
from ballast_gateway.picker import codec
from ballast_gateway.picker.messages import Reply
from ballast_gateway.picker.transport import OpenSession
from ballast_gateway.tls.certificates import Tls


async def listen(
    open_session: OpenSession,
    *,
    host: str,
    port: int,
    max_message_bytes: int,
    tls: Tls | None = None,
    shared: bool = False,
) -> Server:
    """Serve ext_proc; without `tls` in plaintext only; `shared` with other processes that listen there.

    Raises `OSError` if the port is taken.
    """

    def process(call: Call) -> Handler:
        return _Process(call, open_session)

    server = Server({codec.METHOD: process}, max_message_bytes=max_message_bytes)
    await server.listen(host, port, tls=tls, shared=shared)
    return server


class _Process:
    """One stream: messages go to its session, replies come back in the same call, those of a held request later."""

    __slots__ = ("_call", "_session")

    def __init__(self, call: Call, open_session: OpenSession) -> None:
        self._call = call
        self._session = open_session(self._answer_late)

    def message(self, raw: bytes) -> None:
        self._answer(self._session.receive(codec.decode(raw)))
        if self._session.waits:
            self._call.hold()

    def ended(self) -> None:
        self._call.finish()

    def closed(self, *, broken: bool) -> None:
        self._session.close(broken=broken)

    def _answer_late(self, replies: list[Reply]) -> None:
        self._answer(replies)
        self._call.go_on()

    def _answer(self, replies: list[Reply]) -> None:
        self._call.write([codec.encode(reply) for reply in replies])
        if self._session.over:
            self._call.finish()
