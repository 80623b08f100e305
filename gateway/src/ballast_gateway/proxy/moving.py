"""A running decode goes to another engine: warm the target up, cut at an event, go on there, or come back.

There is no transfer of KV in it: vLLM gives no handle of a request that streams, so the target computes the tokens
again (token replay). It does so twice: the warm-up fills its prefix cache while the source goes on, and what has come
since is computed after the cut. One engine is followed at any time, so no token can come twice.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ballast_core.model import Endpoint
from ballast_core.model.effects import Migrate
from ballast_gateway.driver import Ticket
from ballast_gateway.http.client import Collect, UpstreamError, UpstreamPool
from ballast_gateway.proxy.decode_leg import Job, payload
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.records import MoveOutcome, MoveRecord

_log = logging.getLogger(__name__)
PATIENCE_S: Final = 5.0
"""How long a warm target waits for an event at which the stream may be cut."""
WARM_UP_DUE_S: Final = 60.0
"""How long a warm-up may last: 128 Ki tokens at 4,000 a second take 33 s, and may wait for others about as long. What
takes longer was ordered for loads that are long gone, and holds a reservation and one of few moves under way."""


class Mover:
    """The moves of one request, one at a time. `begin` is its driver's `Mover`; set `ticket` before it can be called.

    `source` is set from the cut until the target's first token.
    """

    def __init__(
        self, pool: UpstreamPool, loop: asyncio.AbstractEventLoop, job: Job, held: HeldStream, *, warm_up_s: float
    ) -> None:
        """`warm_up_s`: how long a warm-up may last, `WARM_UP_DUE_S` at most."""
        self.ticket: Ticket | None = None
        self.ready = False
        """The target is warm: cut where `cut_is_due`, or when the source fails."""
        self.source: Endpoint | None = None
        self._pool = pool
        self._loop = loop
        self._job = job
        self._held = held
        self._warm_up_s = warm_up_s
        self._order: Migrate | None = None
        self._task: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        """Ends the wait of a warm target, whether or not anything comes from the source."""
        self._since_s = 0.0

    def begin(self, order: Migrate) -> None:
        """Warm the target up; the stream goes on meanwhile."""
        if self._order is not None or not self._held.begun or not self._held.may_go_on:
            self._failed(order, "its state cannot be carried over")
            return
        self._order = order
        self._task = self._loop.create_task(self._warm_up(order))

    async def _warm_up(self, order: Migrate) -> None:
        held, exchange = self._held, Collect(self._loop.time() + min(self._warm_up_s, WARM_UP_DUE_S))
        ids = len(held.ids())
        try:
            await self._pool.perform(
                order.target.address, payload(self._job, order.target, held.prefill(hold=False), None), exchange
            )
            problem = "" if exchange.status == 200 else f"answered {exchange.status}"
            if not problem and not held.confirms(exchange.body, ids):
                problem = "took other tokens than it was given"
        except UpstreamError as error:
            problem = str(error)
        if self._order is not order:
            return
        if problem:
            self._give_up(f"the warm-up on {order.target.id} failed: {problem}")
        else:
            self.ready = True
            self._patience = self._loop.call_later(
                PATIENCE_S, self._give_up, f"no event ended with a whole character within {PATIENCE_S:g} s"
            )

    def cut_is_due(self) -> bool:
        """Asked between two events; `cut` must follow on True. Gives the move up where nobody else could go on."""
        if self._order is None or self.source is not None:
            return False
        if not self._held.may_go_on:
            if not self._held.finished:  # else `leave` says how it ended
                self._give_up("its state can no longer be carried over")
            return False
        if not self.ready or not self._held.at_boundary():
            return False
        self._stop_waiting()
        return True

    def cut(self, source: Endpoint) -> Endpoint:
        """The source is left; gives the target, where to go on."""
        assert self._order is not None
        self._stop_waiting()
        self.ready, self.source, self._since_s = False, source, self._loop.time()
        return self._order.target

    def arrived(self) -> None:
        """The target has given its first token."""
        order, ticket = self._order, self.ticket
        assert order is not None
        assert ticket is not None
        self._clear()
        self._job.record.moves += (MoveRecord(MoveOutcome.MOVED, self._loop.time() - self._since_s),)
        ticket.migrated(order.target.id)

    def fall_back(self) -> Endpoint:
        """The target gave no token: gives the source, which has the tokens in its prefix cache."""
        source = self.source
        assert source is not None
        self._give_up("the target failed after the cut")
        return source

    def leave(self) -> None:
        """The request goes another way, or has ended: the Director hears so from others."""
        if self._order is not None:
            ended = self._held.finished
            self._clear()
            self._job.record.moves += (MoveRecord(MoveOutcome.ENDED if ended else MoveOutcome.FAILED),)

    def _give_up(self, problem: str) -> None:
        order = self._order
        assert order is not None
        self._clear()
        self._failed(order, problem)

    def _failed(self, order: Migrate, problem: str) -> None:
        self._job.record.moves += (MoveRecord(MoveOutcome.FAILED),)
        _log.info("a move failed", extra={"request_id": order.request_id, "problem": problem})
        assert self.ticket is not None
        self.ticket.migration_failed(order.target.id)

    def _clear(self) -> None:
        self._order = self.source = None
        self.ready = False
        self._stop_waiting()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
