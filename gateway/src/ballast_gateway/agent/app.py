"""The agent's process: listeners, and the order in which it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ballast_gateway.agent.face import AgentFace
from ballast_gateway.agent.metrics import exposition
from ballast_gateway.agent.orders import AgentOrders
from ballast_gateway.agent.places import Places
from ballast_gateway.agent.settings import AgentSettings, BadSetting
from ballast_gateway.agent.watching import Watching
from ballast_gateway.podapi.auth import Guard, TokenFile
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.server import PodApiServer
from ballast_gateway.tracing.starting import CannotTrace, tracing_of

if TYPE_CHECKING:
    from ballast_gateway.tracing.exporting import Tracing

_log = logging.getLogger(__name__)

_LAST_BYTES_S = 2.0
"""For what clients have not taken yet, once all has ended."""


class Agent:
    """One agent: `start` it, let it run, `drain` it, `close` it."""

    def __init__(self, settings: AgentSettings) -> None:
        """Raises `BadSetting` where the token file has no token, or traces cannot be had."""
        loop = asyncio.get_running_loop()
        self.settings = settings
        tokens = _tokens_of(settings.token_file)
        self.places = Places(name=settings.name, address=settings.address, engine=settings.engine)
        self.feed = Feed(
            loop, holder=settings.name, incarnation=secrets.token_hex(8), holds="agent", endpoint=settings.name
        )
        self.face = AgentFace(settings, self.places, self.feed, tokens=tokens.tokens, tracing=self._tracing())
        self.orders = AgentOrders(self.face, self.feed)
        guard = Guard(tokens.tokens, time.time)
        self.pod_api = PodApiServer(self.orders, self.feed, guard, metrics=self._metrics)
        self._watching = Watching(self.face, self.feed, engine=settings.engine)
        self.ports: dict[str, int] = {}

    async def start(self) -> None:
        """Open the listeners. Raises `BadSetting`."""
        settings = self.settings
        with _of_flags("--pod-api-port", settings.pod_api_host, settings.pod_api_port):
            self.ports["pod_api"] = await self.pod_api.listen(settings.pod_api_host, settings.pod_api_port)
        with _of_flags("--port", settings.host, settings.port):
            self.ports["openai"] = await self.face.listen(settings.host, settings.port)
        self._watching.start()
        _log.info("listening", extra={"event": "listening", "ports": self.ports, "engine": settings.engine})

    async def drain(self) -> bool:
        """Take no new plans, and let everything end. False if that takes longer than it may."""
        self.orders.drain(on=True)
        return await self.face.wait_idle(self.settings.drain_timeout_s)

    async def close(self) -> None:
        """Tell those who still wait, and end."""
        with contextlib.suppress(Exception):
            await self._watching.close()
        await self.face.shut_down(_LAST_BYTES_S)
        if self.face.tracing is not None:
            await self.face.tracing.close()
        await self.pod_api.close()

    def _tracing(self) -> Tracing | None:
        if not self.settings.trace_endpoint:
            return None
        try:
            return tracing_of(
                service="ballast-agent",
                whose={"pod": self.settings.name},
                endpoint=self.settings.trace_endpoint,
                sample_ratio=None,
                follow_clients=True,
                now_s=time.monotonic,
                unix_s=time.time() - time.monotonic(),
            )
        except CannotTrace as error:
            raise BadSetting(f"--trace-endpoint: {error}") from error

    def _metrics(self) -> bytes:
        face = self.face
        return exposition(
            face.counts,
            held=len(face.held),
            passing=face.passing,
            readers=self.feed.readers,
            cut_off=self.feed.cut_off,
            refused_calls=self.pod_api.refusals,
        )


def _tokens_of(path: Path) -> TokenFile:
    """Raises `BadSetting`."""
    try:
        return TokenFile(path, time.monotonic)
    except OSError as error:
        said = f"--token-file: {path}: {error.strerror}; give the file with the fleet's tokens, one a line"
        raise BadSetting(said) from error
    except ValueError as error:
        raise BadSetting(f"--token-file: {error}") from error


@contextlib.contextmanager
def _of_flags(flag: str, host: str, port: int) -> Iterator[None]:
    """An `OSError` of a listener becomes a `BadSetting`."""
    try:
        yield
    except OSError as error:
        raise BadSetting(f"{flag} {port} of --host {host}: {error.strerror or error}; choose others") from error
