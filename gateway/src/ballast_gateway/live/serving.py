"""The ASGI side: the page for everybody, the data for those whom `probes` lets pass. It answers GET alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from ballast_gateway.live.frames import encoded
from ballast_gateway.live.page import page
from ballast_gateway.live.rows import EVENTS, LIVE, ONLY, PAGE, REQUEST
from ballast_gateway.live.shares import Shares
from ballast_gateway.live.taking import Taking
from ballast_gateway.live.watchers import MOST_WATCHERS, TooMany, Watchers

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OPEN: Final = frozenset({"/", PAGE})
"""Paths of the page itself: it holds no data, and a browser sends no token with it."""
STUCK_S: Final = 30.0
"""A client that takes nothing for so long has left, whatever its connection says."""
_JSON: Final = {"content-type": "application/json", "cache-control": "no-store"}
_STREAM: Final = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}


async def serve_page(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a GET of one of `OPEN`."""
    if scope["path"] == "/":
        await respond(send, 307, b"", {"location": PAGE})
    else:
        await respond(send, 200, page().body, page().headers)


class Live:
    """An ASGI application for the paths below `LIVE`: of all gateways, or with `only` in the query of this one."""

    def __init__(self, taking: Taking, shares: Shares) -> None:
        self.taking = taking
        self.shares = shares
        self.watchers = Watchers(shares.frame)
        """Of all gateways."""
        self.own_watchers = Watchers(taking.snapshot)
        self._answers = {LIVE: self._snapshot, REQUEST: self._story, EVENTS: self._events}

    def answers(self, path: str) -> bool:
        """Whether a path is one of these."""
        return path in self._answers

    def close(self) -> None:
        """End every stream, and ask nobody any more."""
        self.watchers.close()
        self.own_watchers.close()
        self.shares.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a GET."""
        if _asked(scope, "worker"):  # who deals questions to workers has taken it away
            await _refuse(send, 404, "this gateway has no workers; ask without one")
            return
        await self._answers[scope["path"]](scope, receive, send)

    async def _snapshot(self, scope: Scope, receive: Receive, send: Send) -> None:
        frame = self.taking.snapshot(0) if _asked(scope, ONLY) else await self.shares.snapshot()
        await respond(send, 200, encoded(frame), _JSON)

    async def _story(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The gateway of a request knows it best."""
        request_id = _asked(scope, "id")
        story = self.taking.story(request_id)
        if story is None or self.taking.is_anothers(request_id):
            told = await self.shares.story(request_id)
            if told is not None:
                await respond(send, 200, told, _JSON)
                return
        if story is None:
            await _refuse(send, 404, "no request of this id is in flight or has ended lately")
        else:
            await respond(send, 200, encoded(story), _JSON)

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        watchers = self.own_watchers if _asked(scope, ONLY) else self.watchers
        try:
            with watchers.watching() as events:
                await stream(events, receive, send)
        except TooMany:
            await _refuse(send, 503, f"{MOST_WATCHERS} watch already; close a page, or ask again later")


def _asked(scope: Scope, name: str) -> str:
    query: bytes = scope.get("query_string", b"")
    return parse_qs(query.decode("latin-1"), keep_blank_values=True).get(name, [""])[0]


async def stream(events: Any, receive: Receive, send: Send, more: Mapping[str, str] | None = None) -> None:
    """Send parts as they come, until they end, or the client leaves or is stuck."""
    sending = asyncio.create_task(_send_all(events, send, _STREAM | dict(more or {})))
    leaving = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, leaving):
            task.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)


async def _send_all(events: Any, send: Send, headers: Mapping[str, str]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _lines(headers)})
    async for part in events:
        async with asyncio.timeout(STUCK_S):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, status: int, detail: str) -> None:
    await respond(send, status, encoded({"detail": detail}), _JSON)


async def respond(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """A whole answer."""
    lines = _lines({"content-length": str(len(body)), **headers})
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


def _lines(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]
