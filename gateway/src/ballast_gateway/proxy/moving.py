"""A running decode goes to another engine: the warm-up of its target, and how long the target waits for a cut.

There is no transfer of KV in it: vLLM gives no handle of a request that streams, so the target computes the tokens
again (token replay). It does so twice: the warm-up fills its prefix cache while the source goes on, and what has come
since is computed after the cut. One engine is followed at any time, so no token can come twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ballast_core.model import Endpoint
from ballast_gateway.http.client import Collect, UpstreamError, UpstreamPool
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.legs import Job, payload
from ballast_gateway.proxy.life import Event

PATIENCE_S: Final = 5.0
"""How long a warm target waits for an event at which the stream may be cut."""
WARM_UP_DUE_S: Final = 60.0
"""How long a warm-up may last: 128 Ki tokens at 4,000 a second take 33 s, and may wait for others about as long. What
takes longer was ordered for loads that are long gone, and holds a reservation and one of few moves under way."""


class Move:
    """One move under way. `on` gets WARMED_UP, WARM_UP_FAILED or PATIENCE_OVER, none after `close`."""

    def __init__(
        self,
        pool: UpstreamPool,
        loop: asyncio.AbstractEventLoop,
        job: Job,
        held: HeldStream,
        *,
        target: Endpoint,
        source: Endpoint,
        on: Callable[[Event], None],
        warm_up_s: float,
    ) -> None:
        """Begin to warm the target up. `warm_up_s`: how long that may last, `WARM_UP_DUE_S` at most."""
        self.target = target
        self.source = source
        self.left_s = 0.0
        """When the source was left, on the loop's clock."""
        self.problem = ""
        """Why it came to nothing."""
        self._loop = loop
        self._on = on
        self._pool = pool
        self._held = held
        self._trace = job.record.trace
        if self._trace is not None:
            self._trace.moves(source, target)
        self._ids = len(held.ids())
        self._timer: asyncio.TimerHandle | None = None
        self._warm_up = Collect(loop.time() + min(warm_up_s, WARM_UP_DUE_S))
        request = payload(job, target, held.prefill(hold=False), None)
        pool.start(target.address, request, self._warm_up, self._warmed_up)

    def _warmed_up(self, error: UpstreamError | None) -> None:
        reply = self._warm_up
        if error is not None:
            self.problem = str(error)
        elif reply.status != 200:
            self.problem = f"answered {reply.status}"
        elif not self._held.confirms(reply.body, self._ids):
            self.problem = "took other tokens than it was given"
        if self.problem:
            self.problem = f"the warm-up on {self.target.id} failed: {self.problem}"
        if self._trace is not None:
            self._trace.warmed(self.problem)
        self._on(Event.WARM_UP_FAILED if self.problem else Event.WARMED_UP)

    def await_cut(self) -> None:
        """The target is warm: start the timer, whether or not anything comes from the source."""
        self._timer = self._loop.call_later(PATIENCE_S, self._lose_patience)

    def _lose_patience(self) -> None:
        self.problem = f"no event came behind which the text may be cut within {PATIENCE_S:g} s"
        self._on(Event.PATIENCE_OVER)

    def leave_source(self) -> None:
        """The target is followed from now on."""
        self.left_s = self._loop.time()
        self._stop_timer()

    def close(self) -> None:
        """Over, however it went."""
        self._stop_timer()
        self._pool.cancel(self._warm_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
