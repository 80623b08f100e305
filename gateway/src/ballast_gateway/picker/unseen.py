"""Requests whose end the proxy does not show: they stay on the books until scrapes tell that they are over.

In the recommended mode Envoy closes the ext_proc stream once the request is routed, so that its byte path needs no
picker. What remains are the engines' own counts. An engine that reports fewer requests than we have booked there has
finished some of ours, and the oldest are the likeliest. So the number of bookings never stays above what is reported,
while each that remains keeps its age and its prompt. Requests of others can hide the end of ours: the sum is right all
the same, and every booking has a latest end, by the time that its longest output would take.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ballast_core.model import EndpointId, Observation, Outcome
from ballast_core.model.effects import Dispatch
from ballast_gateway.driver import Ticket

_QUEUE_S: Final = 60.0
_SLOW_STEP_S: Final = 0.1
_LONG_OUTPUT_TOKENS: Final = 4096
"""For a request without a limit of its own."""
_LATEST_S: Final = 3600.0


@dataclass(slots=True, eq=False)
class _Unseen:
    ticket: Ticket
    end: Callable[[], None]
    since_s: float
    """When it came to the endpoint where it is counted now."""
    decode: EndpointId
    begun: bool = False
    """Its prefill has been reported as over."""
    latest: asyncio.TimerHandle | None = None


class UnseenRequests:
    """Routed requests that end by scrapes. `settle_s`: how long a scrape may miss a request that is on its way."""

    def __init__(self, *, settle_s: float, now_s: Callable[[], float]) -> None:
        self.settle_s = settle_s
        self._now_s = now_s
        self._prefilling: defaultdict[EndpointId, deque[_Unseen]] = defaultdict(deque)
        """By the prefill endpoint, of those that another one decodes."""
        self._decoding: defaultdict[EndpointId, deque[_Unseen]] = defaultdict(deque)

    def __len__(self) -> int:
        return sum(map(len, self._prefilling.values())) + sum(map(len, self._decoding.values()))

    def add(self, ticket: Ticket, dispatch: Dispatch, end: Callable[[], None], *, begun: bool = False) -> None:
        """A request was routed like this, and nothing more will be heard of it; `end` is called once, at its end.

        `begun`: its first token has been reported.
        """
        one = _Unseen(ticket, end, self._now_s(), dispatch.decode.id, begun)
        if begun or dispatch.prefill is None:
            line = self._decoding[one.decode]
        else:
            line = self._prefilling[dispatch.prefill.id]
        line.append(one)
        one.latest = asyncio.get_running_loop().call_later(_latest_s(ticket.request.max_output_tokens), self._drop, one)

    def observed(self, endpoint_id: EndpointId, observation: Observation) -> None:
        """The endpoint was scraped. Call this before the Director learns of it."""
        prefilling, decoding = self._prefilling.get(endpoint_id), self._decoding.get(endpoint_id)
        if not prefilling and not decoding:
            return
        settled_s = observation.observed_at_s - self.settle_s
        over = _older(prefilling, settled_s) + _older(decoding, settled_s) - observation.running - observation.waiting
        for _ in range(over):
            if prefilling and not (decoding and decoding[0].since_s <= prefilling[0].since_s):
                self._hand_off(prefilling.popleft())
            elif decoding:
                self._finish(decoding.popleft())
        if decoding:
            self._begin(decoding, settled_s, observation.waiting)
        for lines in (self._prefilling, self._decoding):
            if not lines.get(endpoint_id, True):
                del lines[endpoint_id]

    def lost(self, endpoint_id: EndpointId) -> None:
        """The endpoint is lost: no scrape will tell of what ran there. What was prefilled there goes on elsewhere."""
        over = self._decoding.pop(endpoint_id, deque())
        for one in self._prefilling.pop(endpoint_id, ()):
            one.since_s = self._now_s()
            (over if one.decode == endpoint_id else self._decoding[one.decode]).append(one)
        for line in self._prefilling.values():
            for one in [one for one in line if one.decode == endpoint_id]:
                line.remove(one)
                over.append(one)
        for one in over:
            if one.latest is not None:
                one.latest.cancel()
            one.ticket.end(Outcome.FAILED)

    def close(self) -> None:
        """Forget all of them."""
        for lines in (self._prefilling, self._decoding):
            for line in lines.values():
                for one in line:
                    if one.latest is not None:
                        one.latest.cancel()
            lines.clear()

    def _hand_off(self, one: _Unseen) -> None:
        self._start(one)
        one.since_s = self._now_s()
        self._decoding[one.decode].append(one)

    def _begin(self, decoding: deque[_Unseen], settled_s: float, waiting: int) -> None:
        """All but the newest `waiting` of these run, and so count as decoding."""
        for one in islice(reversed(decoding), waiting, None):
            if one.begun:
                return
            if one.since_s <= settled_s:
                self._start(one)

    def _start(self, one: _Unseen) -> None:
        if not one.begun:
            one.begun = True
            one.ticket.began()

    def _drop(self, one: _Unseen) -> None:
        for lines in (self._prefilling, self._decoding):
            for line in lines.values():
                if one in line:
                    line.remove(one)
                    self._finish(one)
                    return

    def _finish(self, one: _Unseen) -> None:
        if one.latest is not None:
            one.latest.cancel()
        one.end()


def _older(line: deque[_Unseen] | None, than_s: float) -> int:
    """How many came no later than this; a line is in order of time."""
    if not line:
        return 0
    young = 0
    for one in reversed(line):
        if one.since_s <= than_s:
            break
        young += 1
    return len(line) - young


def _latest_s(max_output_tokens: int | None) -> float:
    """Seconds after which a request has ended for sure: queue, and its longest output in slow steps."""
    tokens = _LONG_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens
    return min(_LATEST_S, _QUEUE_S + _SLOW_STEP_S * tokens)
