"""What the legs of a generation share, and the answer of a decode leg on its way to the client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ballast_core.model import Endpoint, Stage
from ballast_gateway import headers
from ballast_gateway.driver import Ticket
from ballast_gateway.http.client import Collect, UpstreamError, UpstreamPool
from ballast_gateway.http.responses import Headers
from ballast_gateway.http.server import ClientConnection
from ballast_gateway.proxy.bodies import Generation
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.sse import TokenMeter
from ballast_gateway.records import RequestRecord

PROGRESS_TOKENS: Final = 16
"""The ledger is told of output in steps of this many tokens."""


class LegFailed(Exception):
    """A leg failed in a way that another endpoint may mend: before the client got a byte, or with its tokens held."""

    def __init__(self, stage: Stage, endpoint: Endpoint, problem: str) -> None:
        super().__init__(f"{stage} on {endpoint.id}: {problem}")
        self.stage = stage
        self.endpoint = endpoint


@dataclass(frozen=True, slots=True)
class Job:
    """One generation on its way."""

    client: ClientConnection
    path: bytes
    forwarded: bytes
    """The header lines that engines see."""
    generation: Generation
    record: RequestRecord
    held: HeldStream | None = None
    """Its tokens, if another engine may go on with it."""


class DecodeExchange(Collect):
    """The decode leg's answer: a stream of events goes to the client as it comes, anything else is collected.

    The client's answer begins with the first bytes of the body, so that until then another endpoint may be tried.
    """

    __slots__ = (
        "_client",
        "_idle_timeout_s",
        "_loop",
        "_meter",
        "_record",
        "_relays",
        "_reported",
        "_ticket",
        "started",
    )

    def __init__(
        self,
        job: Job,
        ticket: Ticket,
        loop: asyncio.AbstractEventLoop,
        *,
        first_byte_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        stream = job.generation.stream
        super().__init__(loop.time() + first_byte_timeout_s if stream else float("inf"))
        self._client = job.client
        self._ticket = ticket
        self._record = job.record
        self._loop = loop
        self._idle_timeout_s = idle_timeout_s
        self._relays = stream
        self._meter = TokenMeter()
        self._reported = 0
        self.started = False
        """The client has been sent some of the answer."""

    @property
    def relays(self) -> bool:
        """Whether the answer is a stream of events."""
        return self._relays

    @property
    def between_events(self) -> bool:
        """Whether what was sent so far ends with a whole event."""
        return self._meter.between_events

    def on_head(self, status: int, headers: Headers) -> None:
        super().on_head(status, headers)
        kind = next((value for name, value in headers if name == b"content-type"), b"")
        self._relays = self._relays and status == 200 and kind.startswith(b"text/event-stream")

    def on_data(self, data: bytes) -> None:
        if not self._relays:
            super().on_data(data)
            return
        self.deadline_s = self._loop.time() + self._idle_timeout_s
        if not self.started:
            self._start()
        self._client.write(data)
        meter = self._meter
        was_started = meter.started
        meter.feed(data)
        if meter.started:
            tokens = meter.tokens
            if not was_started:
                self._record.first_token_s = self._ticket.now_s()
                self._ticket.first_token()
            if tokens - self._reported >= PROGRESS_TOKENS:
                self._reported = tokens
                self._ticket.progress(tokens)

    def on_end(self) -> None:
        if self._relays:
            if not self.started:
                self._start()
            self._record.output_tokens = self._meter.tokens
            self._client.end()

    def _start(self) -> None:
        self.started = True
        self._record.status = self.status
        self._client.start_stream(self.status, answer_headers(self.headers, self._record))
        self._client.attach(self)

    def pause(self) -> None:
        """The client is slow. The engine's silence is then no fault of the engine."""
        self.deadline_s = float("inf")
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self.deadline_s = self._loop.time() + self._idle_timeout_s
        if self.connection is not None:
            self.connection.resume()

    @property
    def tokens(self) -> int:
        """Output tokens that have passed."""
        return self._meter.tokens


def payload(job: Job, endpoint: Endpoint, body: bytes, priority: int | None) -> bytes:
    turn = b"" if priority is None else b"%b: %d\r\n" % (headers.PRIORITY, priority)
    return b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b%b\r\n%b" % (
        job.path,
        endpoint.address.encode(),
        len(body),
        turn,
        job.forwarded,
        body,
    )


def answer_headers(upstream: Headers, record: RequestRecord) -> Headers:
    """What the client sees of an engine's headers, and the id of its request."""
    return [*headers.to_client(upstream), (headers.REQUEST_ID, record.id.encode())]


async def perform(pool: UpstreamPool, stage: Stage, endpoint: Endpoint, request: bytes, exchange: Collect) -> None:
    """Run one leg. Raises `LegFailed` where another endpoint may mend it; a 4xx is an answer."""
    try:
        await pool.perform(endpoint.address, request, exchange)
    except UpstreamError as error:
        raise LegFailed(stage, endpoint, str(error)) from error
    if exchange.status != 200 and not 400 <= exchange.status < 500:
        raise LegFailed(stage, endpoint, f"answered {exchange.status}: {exchange.body[:200].decode(errors='replace')}")
