"""The pod API's listener: routes, who may ask, and what stands behind them (docs/pod-api.md).

On our own HTTP server, so that an agent carries no web framework. A call is judged before anything is said of its
route; its signature covers the body, so that is read first, within bounds for all callers together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias, cast
from urllib.parse import parse_qsl

from ballast_api.signatures import PROOF, RECIPIENT, NotSigned
from ballast_gateway.clients import Clients
from ballast_gateway.errors import (
    ApiError,
    BodyLimitNames,
    body_too_large,
    gateway_shutdown,
    internal_error,
    invalid_request,
    method_not_allowed,
    not_found,
)
from ballast_gateway.http.cors import Cors
from ballast_gateway.http.requests import HttpRequest
from ballast_gateway.http.server import ClientConnection, Header, Work
from ballast_gateway.podapi import messages, refusals
from ballast_gateway.podapi.auth import FirstCall, Guard
from ballast_gateway.podapi.feed import MOST_READERS, Feed
from ballast_gateway.podapi.messages import (
    BadMessage,
    Body,
    CancelOrder,
    DrainOrder,
    Inventory,
    LeaveOrder,
    MoveOrder,
    State,
)
from ballast_gateway.podapi.refusals import OrderRefused

_log = logging.getLogger(__name__)

LIVE: Final = "/ballast/v1/live"
READY: Final = "/ballast/v1/ready"
METRICS: Final = "/ballast/v1/metrics"
MOST_BODY_BYTES: Final = 64 * 1024
MOST_INVENTORY_BYTES: Final = 16 * 1024 * 1024
_LIMITS: Final = BodyLimitNames("the pod API's bound", "the pod API's bound")
_MOST_BYTES: Final = 4 * MOST_INVENTORY_BYTES
"""Of bodies in all connections."""
_MOST_CONNECTIONS: Final = 4 * MOST_READERS
"""Of one address, from which all workers of a gateway may read and ask."""
_SWEEP_S: Final = 0.25
_BACKLOG: Final = 128
_JSON: Final[Header] = (b"content-type", b"application/json")
_LINES: Final[Header] = (b"content-type", b"application/x-ndjson")
_TEXT: Final[Header] = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_PROOF: Final = PROOF.encode()
_RECIPIENT: Final = RECIPIENT.encode()
_PARTS: Final = cast("Header", tuple(messages.PARTS.encode().split(b": ")))


class Holder(Protocol):
    """What stands behind the routes. What an order names and cannot be done raises `OrderRefused`."""

    def ready(self) -> bool:
        """Whether it takes new requests."""
        ...

    def move(self, order: MoveOrder) -> None:
        """Begin to move a request."""
        ...

    def leave(self, order: LeaveOrder) -> None:
        """Leave a silent engine."""
        ...

    def cancel(self, order: CancelOrder) -> None:
        """Stop a request."""
        ...

    def drain(self, on: bool) -> None:
        """Take no new requests, or take them again."""
        ...

    def take_inventory(self, inventory: Inventory) -> None:
        """This is the fleet now."""
        ...


Query: TypeAlias = Mapping[str, str]
_Answer = tuple[int, bytes]
_Route = Callable[["PodApiServer", Body], _Answer]


class PodApiServer:
    """One listener. Also what `ClientConnection` calls its server."""

    max_header_bytes = 16 * 1024
    max_body_bytes = MOST_INVENTORY_BYTES
    max_text_body_bytes = MOST_INVENTORY_BYTES
    body_limit_names = _LIMITS
    request_timeout_s = 5.0
    body_timeout_s = 30.0
    min_body_bytes_per_s = 64 * 1024
    keep_alive_timeout_s = 75.0
    client_stall_timeout_s = 10.0
    cors: Cors | None = None

    def __init__(
        self,
        holder: Holder,
        feed: Feed,
        guard: Guard,
        *,
        metrics: Callable[[], bytes] | None = None,
        state: Callable[[], State] | None = None,
        asked: Mapping[str, Callable[[Query], bytes | None]] = MappingProxyType({}),
    ) -> None:
        """`metrics`: Prometheus' text, where the holder has no other place for it. `state`: the feed's, with more.
        `asked`: what answers a GET of further paths in JSON, of its query; None: there is no such thing."""
        self.connections: set[ClientConnection] = set()
        self.clients = Clients(
            most_bytes=_MOST_BYTES, most_client_bytes=_MOST_BYTES, most_client_connections=_MOST_CONNECTIONS
        )
        self.closing = False
        self.holder = holder
        self.refusals = 0
        """Calls that were not signed as they must be."""
        self._feed = feed
        self._guard = guard
        self._metrics = metrics
        self._state = state or feed.state
        self._asked = asked
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, *, shared: bool = False) -> int:
        """Open the listener; port 0 takes a free one; `shared`: one that a supervisor keeps for us. Returns the port.
        Raises `OSError`."""
        self._server = await self._loop.create_server(
            self._connect, host, port, backlog=_BACKLOG, reuse_port=shared or None
        )
        self._sweep()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _connect(self) -> ClientConnection:
        return ClientConnection(self, self._loop)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        for connection in list(self.connections):
            connection.sweep(now_s)
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    async def close(self) -> None:
        """End every reader and connection, and stop listening."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        self._feed.close()
        for connection in list(self.connections):
            connection.shut_down(gateway_shutdown())
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)
        if self._sweeper is not None:
            self._sweeper.cancel()

    # --- called by connections --------------------------------------------------------------------------------------

    def disconnected(self, client: ClientConnection) -> None:
        """A connection is gone."""
        self.connections.discard(client)

    def refused(self, error: ApiError) -> None:
        """Bytes that made no request were refused."""

    def handle(self, client: ClientConnection, request: HttpRequest) -> Work | None:
        """Answer, or begin to tell the news. Never raises."""
        target = request.target.decode("latin-1")
        if request.method == b"GET" and target in (LIVE, READY):
            client.respond(200 if target == LIVE or self.holder.ready() else 503, (), b"")
            return None
        authorization = [value for name, value in request.headers if name == b"authorization"]
        given = authorization[0].decode("latin-1") if len(authorization) == 1 else ""
        try:
            proof = self._guard.check(given, request.method.decode("latin-1"), target, request.body)
        except NotSigned as why:
            self.refusals += not isinstance(why, FirstCall)
            client.respond_error(refusals.not_signed(why), ((_RECIPIENT, why.recipient.encode()),))
            return None
        extra: tuple[Header, ...] = ((_PROOF, proof.encode()),) if proof else ()
        try:
            return self._routed(client, request, target, extra)
        except OrderRefused as refusal:
            client.respond_error(refusal.error, extra)
        except Exception:
            _log.exception("a call of the pod API failed", extra={"route": target[:100]})
            if client.head_sent:
                client.abort()
            else:
                client.respond_error(internal_error(), extra)
        return None

    def _routed(
        self, client: ClientConnection, request: HttpRequest, target: str, extra: tuple[Header, ...]
    ) -> Work | None:
        path, _, query = target.partition("?")
        if path in self._asked:
            target = path
        known = {**_READS, **dict.fromkeys(self._asked, "GET"), **_METHODS}
        if self._metrics is not None:
            known[METRICS] = "GET"
        method = request.method.decode("latin-1")
        allowed = known.get(target)
        if allowed is None:
            client.respond_error(not_found(target[:200], sorted(known)), extra)
        elif method != allowed:
            client.respond_error(method_not_allowed(method, target, allowed), (*extra, (b"allow", allowed.encode())))
        elif target == messages.EVENTS:
            return self._tell(client, extra, parts=_PARTS in request.headers)
        elif target in self._asked:
            answer = self._asked[target](dict(parse_qsl(query, keep_blank_values=True)))
            client.respond(404 if answer is None else 200, (_JSON, *extra), answer or b"{}")
        elif target == messages.STATE:
            client.respond(200, (_JSON, *extra), messages.write(self._state()))
        elif self._metrics is not None and target == METRICS:
            client.respond(200, (_TEXT, *extra), self._metrics())
        else:
            status, body = self._ordered(target, request.body)
            client.respond(status, ((_JSON, *extra) if body else extra), body)
        return None

    def _tell(self, client: ClientConnection, extra: tuple[Header, ...], *, parts: bool) -> Work | None:
        if self._feed.readers >= MOST_READERS:
            client.respond_error(refusals.too_many_readers(MOST_READERS), extra)
            return None
        client.start_stream(200, (_LINES, (b"cache-control", b"no-store"), *extra))
        reader = self._feed.listen(client, parts=parts)
        assert reader is not None
        client.attach(reader)
        return reader

    def _ordered(self, target: str, body: bytes) -> _Answer:
        kind, carry_out = _ORDERS[target]
        if len(body) > MOST_BODY_BYTES and kind is not Inventory:
            raise OrderRefused(body_too_large(MOST_BODY_BYTES, _LIMITS.whole))
        try:
            order = messages.read(body, kind)
        except BadMessage as error:
            raise OrderRefused(invalid_request(str(error))) from error
        return carry_out(self, order)

    def _move(self, order: Body) -> _Answer:
        self.holder.move(cast("MoveOrder", order))
        return 202, b"{}"

    def _leave(self, order: Body) -> _Answer:
        self.holder.leave(cast("LeaveOrder", order))
        return 202, b"{}"

    def _cancel(self, order: Body) -> _Answer:
        self.holder.cancel(cast("CancelOrder", order))
        return 202, b"{}"

    def _drain(self, order: Body) -> _Answer:
        self.holder.drain(cast("DrainOrder", order).on)
        return 200, b"{}"

    def _take_inventory(self, order: Body) -> _Answer:
        self.holder.take_inventory(cast("Inventory", order))
        return 204, b""


_READS: Final = {messages.STATE: "GET", messages.EVENTS: "GET"}
_ORDERS: Final[dict[str, tuple[type[Body], _Route]]] = {
    messages.MIGRATIONS: (MoveOrder, PodApiServer._move),
    messages.LEAVE: (LeaveOrder, PodApiServer._leave),
    messages.CANCEL: (CancelOrder, PodApiServer._cancel),
    messages.DRAIN: (DrainOrder, PodApiServer._drain),
    messages.INVENTORY: (Inventory, PodApiServer._take_inventory),
}
_METHODS: Final = {route: "PUT" if route == messages.INVENTORY else "POST" for route in _ORDERS}
