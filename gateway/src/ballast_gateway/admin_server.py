"""Serves an ASGI application beside the gateway's own listeners."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from ballast_gateway.probes import App


class AdminServer:
    """Listens from its making on; close it with `aclose`."""

    def __init__(self, app: App, host: str, port: int) -> None:
        """Raises `OSError` if the port is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        self.port: int = self._listener.getsockname()[1]
        config = uvicorn.Config(
            app,
            interface="asgi3",
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # a peer is who connects, not who it says it speaks for
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    async def aclose(self) -> None:
        """Answer nothing more."""
        self._server.should_exit = True
        await self._task
        self._listener.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: signals are the gateway's."""
        yield
