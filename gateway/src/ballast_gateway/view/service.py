"""The pod API of a gateway process: its own feed and listener, and the view of the others."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ballast_api import names
from ballast_api.errors import InvalidInput, Problem
from ballast_api.gateway_settings import GatewaySettings
from ballast_api.signatures import mac
from ballast_gateway.driver import Driver
from ballast_gateway.http.client import UpstreamPool
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.auth import Guard, TokenFile
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.server import PodApiServer, Query
from ballast_gateway.view.book import Share
from ballast_gateway.view.calls import Calls
from ballast_gateway.view.fleet_view import FleetView
from ballast_gateway.view.holding import GatewayHolder
from ballast_gateway.view.predicting import Predicting
from ballast_gateway.view.publisher import Publisher


class PodApi:
    """Serve, publish and follow. `start` it once; `close` it at the end."""

    def __init__(self, settings: GatewaySettings, driver: Driver, pool: UpstreamPool) -> None:
        """Raises `InvalidInput`: no usable token."""
        path = settings.pod_api.token_file
        assert path is not None
        try:
            self._tokens = TokenFile(Path(path), time.monotonic)
        except (OSError, ValueError) as error:
            raise InvalidInput("", [Problem("podApi.tokenFile", str(error))]) from error
        self._settings = settings
        self._driver = driver
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._server: PodApiServer | None = None
        self._view: FleetView | None = None
        self.port = 0

    def guard(self) -> Guard:
        """Judges calls that are signed with the fleet's token, on one further listener."""
        return Guard(self._tokens.tokens, time.time)

    def naming_key(self, said: str) -> bytes:
        """For names in recorded traffic: who is not of the fleet cannot tell what they stand for."""
        return mac(self._tokens.tokens()[0], b"names", said.encode())

    @property
    def started(self) -> bool:
        """Whether there is a view."""
        return self._view is not None

    @property
    def view(self) -> FleetView:
        """The view of the fleet, once started."""
        assert self._view is not None
        return self._view

    async def start(
        self,
        *,
        ready: Callable[[], bool],
        drain: Callable[[bool], None],
        synced: Callable[[], bool],
        on_engine: Callable[[said.Engine], None],
        asked: Mapping[str, Callable[[Query], bytes | None]],
        share_of: Callable[[str], Share | None] = lambda tenant: None,
    ) -> None:
        """Listen, and begin to follow; `asked` is what further paths answer, `share_of` finds tenants whose shares are
        bounded, by name. Raises `OSError` (port taken)."""
        settings = self._settings
        host, port = settings.listeners.host, settings.pod_api.port
        me, incarnation = name_of(port), secrets.token_hex(8)
        feed = Feed(self._loop, holder=me, incarnation=incarnation, holds="gateway")
        publisher = Publisher(me, self._driver.director, feed)
        holder = GatewayHolder(me, self._driver, holds=settings.face.serves_proxy, ready=ready, drain=drain)
        predicting = Predicting(me, self._driver, feed)
        self._server = PodApiServer(holder, feed, self.guard(), state=predicting.state, asked=asked)
        self.port = await self._server.listen(host, port, shared=settings.workers > 1)
        self._driver.listen(publisher.effect)
        peers = settings.peers
        self._view = FleetView(
            me,
            self._driver,
            publisher,
            Calls(self._loop, self._pool, self._tokens.tokens),
            self._tokens.tokens,
            incarnation=incarnation,
            loop=self._loop,
            max_retries=settings.limits.max_retries,
            alone=not peers.addresses and peers.kubernetes is None,
            leases=peers.kubernetes is not None and peers.kubernetes.lease is not None,
            synced=synced,
            on_engine=on_engine,
            share_of=share_of,
        )
        if peers.addresses:
            self._view.follow_peers(peers.addresses)

    async def close(self) -> None:
        """Follow nobody and tell nobody any more."""
        if self._view is not None:
            self._view.close()
        if self._server is not None:
            await self._server.close()


def name_of(port: int) -> str:
    """This gateway's name in the fleet: the pod's; elsewhere with the port, since a host may have several."""
    host = socket.gethostname().replace("/", "-")
    if port == names.PORT_POD_API:
        return host
    return f"{host}:{port}" if port else f"{host}:{secrets.token_hex(4)}"
