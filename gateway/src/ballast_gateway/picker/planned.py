"""Requests that go to an agent with a plan: the agent's word is what becomes of them.

Until the agent has confirmed one it is this picker's to tell the others of. If it does not within `CONFIRM_S`, the
request is accounted for as one of a pod without an agent is: by the exchange and by scrapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from ballast_core.model import EndpointId, Fault, Outcome, RequestId
from ballast_core.model.effects import Dispatch, Leave, Migrate
from ballast_gateway.driver import Ticket
from ballast_gateway.podapi.messages import Ended
from ballast_gateway.records import MoveOutcome, MoveRecord, RequestRecord

CONFIRM_S: Final = 5.0


class Holders(Protocol):
    """Who holds the streams of a picker's requests: the agents of the pods (`ballast_gateway.view`)."""

    everywhere: bool
    """Whether each endpoint that decodes has an agent that takes plans."""

    def has_agent(self, endpoint_id: EndpointId) -> bool:
        """Whether an agent there takes plans now."""
        ...

    def plan(self, ticket: Ticket, dispatch: Dispatch) -> str:
        """The plan header's value."""
        ...

    def expect(self, request_id: RequestId, own: Planned) -> None:
        """Holders will speak of this request."""
        ...

    def forget(self, request_id: RequestId) -> None:
        """They will not any more."""
        ...

    def release(self, request_id: RequestId) -> None:
        """The other gateways hear of it from its holder, or count it by scrapes."""
        ...

    def order(self, order: Migrate | Leave) -> None:
        """Have its holder move it, or leave a leg."""
        ...


class Planned:
    """One such request, from its dispatch to its end. `on_over` is called once, with the record filled in."""

    __slots__ = (
        "_holders",
        "_on_over",
        "_record",
        "_ticket",
        "_timer",
        "_unconfirmed",
        "confirmed_by",
        "is_ended",
        "over",
    )

    def __init__(self, holders: Holders, ticket: Ticket, record: RequestRecord, on_over: Callable[[], None]) -> None:
        self.confirmed_by = ""
        """The holder that has it; empty until one says so."""
        self.over = False
        """Nothing more is expected of holders."""
        self.is_ended = False
        """A holder has said so."""
        self._holders = holders
        self._ticket = ticket
        self._record = record
        self._on_over = on_over
        self._unconfirmed: Callable[[], None] | None = None
        self._timer = asyncio.get_running_loop().call_later(CONFIRM_S, self._lose_patience)
        ticket.mover = ticket.leaver = holders.order
        holders.expect(ticket.request.id, self)

    def confirmed(self, source: str) -> None:
        """A holder has it: the others hear of it from there."""
        self.confirmed_by = source
        self._timer.cancel()
        self._holders.release(self._ticket.request.id)

    def prefilled(self) -> None:
        """Its prompt has been computed on its prefill endpoint."""
        self._record.prefilled_s = self._ticket.now_s()

    def began(self) -> None:
        """Its first token has come, or that of an engine where it goes on."""
        if self._record.first_token_s is None:
            self._record.first_token_s = self._ticket.now_s()

    def leg_failed(self, fault: Fault) -> None:
        """A leg of it has failed."""
        self._record.faults += (fault,)

    def redirected(self) -> None:
        """After that it was sent out again; `placed` says where to."""
        record = self._record
        record.dispatches += 1
        if record.first_token_s is None:
            record.dispatched_s = self._ticket.now_s()
        else:
            record.rescues += 1

    def placed(self, decode: EndpointId, prefill: EndpointId | None) -> None:
        """It is elsewhere than it was."""
        record = self._record
        record.decode = decode
        if record.first_token_s is None:
            record.prefill, record.prefilled_s = prefill or "", None

    def moved(self, target: EndpointId) -> None:
        """It decodes there now, as it was ordered."""
        self._record.decode = target
        self._record.moves += (MoveRecord(MoveOutcome.MOVED),)

    def move_failed(self) -> None:
        """It stays, though it was ordered elsewhere."""
        self._record.moves += (MoveRecord(MoveOutcome.FAILED),)

    def ended(self, end: Ended, fault: Fault | None = None) -> None:
        """It is over. `fault`: of its engine, unless that was told before."""
        record = self._record
        if fault is not None:
            record.faults += (fault,)
        record.outcome, record.output_tokens, record.tokens_seen = end.outcome, end.output_tokens, True
        record.status = record.status or end.status
        if end.outcome == "completed":
            record.status = record.status or 200
        elif 400 <= record.status < 500 and record.status != 429:
            record.outcome, record.reason = "invalid", f"upstream-{record.status}"
        elif end.fault:
            record.reason = end.fault
        self.is_ended = True
        self._leave()
        self._ticket.end(Outcome(end.outcome), end.output_tokens, fault)
        self._on_over()

    def left_to(self, unconfirmed: Callable[[], None]) -> None:
        """The exchange is over and says nothing of the end: call this if no holder confirms the request in time."""
        self._unconfirmed = unconfirmed

    def give_up(self) -> None:
        """Expect nothing of holders any more."""
        self._leave()
        self._ticket.mover = self._ticket.leaver = None

    def _lose_patience(self) -> None:
        self.give_up()
        self._holders.release(self._ticket.request.id)
        if self._unconfirmed is not None:
            self._unconfirmed()

    def _leave(self) -> None:
        self.over = True
        self._timer.cancel()
        self._holders.forget(self._ticket.request.id)
