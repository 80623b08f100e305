"""Health, readiness and metrics on the admin port, in front of the admin API.

They are plain ASGI and answer from the first moment on. The admin API's framework costs as much to import as a third
of everything else together, so it is built when someone asks for it, on a thread: requests go on meanwhile. What the
operator asks every gateway for all the time is answered without it. A pod may ask what is left of its own requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ballast_api.load_report import HOLD
from ballast_api.signatures import PROOF, RECIPIENT
from ballast_gateway.live.serving import OPEN, Live, serve_page
from ballast_gateway.who_may_ask import LOOPBACK, Refusal, WhoMayAsk

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Probes:
    """An ASGI application. `not_ready` returns why the gateway is not ready. The rest is for those who may ask: `build`
    makes what answers it, but for the paths of `light`, which are JSON, and for those of `live`. The live page itself
    is for everybody: it holds no data, and a browser sends no token with it.
    """

    def __init__(
        self,
        registry: Collector,
        *,
        not_ready: Callable[[], list[str]],
        who_may_ask: WhoMayAsk,
        build: Callable[[], App],
        light: Mapping[str, Callable[[], bytes]],
        live: Live,
        hold: Callable[[str], bytes],
    ) -> None:
        """`hold` answers for the pod of an address."""
        self._registry = registry
        self._not_ready = not_ready
        self._who_may_ask = who_may_ask
        self._build = build
        self._light = light
        self._live = live
        self._hold = hold
        self._rest: asyncio.Task[App] | None = None
        self._answers = {"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._metrics}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "")
        answer = self._answers.get(path)
        if answer is None and path in OPEN and scope["method"] == "GET":
            await serve_page(scope, receive, send)
        elif path == HOLD and scope["method"] == "GET":
            await _respond(send, 200, "application/json", self._hold(asking_pod(scope)))
        elif answer is None:
            refusal = self._judge(scope)
            if isinstance(refusal, str):
                await self._tell(scope, receive, _proving(refusal, send))
            elif refusal is None:
                await self._tell(scope, receive, send)
            else:
                more = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
                if refusal.recipient:
                    more[RECIPIENT] = refusal.recipient
                await _respond(send, refusal.status, "application/json", _json({"detail": refusal.message}), **more)
        elif scope["method"] == "GET":
            await _respond(send, *answer())
        else:
            await _respond(send, 405, "application/json", _json({"detail": "Method Not Allowed"}), allow="GET")

    def _judge(self, scope: Scope) -> Refusal | str | None:
        """Why a request is refused; else the proof of its answer, if it is signed, or None."""
        headers, query = scope["headers"], scope.get("query_string", b"").decode("latin-1")
        target = f"{scope['path']}?{query}" if query else scope["path"]
        proof = self._who_may_ask.proof(scope["method"], target, headers)
        if proof is not None:
            return proof
        peer, _ = scope.get("client") or (None, 0)
        return self._who_may_ask.refusal(peer, headers)

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer who may ask."""
        path, reads = scope["path"], scope["method"] == "GET"
        light = self._light.get(path) if reads else None
        if light is not None:
            await _respond(send, 200, "application/json", light())
        elif reads and self._live.answers(path):
            await self._live(scope, receive, send)
        else:
            await (await self._others())(scope, receive, send)

    async def _others(self) -> App:
        if self._rest is None:
            self._rest = asyncio.create_task(asyncio.to_thread(self._build))
        return await asyncio.shield(self._rest)

    def _health(self) -> tuple[int, str, bytes]:
        return 200, "application/json", _json({"status": "ok"})

    def _readiness(self) -> tuple[int, str, bytes]:
        reasons = self._not_ready()
        if reasons:
            return 503, "application/json", _json({"status": "not ready", "reasons": reasons})
        return self._health()

    def _metrics(self) -> tuple[int, str, bytes]:
        return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)


def asking_pod(scope: Scope) -> str:
    """The address of the pod that asks: the peer's, or on loopback the one that is named by `?of=`."""
    peer, _ = scope.get("client") or ("", 0)
    named = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"))).get("of", "")
    return named if named and peer in LOOPBACK else plain_address(str(peer))


def plain_address(address: str) -> str:
    """An IPv4 address that a listener for both families writes as IPv6, as IPv4."""
    return address.removeprefix("::ffff:")


def _proving(proof: str, send: Send) -> Send:
    """Sends what it is given, with the proof among the headers."""
    line = (PROOF.encode(), proof.encode())

    async def proving(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), line]}
        await send(message)

    return proving


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def _respond(send: Send, status: int, kind: str, body: bytes, **headers: str) -> None:
    named = {"content-length": str(len(body)), "content-type": kind} | headers
    lines = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
