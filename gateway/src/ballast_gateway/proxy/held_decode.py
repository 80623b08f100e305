"""A decode that may have several legs: it is moved when told so, and goes on elsewhere when its engine fails."""

from __future__ import annotations

import asyncio
from typing import Final

from ballast_core.model import Endpoint, Outcome, Stage
from ballast_gateway.driver import Ticket
from ballast_gateway.http.client import Collect, UpstreamError, UpstreamPool
from ballast_gateway.proxy.answers import break_stream, pass_on
from ballast_gateway.proxy.decode_leg import PROGRESS_TOKENS, DecodeExchange, Job, LegFailed, payload, perform
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.moving import Mover

TARGET_DUE_S: Final = 5.0
"""From a cut to the target's first token, while the client sees nothing: 2 s to be admitted, as the simulator has it,
and 3 s for the few tokens that the warm-up has not computed. Then the source goes on."""


class CutOver(UpstreamError):
    """This leg is left on purpose, between two events."""


class HeldExchange(DecodeExchange):
    """One leg. Whole events go to the client; on the last of those that came at once the stream may be cut."""

    __slots__ = ("_continues", "_held", "_mover", "_plain")

    def __init__(
        self,
        job: Job,
        held: HeldStream,
        ticket: Ticket,
        loop: asyncio.AbstractEventLoop,
        *,
        mover: Mover | None,
        first_byte_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        super().__init__(job, ticket, loop, first_byte_timeout_s=first_byte_timeout_s, idle_timeout_s=idle_timeout_s)
        self._held = held
        self._mover = mover
        self._continues = held.begun
        self._plain = held.lost

    @property
    def between_events(self) -> bool:
        """Whether what was sent so far ends with a whole event."""
        return not self._plain or super().between_events

    @property
    def tokens(self) -> int:
        """Output tokens that have passed, in all legs."""
        return super().tokens if self._plain else self._held.tokens

    def on_data(self, data: bytes) -> None:
        held = self._held
        if not self._relays or self._plain:
            super().on_data(data)
            return
        mover = self._mover
        had_tokens = held.leg_tokens
        shown = held.feed(data)
        if held.leg_tokens or mover is None or mover.source is None:  # a target has its time until its first token
            self.deadline_s = self._loop.time() + self._idle_timeout_s
        self._plain = held.lost
        if self._plain:
            super().on_data(shown)
            return
        if shown:
            if not self.started:
                self._start()
            self._client.write(shown)
        if held.leg_tokens:
            self._report(first=not had_tokens)
        if held.broken:
            raise UpstreamError(held.broken)
        if mover is not None and mover.cut_is_due():
            raise CutOver("moved")

    def on_end(self) -> None:
        if not self._relays or self._plain:
            super().on_end()
        elif self._held.is_whole:
            self._record.output_tokens = self._held.tokens
            self._client.end()

    def _start(self) -> None:
        if not self._continues:
            super()._start()
            return
        self.started = True
        self._client.attach(self)

    def _report(self, *, first: bool) -> None:
        tokens = self._held.tokens
        if first:
            if self._mover is not None and self._mover.source is not None:
                self._mover.arrived()
            if self._record.first_token_s is None:
                self._record.first_token_s = self._ticket.now_s()
                self._ticket.first_token()
        if (first and self._continues) or tokens - self._reported >= PROGRESS_TOKENS:
            self._reported = tokens
            self._ticket.progress(tokens)


class HeldDecoder:
    """Follows held streams over their legs; one instance serves all."""

    def __init__(
        self,
        pool: UpstreamPool,
        loop: asyncio.AbstractEventLoop,
        *,
        first_byte_timeout_s: float,
        idle_timeout_s: float,
        rescue: bool,
    ) -> None:
        """`rescue`: whether a stream goes on elsewhere when its engine fails."""
        self._pool = pool
        self._loop = loop
        self._first_byte_timeout_s = first_byte_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._rescue = rescue

    async def run(
        self,
        job: Job,
        held: HeldStream,
        ticket: Ticket,
        mover: Mover | None,
        *,
        endpoint: Endpoint,
        request: bytes,
        priority: int | None,
        due_s: float = float("inf"),
    ) -> None:
        """Send `request` to `endpoint`, and go where moves lead. Raises `LegFailed` where another one may go on.

        `due_s`: when this leg must have begun, on the loop's clock.
        """
        rescue = self._rescue
        if held.begun:
            held.begin_leg()
        while True:
            exchange = HeldExchange(
                job,
                held,
                ticket,
                self._loop,
                mover=mover,
                first_byte_timeout_s=min(self._first_byte_timeout_s, due_s - self._loop.time()),
                idle_timeout_s=self._idle_timeout_s,
            )
            due_s = float("inf")
            job.record.decode = endpoint.id
            failure = await self._leg(job, exchange, endpoint, request)
            if failure is None and exchange.started and (held.is_whole or held.lost):
                ticket.end(Outcome.COMPLETED, job.record.output_tokens)
                return
            if failure is None and not held.begun and not exchange.relays:
                pass_on(job, ticket, exchange)
                return
            failure = failure or LegFailed(Stage.DECODE, endpoint, _without_end(exchange))
            if not held.begun and not exchange.started:
                raise failure
            if mover is not None and mover.ready and held.may_go_on and held.rewind():
                if isinstance(failure.__cause__, CutOver):  # else the source has failed: there is no way back
                    due_s = self._loop.time() + TARGET_DUE_S
                endpoint = mover.cut(endpoint)
                rescue = True  # we have cut it: it is ours to bring to its end
            elif mover is not None and mover.source is not None:
                endpoint = mover.fall_back()
            elif rescue and held.may_go_on and held.rewind():
                raise failure
            else:
                break_stream(job, failure, say_so=exchange.between_events)
                ticket.end(Outcome.FAILED, exchange.tokens)
                return
            request = payload(job, endpoint, held.continuation(), priority)
            held.begin_leg()

    async def _leg(self, job: Job, exchange: HeldExchange, endpoint: Endpoint, request: bytes) -> LegFailed | None:
        try:
            await perform(self._pool, Stage.DECODE, endpoint, request, exchange)
        except LegFailed as failure:
            return failure
        finally:
            job.client.detach(exchange)
            job.record.output_tokens = max(job.record.output_tokens, exchange.tokens)
        return None


def _without_end(exchange: Collect) -> str:
    if exchange.status != 200:
        return f"answered {exchange.status}: {exchange.body[:200].decode(errors='replace')}"
    return "the stream ended before its end"
