"""The session of one ext_proc stream, between the protocol's state machine and the Director."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ballast_core.model import Outcome, RejectReason, Request, RequestId
from ballast_gateway import errors
from ballast_gateway.driver import Driver, Rejected, Ticket
from ballast_gateway.picker.actions import Action, Destination, Ended, FirstToken, Pick
from ballast_gateway.picker.exchange import Exchange, ExchangeSettings
from ballast_gateway.picker.messages import Immediate
from ballast_gateway.picker.query import Query
from ballast_gateway.picker.subset import allowed
from ballast_gateway.picker.transport import MessageStream
from ballast_gateway.records import RequestRecord

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """A request was routed."""

    request_id: str
    """As the proxy and the pods see it (`x-request-id`)."""
    decode: str
    """Address."""
    prefill: str | None
    model: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request was answered with an error."""

    request_id: str
    status: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A routed request is over."""

    request_id: str
    outcome: Outcome
    decode: str
    served: str | None
    """The endpoint that served, as the proxy reported it; differs from `decode` after a retry elsewhere."""


PickerEvent: TypeAlias = Picked | Refused | Finished
PickerListener: TypeAlias = Callable[[PickerEvent], None]
"""Called with each event when it happens."""


class PickerFace:
    """Serves ext_proc streams.

    `new_id` makes an id for a request that has none. `linger_s` is how long a request whose response the proxy does not
    show stays in the ledger: long enough for the endpoint's metrics to show it. `on_record` gets each request when it
    is over, as the proxy face's does; output tokens are not counted here.
    """

    def __init__(
        self,
        driver: Driver,
        settings: ExchangeSettings,
        *,
        new_id: Callable[[], str],
        linger_s: float = 0.5,
        listeners: tuple[PickerListener, ...] = (),
        on_record: Callable[[RequestRecord], None] = lambda record: None,
    ) -> None:
        self.driver = driver
        self.settings = settings
        self.new_id = new_id
        self.linger_s = linger_s
        self._listeners = listeners
        self.on_record = on_record

    async def serve(self, stream: MessageStream) -> None:
        """A `Session`: one request from its headers to the end of its response."""
        await _StreamSession(self, stream).run()

    def notify(self, event: PickerEvent) -> None:
        """Pass an event to the listeners. Called by the sessions."""
        for listen in self._listeners:
            listen(event)


class _StreamSession:
    def __init__(self, face: PickerFace, stream: MessageStream) -> None:
        self._face = face
        self._stream = stream
        self._exchange = Exchange(face.settings)
        self._ticket: Ticket | None = None
        self._record = RequestRecord(id="", arrived_s=face.driver.now_s())
        self._decode = ""
        """Empty until routed."""
        self._lingers = False

    async def run(self) -> None:
        """Serve the stream to its end. However it ends, the ticket is closed, at once or after `linger_s`."""
        try:
            await self._converse()
        except asyncio.CancelledError:
            if self._ticket is not None and not self._decode:
                self._ticket.end(Outcome.CANCELLED)  # gone before it was routed
            raise
        finally:
            for action in self._exchange.closed():
                if isinstance(action, Ended):
                    self._end(action)
            if self._ticket is not None and not self._lingers:
                self._ticket.end(Outcome.FAILED)

    async def _converse(self) -> None:
        while (message := await self._stream.receive()) is not None:
            if not message.observe_only and await self._carry_out(self._exchange.receive(message)):
                return

    async def _carry_out(self, actions: list[Action]) -> bool:
        """Carry out an exchange's actions; returns whether its last answer has been sent.

        Reports come before replies: the proxy may break the stream off during a send.
        """
        for action in actions:
            match action:
                case FirstToken():
                    self._first_token()
                case Ended():
                    self._end(action)
                case Immediate():
                    self._refused(action)
                case _:
                    pass
        for action in actions:
            match action:
                case Pick(query):
                    return await self._carry_out(await self._pick(query))
                case FirstToken() | Ended():
                    pass
                case reply:
                    await self._stream.send(reply)
        return any(isinstance(action, Immediate) for action in actions)

    async def _pick(self, query: Query) -> list[Action]:
        body, record = query.body, self._record
        record.id = query.request_id or self._face.new_id()
        record.prompt_tokens, record.stream = body.prompt_tokens, body.stream
        if body.model in self._face.settings.served_models:
            record.model = body.model
        self._ticket = ticket = self._open(query)
        try:
            dispatch = await ticket.dispatched()
        except Rejected as rejected:
            return self._exchange.refused(errors.rejected(rejected.reason, str(rejected)))
        record.dispatches, record.decode = 1, dispatch.decode.id
        record.prefill = "" if dispatch.prefill is None else dispatch.prefill.id
        prefill = None if dispatch.prefill is None else dispatch.prefill.address
        self._decode = dispatch.decode.address
        self._face.notify(
            Picked(
                request_id=record.id,
                decode=self._decode,
                prefill=prefill,
                model=body.model,
                prompt_tokens=body.prompt_tokens,
            )
        )
        return self._exchange.routed(Destination(self._decode, prefill, dispatch.priority), record.id)

    def _open(self, query: Query) -> Ticket:
        """Open a ticket. Ids from clients need not be unique; the Director's must be."""
        body = query.body
        request = Request(
            id=RequestId(self._record.id),
            prompt_tokens=body.prompt_tokens,
            max_output_tokens=body.max_output_tokens,
            model=body.model,
            block_hashes=body.prompt.block_hashes,
            block_size=body.prompt.block_size,
            traffic_class=body.prompt.traffic_class,
            subset=None if query.subset is None else allowed(query.subset, self._addresses()),
        )
        try:
            return self._face.driver.open(request)
        except ValueError:
            own = RequestId(f"{request.id}~{self._face.new_id()}")
            return self._face.driver.open(replace(request, id=own))

    def _addresses(self) -> set[str]:
        return self._face.driver.addresses()

    def _first_token(self) -> None:
        if self._ticket is not None:
            self._ticket.first_token()
        if self._record.stream:
            self._record.first_token_s = self._face.driver.now_s()

    def _refused(self, answer: Immediate) -> None:
        record = self._record
        record.id = record.id or self._exchange.request_id or ""
        record.status, record.reason = answer.status, answer.reason
        record.outcome = "invalid" if answer.reason not in set(RejectReason) else "rejected"
        self._face.notify(Refused(request_id=record.id, status=answer.status, reason=answer.reason))
        self._recorded()

    def _recorded(self) -> None:
        if not self._record.ended_s:
            self._record.ended_s = self._face.driver.now_s()
            self._record.path = self._exchange.path
            self._face.on_record(self._record)

    def _end(self, ended: Ended) -> None:
        ticket, record = self._ticket, self._record
        unseen = ended.status is None and ended.outcome is Outcome.COMPLETED
        if ticket is not None and not unseen:
            ticket.end(ended.outcome)
        elif ticket is not None:
            # The request may still run. Keep it in the ledger until the endpoint's own metrics show it.
            self._lingers = True
            asyncio.get_running_loop().call_later(self._face.linger_s, ticket.end, ended.outcome)
        if ended.served is not None and ended.served != self._decode:
            _log.warning("request %s was picked for %s but %s served", record.id, self._decode, ended.served)
        record.status, record.outcome = ended.status or 0, str(ended.outcome)
        self._recorded()
        self._face.notify(
            Finished(request_id=record.id, outcome=ended.outcome, decode=self._decode, served=ended.served)
        )
