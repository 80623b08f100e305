"""What a case works with: the picker, what is known of its fleet, and requests as a proxy shows them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_conformance import messages, protocol
from ballast_conformance.dialogue import Dialogue
from ballast_conformance.http2 import Connection, connect
from ballast_conformance.messages import Metadata, Pairs
from ballast_conformance.transcript import (
    Condition,
    Transcript,
    headers_answered,
    request_answered,
    trailers_answered,
)
from ballast_conformance.verdicts import Skipped

DUPLEX = (protocol.FULL_DUPLEX_STREAMED, protocol.FULL_DUPLEX_STREAMED)
OK_HEADERS: Pairs = ((":status", "200"), ("content-type", "application/json"))
SSE_HEADERS: Pairs = ((":status", "200"), ("content-type", "text/event-stream"))


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What the suite knows of the endpoints behind the picker."""

    model: str
    endpoints: tuple[str, ...] = ()
    """Endpoints that may be picked, as `ip:port`."""
    told: bool = False
    """They are all there are, as the user says; else those that were found by asking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the suite asks."""

    timeout_s: float = 5.0
    """For one reply."""
    quiet_s: float = 0.1
    """How long the picker is listened to when nothing should come."""
    large_bytes: int = 1 << 20
    """Of a large body."""
    streams: int = 32
    """At the same time on one connection."""
    flood: int = 0
    """Requests left in flight at most, to have one shed; 0 sheds none."""
    objective: str | None = None
    """Name of the objective of those."""


class Bench:
    """The tools of one case; `close` ends what it has left open."""

    def __init__(self, picker: Address, health: Address | None, fleet: Fleet, plan: Plan) -> None:
        self.picker = picker
        self.health = health
        self.fleet = fleet
        self.plan = plan
        self._connection: Connection | None = None
        self._open: list[Connection] = []

    async def connect(self, **options: Any) -> Connection:
        """A connection to the picker of its own, closed with the bench."""
        at = self.picker
        made = await connect(at.host, at.port, tls=at.tls, timeout_s=self.plan.timeout_s, **options)
        self._open.append(made)
        return made

    async def connection(self) -> Connection:
        """The connection of the case's streams."""
        if self._connection is None:
            self._connection = await self.connect()
        return self._connection

    async def stream(self, connection: Connection | None = None) -> Dialogue:
        """A new ext_proc stream."""
        over = connection or await self.connection()
        return Dialogue(over, str(self.picker), timeout_s=self.plan.timeout_s, quiet_s=self.plan.quiet_s)

    async def within(self, something: Coroutine[Any, Any, None]) -> bool:
        """Wait for something as long as for a reply; whether it came."""
        try:
            async with asyncio.timeout(self.plan.timeout_s):
                await something
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._open:
            await connection.aclose()
        self._open.clear()
        self._connection = None

    # --- requests -----------------------------------------------------------------------------------------------

    def document(self, prompt: str = "Say this is a test.", **more: Any) -> dict[str, Any]:
        """A completions request."""
        return {"model": self.fleet.model, "prompt": prompt, "max_tokens": 8, **more}

    def body(self, prompt: str = "Say this is a test.", **more: Any) -> bytes:
        """A completions request. Its spelling is none that a JSON library would choose, so that a rewrite shows."""
        return json.dumps(self.document(prompt, **more), indent=1, separators=(" ,", " : ")).encode()

    def post(self, body: bytes | None, extra: Pairs = (), *, path: str = "/v1/completions") -> Pairs:
        """Headers of a POST, with a Content-Length where the body is given."""
        length: Pairs = () if body is None else (("content-length", str(len(body))),)
        return (
            *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "conformance.test")),
            *(("content-type", "application/json"), *length),
            *_identified(extra),
        )

    def get(self, extra: Pairs = ()) -> Pairs:
        """Headers of a request without a body."""
        return (
            *((":method", "GET"), (":scheme", "http"), (":path", "/v1/models"), (":authority", "conformance.test")),
            *_identified(extra),
        )

    async def ask(
        self,
        body: bytes | None = None,
        *,
        headers: Pairs = (),
        metadata: Metadata | None = None,
        chunks: Sequence[bytes] | None = None,
        trailers: bool = False,
        connection: Connection | None = None,
    ) -> Transcript:
        """One POST in full duplex, to the end of its exchange; what the picker said up to the request's end.

        The metadata is on each message, as Envoy has it.
        """
        stream = await self.stream(connection)
        whole = self.body() if body is None else body
        await stream.send(messages.request_headers(self.post(whole, headers), modes=DUPLEX, metadata=metadata))
        parts = [whole] if chunks is None else chunks
        for index, part in enumerate(parts):
            end = not trailers and index == len(parts) - 1
            await stream.send(messages.request_body(part, end=end, metadata=metadata))
        if trailers:
            await stream.send(messages.request_trailers(metadata=metadata))
        return await self.answered(stream, trailers_answered if trailers else request_answered)

    async def ask_without_body(self, *, headers: Pairs = (), metadata: Metadata | None = None) -> Transcript:
        """One GET."""
        stream = await self.stream()
        await stream.send(messages.request_headers(self.get(headers), end=True, modes=DUPLEX, metadata=metadata))
        await stream.until(headers_answered)
        await self._over(stream)
        return stream.said

    async def answered(self, stream: Dialogue, condition: Condition = request_answered) -> Transcript:
        """Listen to the request's answer, then end the exchange."""
        await stream.until(condition)
        await self._over(stream)
        return stream.said

    async def _over(self, stream: Dialogue) -> None:
        """The response comes and ends, so that the picker takes the request off its books."""
        if stream.said.destination is None or stream.said.end is not None:
            await stream.half_close()
            return
        before = len(stream.said.replies)
        await stream.send(messages.response_headers(OK_HEADERS, end=True))
        await stream.half_close()
        if stream.said.silent_s is None:
            await stream.until(lambda said: said.end is not None)
        del stream.said.replies[before:]
        stream.said.end = stream.said.silent_s = None

    # --- the fleet ----------------------------------------------------------------------------------------------

    def endpoints(self, count: int = 1) -> tuple[str, ...]:
        """Known endpoints. Raises `Skipped` if there are fewer than `count`."""
        if len(self.fleet.endpoints) < count:
            raise Skipped(f"needs {count} known endpoint(s), see --endpoints")
        return self.fleet.endpoints


def _identified(headers: Pairs) -> Pairs:
    """With an x-request-id, as proxies make one."""
    if any(name == "x-request-id" for name, _ in headers):
        return headers
    return (("x-request-id", str(uuid.uuid4())), *headers)
