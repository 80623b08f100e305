"""One generation from arrival to answer: dispatch, prefill leg, hand-off, decode leg, and trying again elsewhere."""

from __future__ import annotations

import asyncio
import json
import logging

from ballast_core.model import Endpoint, Outcome, Stage
from ballast_core.model.effects import Dispatch
from ballast_gateway.driver import Rejected, Ticket
from ballast_gateway.errors import rejected
from ballast_gateway.http.client import Collect, UpstreamPool
from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy.answers import answer_error, break_stream, pass_on
from ballast_gateway.proxy.cutting import Cutter
from ballast_gateway.proxy.decode_leg import DecodeExchange, Job, LegFailed, payload, perform
from ballast_gateway.proxy.held_decode import HeldDecoder
from ballast_gateway.proxy.moving import Mover

_log = logging.getLogger(__name__)


class Generator:
    """Runs generations; one instance serves all."""

    def __init__(
        self,
        pool: UpstreamPool,
        loop: asyncio.AbstractEventLoop,
        *,
        prefill_timeout_s: float,
        idle_timeout_s: float,
        rescue: bool,
    ) -> None:
        """`rescue`: whether a stream goes on elsewhere when its engine fails."""
        self._pool = pool
        self._loop = loop
        self._prefill_timeout_s = prefill_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._cutter = Cutter(pool, loop, prefill_timeout_s=prefill_timeout_s)
        self._held = HeldDecoder(
            pool, loop, first_byte_timeout_s=prefill_timeout_s, idle_timeout_s=idle_timeout_s, rescue=rescue
        )

    def mover(self, job: Job) -> Mover | None:
        """What can move this generation, if anything."""
        if job.held is None:
            return None
        return Mover(self._pool, self._loop, job, job.held, warm_up_s=self._prefill_timeout_s)

    async def run(self, job: Job, ticket: Ticket, mover: Mover | None = None) -> None:
        """Answer the client, trying other endpoints as long as the Director gives some."""
        if mover is None:
            await self._run(job, ticket, None)
            return
        mover.ticket = ticket
        try:
            await self._run(job, ticket, mover)
        finally:
            mover.leave()

    async def _run(self, job: Job, ticket: Ticket, mover: Mover | None) -> None:
        record, begun = job.record, False
        while True:
            try:
                dispatch = await ticket.dispatched()
            except Rejected as rejection:
                if begun:
                    break_stream(job, rejection, say_so=True)
                else:
                    answer_error(job, rejected(rejection.reason, str(rejection)))
                return
            record.dispatches += 1
            try:
                await self._attempt(job, ticket, mover, dispatch)
            except LegFailed as failure:
                record.detail = str(failure)
                begun = job.held is not None and job.held.begun
                record.rescues += begun
                _log.warning("a leg failed", extra={"request_id": record.id, "problem": str(failure)})
                self._cutter.forget(failure.endpoint)
                if mover is not None:
                    mover.leave()
                ticket.failed(failure.stage, failure.endpoint.id)
            else:
                return

    async def _attempt(self, job: Job, ticket: Ticket, mover: Mover | None, dispatch: Dispatch) -> None:
        record, generation, held = job.record, job.generation, job.held
        continues = held if held is not None and held.begun else None
        decode, handle = dispatch.decode, None
        body, due_s = generation.raw, float("inf")
        if continues is None:
            record.prefill, record.prefilled_s, record.cut_tokens = "", None, 0
        if dispatch.prefill is not None and dispatch.segments:
            # A stream that goes on is not cut again.
            decode, body, due_s = await self._first_part(
                job, ticket, dispatch, dispatch.prefill, skip=continues is not None
            )
        elif dispatch.prefill is not None:
            if generation.can_hand_off:
                asked = generation.prefill_body() if continues is None else continues.prefill(hold=True)
                reply = Collect(self._loop.time() + self._prefill_timeout_s)
                leg = payload(job, dispatch.prefill, asked, dispatch.priority)
                await perform(self._pool, Stage.PREFILL, dispatch.prefill, leg, reply)
                handle = _handle_of(reply.body)
                if continues is None:
                    record.prefill, record.prefilled_s = dispatch.prefill.id, ticket.now_s()
                    if reply.status != 200:
                        pass_on(job, ticket, reply)
                        return
                elif reply.status != 200:
                    raise LegFailed(Stage.PREFILL, dispatch.prefill, f"answered {reply.status}")
                elif not continues.is_covered_by(handle, reply.body):
                    handle = None
            decode = ticket.prefill_done().decode
            if decode.id == dispatch.prefill.id:
                handle = None  # its KV is where it is needed: the prefix cache has it
            body = generation.decode_body(handle)
        if held is None:
            record.decode = decode.id
            await self._decode(job, ticket, decode, payload(job, decode, body, dispatch.priority), due_s)
            return
        body = held.first_body(body) if continues is None else held.continuation(handle)
        request = payload(job, decode, body, dispatch.priority)
        await self._held.run(
            job, held, ticket, mover, endpoint=decode, request=request, priority=dispatch.priority, due_s=due_s
        )

    async def _first_part(
        self, job: Job, ticket: Ticket, dispatch: Dispatch, first: Endpoint, *, skip: bool
    ) -> tuple[Endpoint, bytes, float]:
        """Run the first segment of a cut: which engine goes on, what it is sent, and when it must have begun."""
        record, rest = job.record, None
        if not skip:
            rest = await self._cutter.first_part(job, dispatch, ticket.request.prompt_tokens)
        decode = ticket.segment_done(0, computed=rest is not None).decode
        if rest is not None:
            record.prefill, record.prefilled_s = first.id, ticket.now_s()
            if decode.id != first.id:  # else its KV is in the prefix cache
                record.cut_tokens = rest.part_tokens
                return decode, rest.body, rest.due_s
        return decode, job.generation.raw, float("inf")

    async def _decode(self, job: Job, ticket: Ticket, endpoint: Endpoint, request: bytes, due_s: float) -> None:
        record = job.record
        exchange = DecodeExchange(
            job,
            ticket,
            self._loop,
            first_byte_timeout_s=min(self._prefill_timeout_s, due_s - self._loop.time()),
            idle_timeout_s=self._idle_timeout_s,
        )
        try:
            await perform(self._pool, Stage.DECODE, endpoint, request, exchange)
        except LegFailed as failure:
            if not exchange.started:
                raise
            break_stream(job, failure, say_so=exchange.between_events)
            ticket.end(Outcome.FAILED, exchange.tokens)
            return
        finally:
            job.client.detach(exchange)
            record.output_tokens = max(record.output_tokens, exchange.tokens)
        if exchange.started:
            ticket.end(Outcome.COMPLETED, record.output_tokens)
        else:
            pass_on(job, ticket, exchange)


def _handle_of(body: bytes) -> JsonObject | None:
    """The KV handle in a prefill's answer; None where the engine gave none (it then computes the prompt again)."""
    try:
        handle = json.loads(body).get("kv_transfer_params")
    except (ValueError, AttributeError, RecursionError):
        return None
    return handle if isinstance(handle, dict) and handle else None
