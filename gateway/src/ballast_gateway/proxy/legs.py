"""One generation from arrival to answer: dispatch, prefill leg, hand-off, decode leg, and trying again elsewhere."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any

from ballast_core.effects import Dispatch
from ballast_core.model import Endpoint, Outcome, Stage
from ballast_gateway import headers
from ballast_gateway.driver import Rejected, Ticket
from ballast_gateway.errors import ApiError, rejected, upstream_broke
from ballast_gateway.proxy.bodies import Generation
from ballast_gateway.proxy.connection import ClientConnection
from ballast_gateway.proxy.sse import TokenMeter, completion_tokens
from ballast_gateway.proxy.upstream import Collect, Headers, UpstreamError, UpstreamPool
from ballast_gateway.records import RequestRecord

_log = logging.getLogger(__name__)
_PROGRESS_TOKENS = 16
"""The ledger is told of output in steps of this many tokens."""


class LegFailed(Exception):
    """A leg failed before the client got a byte, in a way that another endpoint may mend."""

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
            if tokens - self._reported >= _PROGRESS_TOKENS:
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


class Generator:
    """Runs generations; one instance serves all."""

    def __init__(
        self,
        pool: UpstreamPool,
        loop: asyncio.AbstractEventLoop,
        *,
        prefill_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        self._pool = pool
        self._loop = loop
        self._prefill_timeout_s = prefill_timeout_s
        self._idle_timeout_s = idle_timeout_s

    async def run(self, job: Job, ticket: Ticket) -> None:
        """Answer the client, trying other endpoints as long as the Director gives some."""
        record = job.record
        while True:
            try:
                dispatch = await ticket.dispatched()
            except Rejected as rejection:
                _answer_error(job, rejected(rejection.reason, str(rejection)))
                return
            record.dispatches += 1
            try:
                await self._attempt(job, ticket, dispatch)
            except LegFailed as failure:
                record.detail = str(failure)
                _log.warning("a leg failed", extra={"request_id": record.id, "problem": str(failure)})
                ticket.failed(failure.stage, failure.endpoint.id)
            else:
                return

    async def _attempt(self, job: Job, ticket: Ticket, dispatch: Dispatch) -> None:
        record, generation = job.record, job.generation
        decode, handle = dispatch.decode, None
        record.prefill, record.prefilled_s = "", None
        if dispatch.prefill is not None:
            if generation.can_hand_off:
                record.prefill = dispatch.prefill.id
                payload = _payload(job, dispatch.prefill, generation.prefill_body(), dispatch.priority)
                reply = await self._collect(Stage.PREFILL, dispatch.prefill, payload)
                record.prefilled_s = ticket.now_s()
                if reply.status != 200:
                    _pass_on(job, ticket, reply)
                    return
                handle = _handle_of(reply.body)
            decode = ticket.prefill_done().decode
            if decode.id == dispatch.prefill.id:
                handle = None  # its KV is where it is needed: the prefix cache has it
        record.decode = decode.id
        await self._decode(
            job, ticket, decode, _payload(job, decode, generation.decode_body(handle), dispatch.priority)
        )

    async def _collect(self, stage: Stage, endpoint: Endpoint, payload: bytes) -> Collect:
        exchange = Collect(self._loop.time() + self._prefill_timeout_s)
        await self._perform(stage, endpoint, payload, exchange)
        return exchange

    async def _perform(self, stage: Stage, endpoint: Endpoint, payload: bytes, exchange: Collect) -> None:
        try:
            await self._pool.perform(endpoint.address, payload, exchange)
        except UpstreamError as error:
            raise LegFailed(stage, endpoint, str(error)) from error
        if exchange.status != 200 and not 400 <= exchange.status < 500:
            raise LegFailed(
                stage, endpoint, f"answered {exchange.status}: {exchange.body[:200].decode(errors='replace')}"
            )

    async def _decode(self, job: Job, ticket: Ticket, endpoint: Endpoint, payload: bytes) -> None:
        record = job.record
        exchange = DecodeExchange(
            job,
            ticket,
            self._loop,
            first_byte_timeout_s=self._prefill_timeout_s,
            idle_timeout_s=self._idle_timeout_s,
        )
        try:
            await self._perform(Stage.DECODE, endpoint, payload, exchange)
        except LegFailed as failure:
            if not exchange.started:
                raise
            _break_stream(job, exchange, failure)
            ticket.end(Outcome.FAILED, exchange.tokens)
            return
        finally:
            job.client.detach(exchange)
            record.output_tokens = max(record.output_tokens, exchange.tokens)
        if exchange.started:
            ticket.end(Outcome.COMPLETED, record.output_tokens)
        else:
            _pass_on(job, ticket, exchange)


def _payload(job: Job, endpoint: Endpoint, body: bytes, priority: int | None) -> bytes:
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


def _pass_on(job: Job, ticket: Ticket, reply: Collect) -> None:
    """A whole answer: the result, or a refusal that any endpoint would give."""
    record, body = job.record, reply.body
    record.status = reply.status
    record.output_tokens = completion_tokens(body)
    if reply.status >= 400:
        record.outcome, record.reason = "invalid", f"upstream-{reply.status}"
    job.client.respond(reply.status, answer_headers(reply.headers, record), body)
    ticket.end(Outcome.COMPLETED if reply.status < 400 else Outcome.FAILED, record.output_tokens)


def _answer_error(job: Job, error: ApiError) -> None:
    record = job.record
    record.status, record.outcome, record.reason = error.status, "rejected", error.code
    record.detail = record.detail or error.message
    job.client.respond_error(error, ((headers.REQUEST_ID, record.id.encode()),))


def _break_stream(job: Job, exchange: DecodeExchange, failure: LegFailed) -> None:
    """Too late for a status: say it in the stream, if that is between two events, and cut the connection."""
    error = upstream_broke("the engine failed in the middle of the answer")
    record = job.record
    record.outcome, record.reason, record.detail = "failed", error.code, str(failure)
    if exchange.between_events:
        job.client.write(b"data: %b\n\n" % error.body())
    job.client.abort()


def _handle_of(body: bytes) -> Any | None:
    """The KV handle in a prefill's answer; None where the engine gave none (it then computes the prompt again)."""
    try:
        handle = json.loads(body).get("kv_transfer_params")
    except (ValueError, AttributeError, RecursionError):
        return None
    return handle if isinstance(handle, dict) and handle else None
