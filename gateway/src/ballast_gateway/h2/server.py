"""Listening for gRPC calls over HTTP/2, and its orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ballast_gateway.h2 import calls
from ballast_gateway.h2.calls import Method
from ballast_gateway.h2.connection import Connection
from ballast_gateway.h2.limits import Limits
from ballast_gateway.h2.requests import Request
from ballast_gateway.h2.stream import Receiver, Stream
from ballast_gateway.tls.certificates import Tls
from ballast_gateway.tls.listener import Listening, listening

_LIMITS: Final = Limits()
_BACKLOG: Final = 512
_SWEEP_S: Final = 0.5
_LAST_WORDS_S: Final = 1.0
"""For what has been written to leave."""


class Server:
    """Serves `methods`, by path (`/package.Service/Method`), to any number of connections. Call `listen`, `aclose`."""

    def __init__(self, methods: Mapping[str, Method], *, max_message_bytes: int, limits: Limits = _LIMITS) -> None:
        """`max_message_bytes`: of a message that is received; a longer one ends its call (RESOURCE_EXHAUSTED)."""
        self.limits = limits
        self._methods = methods
        self._max_message_bytes = max_message_bytes
        self._connections: set[Connection] = set()
        self._none_left = asyncio.Event()
        self._server: Listening | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self.port = 0

    async def listen(self, host: str, port: int, *, tls: Tls | None = None, shared: bool = False) -> None:
        """Without `tls` in plaintext only. `shared`: with other processes that listen there. Raises `OSError` if the
        address is taken."""
        loop = asyncio.get_running_loop()
        self._server = await listening(self.connection, host, port, backlog=_BACKLOG, tls=tls, shared=shared)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep, loop)

    def connection(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self, asyncio.get_running_loop())

    # --- an owner -----------------------------------------------------------------------------------------------

    def accept(self, stream: Stream, request: Request) -> Receiver:
        return calls.accept(stream, request, self._methods, self._max_message_bytes)

    def made(self, connection: Connection) -> bool:
        self._connections.add(connection)
        self._none_left.clear()
        return len(self._connections) <= self.limits.connections

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._none_left.set()

    # --- time and the end -------------------------------------------------------------------------------------------

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        for connection in list(self._connections):
            connection.sweep(loop.time())
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep, loop)

    async def aclose(self, grace_s: float) -> None:
        """Take no new streams, give the running ones `grace_s` seconds, then break them off (UNAVAILABLE)."""
        if self._server is not None:
            self._server.close()
        if grace_s > 0:
            for connection in list(self._connections):
                connection.drain()
            await self._all_gone(grace_s)
        for connection in list(self._connections):
            connection.cut()
        await self._all_gone(_LAST_WORDS_S)
        for connection in list(self._connections):
            connection.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def _all_gone(self, limit_s: float) -> None:
        if not self._connections:
            return
        try:
            async with asyncio.timeout(limit_s):
                await self._none_left.wait()
        except TimeoutError:
            pass
