"""What happens to one request, and when: spans as plain values, until it has ended.

A span has a name of few (`queue`, `decide`, `prefill`, `first part`, `hand-off`, `decode`, `move`, `warm-up`,
`rescue`), so that backends can compare them; endpoints are attributes. Nothing of a prompt or an answer is kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

from ballast_core.model import Endpoint
from ballast_core.model.effects import Dispatch, Handoff

Value: TypeAlias = str | int | float | bool


class Span:
    """One piece of a request's time. Times are seconds on the gateway's clock; `end_s` is 0 while it lasts."""

    __slots__ = ("attributes", "end_s", "error", "id", "name", "outbound", "parent", "start_s")

    def __init__(self, name: str, parent: int, start_s: float, *, outbound: bool = False) -> None:
        """`parent`: its id. `outbound`: a request to an engine."""
        self.name = name
        self.parent = parent
        self.id = random.getrandbits(64) or 1
        self.start_s = start_s
        self.end_s = 0.0
        self.outbound = outbound
        self.attributes: dict[str, Value] = {}
        self.error = ""
        """Why it failed; empty if it did not."""


class Trace:
    """A request that is not recorded: all of this does nothing. Engines learn by `header` not to record it either."""

    __slots__ = ("header",)

    def __init__(self, header: bytes) -> None:
        self.header = header
        """Header lines of W3C's trace context, for the engine that is asked next."""

    def headers(self) -> dict[str, str]:
        """The same by name."""
        lines = self.header.decode("latin-1").split("\r\n")
        return {name: value for name, _, value in (line.partition(": ") for line in lines if line)}

    def arrived(self, now_s: float) -> None:
        """The Director is asked for an endpoint."""

    def held(self, now_s: float) -> None:
        """It waits for capacity."""

    def placed(self, effect: Dispatch | Handoff, began_s: float, now_s: float) -> None:
        """The Director has decided, from `began_s` on."""

    def rejected(self, now_s: float) -> None:
        """It gave no endpoint."""

    def asks(self, name: str, endpoint: Endpoint) -> None:
        """An engine is asked now."""

    def answered(self) -> None:
        """What was asked last is over, however it went."""

    def failed(self, fault: str) -> None:
        """What was over last has failed."""

    def prefilled(self) -> None:
        """The prompt's KV is there: it is handed over from now on."""

    def token(self) -> None:
        """The first token of a leg."""

    def rescued(self) -> None:
        """Its engine has failed after the first token; another one is looked for."""

    def moves(self, source: Endpoint, target: Endpoint) -> None:
        """A move begins, with the target's warm-up."""

    def warmed(self, problem: str) -> None:
        """The target's warm-up is over."""

    def moved(self, outcome: str, problem: str) -> None:
        """The move is over; nothing if none was under way."""

    def end(self, ended_s: float, error: str) -> None:
        """The request has ended; `error` is empty unless that was our fault."""


class RecordedTrace(Trace):
    """One that is recorded. `header_of` makes `header` for a span's id."""

    __slots__ = (
        "_asked",
        "_handoff",
        "_header_of",
        "_last",
        "_move",
        "_now_s",
        "_queue",
        "_rescue",
        "_warm_up",
        "context",
        "id",
        "request_id",
        "spans",
    )

    def __init__(
        self,
        context: object,
        *,
        now_s: Callable[[], float],
        header_of: Callable[[int], bytes],
    ) -> None:
        """`context`: what is to be known of its caller when it has ended."""
        self.context = context
        self.id = random.getrandbits(64) or 1
        """Of the span of the whole request."""
        self.request_id = ""
        """As the Director knows it; empty if it was not asked."""
        super().__init__(header_of(self.id))
        self._now_s = now_s
        self._header_of = header_of
        self.spans: list[Span] = []
        """Its children, in the order in which they began."""
        self._queue: Span | None = None
        self._asked: Span | None = None
        self._last: Span | None = None
        self._handoff: Span | None = None
        self._rescue: Span | None = None
        self._move: Span | None = None
        self._warm_up: Span | None = None

    def arrived(self, now_s: float) -> None:
        self._queue = self._begin("queue", now_s)

    def held(self, now_s: float) -> None:
        if self._queue is None:
            self._queue = self._begin("queue", now_s)
        self._queue.attributes["ballast.held"] = True

    def placed(self, effect: Dispatch | Handoff, began_s: float, now_s: float) -> None:
        self._dequeue(began_s)
        decided = self._begin("decide", began_s)
        decided.end_s = now_s
        said = decided.attributes
        said["ballast.decision"] = "dispatch" if type(effect) is Dispatch else "handoff"
        said["ballast.decode"] = effect.decode.id
        if type(effect) is Dispatch and effect.prefill is not None:
            said["ballast.prefill"] = effect.prefill.id
        for trace in effect.traces:
            said[f"ballast.{trace.stage}.policy"] = trace.policy
            said[f"ballast.{trace.stage}.candidates"] = len(trace.candidates)

    def rejected(self, now_s: float) -> None:
        self._dequeue(now_s)

    def _dequeue(self, now_s: float) -> None:
        if self._queue is not None:
            self._queue.end_s = max(now_s, self._queue.start_s)
            self._queue = None

    def asks(self, name: str, endpoint: Endpoint) -> None:
        self._asked = self._begin_leg(name, self.id, endpoint)

    def answered(self) -> None:
        if self._asked is not None:
            self._asked.end_s = self._now_s()
            self._last, self._asked = self._asked, None

    def failed(self, fault: str) -> None:
        if self._last is not None:
            self._last.error = fault
        self._close(self._handoff, fault)
        self._handoff = None

    def prefilled(self) -> None:
        self._handoff = self._begin("hand-off", self._now_s())

    def token(self) -> None:
        self._close(self._handoff)
        self._close(self._rescue)
        self._handoff = self._rescue = None

    def rescued(self) -> None:
        if self._rescue is None:
            self._rescue = self._begin("rescue", self._now_s())

    def moves(self, source: Endpoint, target: Endpoint) -> None:
        self._move = self._begin("move", self._now_s())
        self._move.attributes |= {"ballast.source": source.id, "ballast.target": target.id}
        self._warm_up = self._begin_leg("warm-up", self._move.id, target)

    def moved(self, outcome: str, problem: str) -> None:
        move, self._move = self._move, None
        if move is not None:
            self.warmed(problem)
            self._close(move, problem and "move-failed")
            move.attributes["ballast.outcome"] = outcome

    def warmed(self, problem: str) -> None:
        self._close(self._warm_up, problem and "warm-up-failed")
        self._warm_up = None

    def end(self, ended_s: float, error: str) -> None:
        self._dequeue(ended_s)
        if self._handoff is not None and not error:  # a whole answer: its first token is not seen
            self.spans.remove(self._handoff)
        for span in self.spans:
            if not span.end_s:
                span.end_s, span.error = ended_s, error

    def _begin(self, name: str, now_s: float) -> Span:
        span = Span(name, self.id, now_s)
        self.spans.append(span)
        return span

    def _begin_leg(self, name: str, parent: int, endpoint: Endpoint) -> Span:
        leg = Span(name, parent, self._now_s(), outbound=True)
        leg.attributes["ballast.endpoint"] = endpoint.id
        leg.attributes["server.address"] = endpoint.address
        self.spans.append(leg)
        self.header = self._header_of(leg.id)
        return leg

    def _close(self, span: Span | None, error: str = "") -> None:
        if span is not None and not span.end_s:
            span.end_s, span.error = self._now_s(), error
