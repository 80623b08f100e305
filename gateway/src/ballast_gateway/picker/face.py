"""The session of one ext_proc stream, between the protocol's state machine and the Director."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeAlias

from ballast_api import names
from ballast_core.model import EndpointId, Fault, Outcome, RejectReason, Request, RequestId
from ballast_core.model.effects import Dispatch
from ballast_core.model.prompt_tokens import PromptTokens
from ballast_gateway import errors, paths
from ballast_gateway.driver import Driver, Ticket
from ballast_gateway.picker.actions import Action, Destination, Ended, FirstToken, Pick, Served
from ballast_gateway.picker.exchange import Exchange, ExchangeSettings
from ballast_gateway.picker.messages import (
    BodyReply,
    HeadersReply,
    Immediate,
    Inbound,
    Reply,
    StreamedBody,
    TrailersReply,
)
from ballast_gateway.picker.planned import Holders, Planned
from ballast_gateway.picker.query import BodyFacts, Query
from ballast_gateway.picker.subset import allowed, binding
from ballast_gateway.picker.transport import LateReplies, Session
from ballast_gateway.picker.unseen import UnseenRequests
from ballast_gateway.records import RequestRecord
from ballast_gateway.tenants import Account
from ballast_gateway.tickets import Rejected
from ballast_gateway.token_questions import Question
from ballast_gateway.tokenizing import Tokenizing, Waiting

if TYPE_CHECKING:
    from ballast_gateway.tracing.exporting import Tracing

_log = logging.getLogger(__name__)

_REJECTED: Final = frozenset({*map(str, RejectReason), errors.gateway_shutdown().code, errors.TENANT_LIMIT})
_UNKNOWN_PATH: Final = errors.not_found("").code
_ANSWER_S: Final = 0.9 * names.PICKER_MESSAGE_TIMEOUT_S
_PLANNED_PATHS: Final = frozenset({paths.COMPLETIONS, paths.CHAT})
"""What agents run in two legs where it is posted; of the rest they pass on what comes."""
_AT_ONCE_S: Final = 0.05
"""A stream that Envoy closes so soon after a response's headers says nothing of the response's end."""


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
    """Address of the endpoint that served, as the proxy reported it; another one than `decode` after a retry there."""


PickerEvent: TypeAlias = Picked | Refused | Finished
PickerListener: TypeAlias = Callable[[PickerEvent], None]
"""Called with each event when it happens."""


class PickerFace:
    """Serves ext_proc streams.

    `new_id` makes an id for a request that has none. `settle_s`: how long the endpoint's metrics may take to show a
    request; one whose end the proxy does not show stays in the ledger for that long at least, see `unseen`. A request
    that is held for `answer_s` is answered 429: in full duplex the proxy itself would wait for ever. `on_record` gets
    each request when it is over, as the proxy face's does; output tokens are those that `holders` report, the agents of
    the pods; None: there are none.
    """

    def __init__(
        self,
        driver: Driver,
        settings: ExchangeSettings,
        *,
        new_id: Callable[[], str],
        settle_s: float = 0.2,
        answer_s: float = _ANSWER_S,
        listeners: tuple[PickerListener, ...] = (),
        tokenizing: Tokenizing | None = None,
        on_record: Callable[[RequestRecord], None] = lambda record: None,
        holders: Holders | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.holders = holders
        self.tracing = tracing
        self.driver = driver
        self.settings = settings
        self.new_id = new_id
        self.settle_s = settle_s
        self.answer_s = answer_s
        self.unseen = UnseenRequests(settle_s=settle_s, now_s=driver.now_s)
        self.listeners = listeners
        self.tokenizing = tokenizing
        self.on_record = on_record
        self.held: set[_StreamSession] = set()
        """Sessions whose requests wait for an endpoint."""

    def shut_down(self) -> None:
        """Answer the requests that are held: the gateway ends."""
        for session in list(self.held):
            session.shut_down()

    def open(self, answer_late: LateReplies) -> Session:
        """A session: one request from its headers to the end of its response. An `OpenSession`."""
        return _StreamSession(self, answer_late)


class _StreamSession:
    __slots__ = (
        "_account",
        "_answer_late",
        "_began_s",
        "_booked",
        "_decode",
        "_dispatch",
        "_exchange",
        "_face",
        "_holding",
        "_lingers",
        "_planned",
        "_record",
        "_served",
        "_ticket",
        "over",
    )

    def __init__(self, face: PickerFace, answer_late: LateReplies) -> None:
        self._face = face
        self._answer_late = answer_late
        self._exchange = Exchange(face.settings)
        self._ticket: Ticket | None = None
        self._holding: asyncio.Task[None] | None = None
        """Runs while the request is held."""
        self._record = RequestRecord(id="", arrived_s=face.driver.now_s(), tokens_seen=False)
        self._decode = ""
        """Empty until routed."""
        self._dispatch: Dispatch | None = None
        self._booked: Dispatch | None = None
        """The same with the endpoints where it runs; None if these are not known."""
        self._served: str | None = None
        self._account: Account | None = None
        """Where keys are checked: what counts in its tenant's share."""
        self._began_s = 0.0
        self._lingers = False
        self._planned: Planned | None = None
        """Set if an agent got a plan of it."""
        self.over = False

    @property
    def waits(self) -> bool:
        return self._holding is not None

    def receive(self, message: Inbound) -> list[Reply]:
        return [] if message.observe_only else self._carry_out(self._exchange.receive(message))

    def close(self, *, broken: bool) -> None:
        """However the stream ends, the ticket is closed, at once or when scrapes tell."""
        if self._holding is not None:
            self._holding.cancel()
            self._face.held.discard(self)
        if broken and self._ticket is not None and not self._decode:
            self._ticket.end(Outcome.CANCELLED)  # gone before it was routed
        self._carry_out(self._exchange.closed())
        if self._ticket is not None and not self._lingers:
            self._ticket.end(Outcome.FAILED)
        if self._ticket is None:
            self._ends_account(0)
        if self._record.id and not self._record.ended_s and not self._decode:
            self._record.outcome, self._record.reason = "cancelled", "client-gone"
            self._recorded()
        self._answer_late = _nobody_waits  # the transport's knows this session: only a collection would free both

    def _carry_out(self, actions: list[Action]) -> list[Reply]:
        """Carry out an exchange's actions; returns its replies. Everything is reported before a reply can be sent."""
        replies: list[Reply] = []
        for action in actions:
            match action:
                case StreamedBody() | HeadersReply() | BodyReply() | TrailersReply():
                    replies.append(action)
                case Pick(query):
                    replies += self._carry_out(self._pick(query))
                case Served(address):
                    self._is_served(address)
                case FirstToken():
                    self._first_token()
                case Ended():
                    self._end(action)
                case Immediate():
                    self._refused(action)
                    self.over = True
                    replies.append(action)
        return replies

    def _pick(self, query: Query) -> list[Action]:
        body, record = query.body, self._record
        record.id = query.request_id or self._face.new_id()
        record.prompt_tokens, record.stream = body.prompt_tokens, body.stream
        if body.model in self._face.settings.served_models:
            record.model = body.model
        if self._face.tracing is not None:
            header = self._exchange.header
            record.trace = self._face.tracing.begin(header("traceparent"), header("tracestate"))
        keys = self._face.settings.keys
        if keys is not None and query.key_of is not None:
            record.tenant = keys.name_for_logs(query.key_of)
            refusal = query.key_of.begin(body.prompt_tokens)
            if refusal is not None:
                return self._exchange.refused(refusal)
            self._account = Account(query.key_of, body.prompt_tokens)
        tokens = self._tokens(query)
        if isinstance(tokens, asyncio.Future):
            self._holding = asyncio.get_running_loop().create_task(self._hold_for_tokens(tokens, query))
            self._face.held.add(self)
            return []
        self._ticket = ticket = self._open(query, tokens)
        try:
            dispatch = ticket.poll()
        except Rejected as rejected:
            return self._rejected(rejected)
        if dispatch is None:
            self._holding = asyncio.get_running_loop().create_task(self._hold(ticket, query))
            self._face.held.add(self)
            return []
        return self._routed(dispatch, body)

    def _tokens(self, query: Query) -> PromptTokens | asyncio.Future[PromptTokens | None] | None:
        """The tokens of the prompt, now or soon; None if they are not to be had."""
        tokens, tokenizing = query.body.prompt.tokens, self._face.tokenizing
        if not isinstance(tokens, Question):
            return tokens
        if tokenizing is None:
            return None
        soon: asyncio.Future[PromptTokens | None] = asyncio.get_running_loop().create_future()
        found = tokenizing.find(tokens, lambda answer: None if soon.done() else soon.set_result(answer))
        return soon if isinstance(found, Waiting) else found

    async def _hold_for_tokens(self, soon: asyncio.Future[PromptTokens | None], query: Query) -> None:
        tokens = await soon
        self._ticket = ticket = self._open(query, tokens)
        await self._hold(ticket, query)

    async def _hold(self, ticket: Ticket, query: Query) -> None:
        """Wait for the pick, and answer late."""
        try:
            async with asyncio.timeout(self._face.answer_s):
                dispatch = await ticket.dispatched()
            actions = self._routed(dispatch, query.body)
        except TimeoutError:
            actions = self._rejected(ticket.give_up(f"no endpoint had room within {self._face.answer_s:g} s"))
        except Rejected as rejected:
            actions = self._rejected(rejected)
        except Exception:
            _log.exception("a held request failed")
            actions = self._exchange.refused(errors.internal_error())
        self._held_over(actions)

    def _held_over(self, actions: list[Action]) -> None:
        self._holding = None
        self._face.held.discard(self)
        self._answer_late(self._carry_out(actions))

    def shut_down(self) -> None:
        """Answer a held request: the gateway ends."""
        if self._holding is not None:
            self._holding.cancel()
            self._held_over(self._exchange.refused(errors.gateway_shutdown()))

    def _rejected(self, rejected: Rejected) -> list[Action]:
        return self._exchange.refused(errors.rejected(rejected.reason, str(rejected), rejected.retry_after_s))

    def _routed(self, dispatch: Dispatch, body: BodyFacts) -> list[Action]:
        record = self._record
        record.dispatches, record.decode, record.dispatched_s = 1, dispatch.decode.id, self._face.driver.now_s()
        prefill = None
        if dispatch.prefill is not None:
            record.prefill, prefill = dispatch.prefill.id, dispatch.prefill.address
        self._decode, self._dispatch, self._booked = dispatch.decode.address, dispatch, dispatch
        for listen in self._face.listeners:
            listen(
                Picked(
                    request_id=record.id,
                    decode=self._decode,
                    prefill=prefill,
                    model=body.model,
                    prompt_tokens=body.prompt_tokens,
                )
            )
        fallbacks = tuple([one.address for one in dispatch.fallbacks])
        plan = self._plan(dispatch)
        destination = Destination(self._decode, prefill, dispatch.priority, plan, fallbacks)
        if record.trace is not None:
            destination = destination._replace(trace=record.trace.headers())
        return self._exchange.routed(destination, record.id)

    def _plan(self, dispatch: Dispatch) -> str:
        """For the agent of the decode endpoint; empty if there is none, or if it would only pass the request on."""
        holders, ticket = self._face.holders, self._ticket
        if holders is None or ticket is None or not holders.has_agent(dispatch.decode.id):
            return ""
        if not self._exchange.generates or self._exchange.path not in _PLANNED_PATHS:
            return ""
        self._planned = Planned(holders, ticket, self._record, self._recorded)
        return holders.plan(ticket, dispatch)

    def _open(self, query: Query, tokens: PromptTokens | None) -> Ticket:
        """Open a ticket. Ids from clients need not be unique; the Director's must be."""
        body, holders = query.body, self._face.holders
        request = Request(
            id=RequestId(self._record.id),
            prompt_tokens=body.prompt.count(tokens, body.prompt_tokens),
            max_output_tokens=body.max_output_tokens,
            model=body.model,
            block_hashes=body.prompt.block_hashes,
            block_size=body.prompt.block_size,
            tokens=tokens,
            traffic_class=body.prompt.traffic_class,
            tenant=query.tenant,
            priority=query.priority,
            ttft_objective_s=None if query.objective is None else query.objective.ttft_s,
            objective="" if query.objective is None else query.objective.name,
            subset=None if query.subset is None else binding(query.subset, self._face.driver.addresses()),
            movable=holders is None or (holders.everywhere and body.movable),
            divisible=holders is None or (holders.everywhere and body.divisible),
        )
        self._record.asked, self._record.objective = request, query.objective
        if self._face.driver.in_flight(request.id):
            request = replace(request, id=RequestId(f"{request.id}~{self._face.new_id()}"))
        if self._face.tracing is not None and self._record.trace is not None:
            self._face.tracing.expect(request.id, self._record.trace)
        ticket = self._face.driver.open(request)
        if self._account is not None:
            ticket.on_end = self._ends_account
        return ticket

    def _ends_account(self, output_tokens: int) -> None:
        if self._account is not None:
            self._account.end(output_tokens, read=bool(self._decode))

    def _is_served(self, address: str) -> None:
        """The proxy has gone to a fall-back, or where it liked: what was named before it took no connection."""
        before, self._served = self._served or self._decode, address
        dispatch, driver = self._dispatch, self._face.driver
        if self._ticket is None or dispatch is None or allowed((address,), (before,)):
            return
        _log.warning("request %s was picked for %s but %s serves", self._record.id, self._decode, address)
        named = (dispatch.decode, *dispatch.fallbacks)
        tried = list(takewhile(lambda one: not allowed((address,), (one.address,)), named))
        passed = tried if len(tried) < len(named) else [dispatch.decode]
        known = {one.address: one for one in driver.endpoints()}
        serves = next((known[one] for one in sorted(allowed((address,), known))), None)
        at = EndpointId(address) if serves is None else serves.id
        prefill = None if dispatch.prefill is None or dispatch.prefill.id == at else dispatch.prefill
        self._ticket.redirected(None if prefill is None else prefill.id, at, tuple([one.id for one in passed]))
        self._record.decode = at
        self._record.dispatches += len(passed)
        self._record.faults += (Fault.UNREACHABLE,) * len(passed)
        self._booked = None if serves is None else replace(dispatch, prefill=prefill, decode=serves)

    def _first_token(self) -> None:
        self._began_s = self._face.driver.now_s()
        if self._planned is not None and not (self._planned.over and not self._planned.is_ended):
            return  # its holder tells
        if self._ticket is not None:
            self._ticket.first_token()
        if self._record.stream:
            self._record.first_token_s = self._face.driver.now_s()

    def _refused(self, answer: Immediate) -> None:
        record = self._record
        record.id = record.id or self._exchange.request_id or ""
        record.status, record.reason = answer.status, answer.reason
        record.outcome = "rejected" if answer.reason in _REJECTED else "failed" if answer.status == 500 else "invalid"
        for listen in self._face.listeners:
            listen(Refused(request_id=record.id, status=answer.status, reason=answer.reason))
        self._recorded()

    def _recorded(self) -> None:
        if not self._record.ended_s:
            self._record.ended_s = self._face.driver.now_s()
            known = self._record.reason != _UNKNOWN_PATH  # what clients write is not repeated in the log
            self._record.path = self._exchange.path if known else ""
            self._face.on_record(self._record)

    def _linger(self, ticket: Ticket) -> None:
        """The request may still run, and its end will not be shown."""

        def end() -> None:
            ticket.end(Outcome.COMPLETED)

        if self._booked is not None and self._exchange.generates:
            self._face.unseen.add(ticket, self._booked, end, begun=self._began_s > 0)
        else:  # engines do not count such requests as running
            asyncio.get_running_loop().call_later(self._face.settle_s, end)

    def _left_to_holder(self, planned: Planned, ended: Ended) -> bool:
        """Whether the agent's word is to be waited for. It has the last one of whatever it has confirmed."""
        fails = ended.outcome is not Outcome.COMPLETED or (ended.status or 0) >= 400
        if not planned.over and fails and not planned.confirmed_by:
            planned.give_up()
        if planned.over and not planned.is_ended:
            return False
        self._record.status = self._record.status or ended.status or 0
        self._lingers = True
        self._finished(ended)
        planned.left_to(self._unconfirmed)
        return True

    def _unconfirmed(self) -> None:
        """No agent has it, as far as is known: scrapes tell when it is over."""
        self._record.outcome = "routed"
        self._recorded()
        if self._ticket is not None:
            self._linger(self._ticket)

    def _end(self, ended: Ended) -> None:
        ticket, record, status = self._ticket, self._record, ended.status or 0
        at_once = not ended.shown and self._face.driver.now_s() - self._began_s < _AT_ONCE_S
        succeeds = ended.outcome is Outcome.COMPLETED and status < 400
        unseen = succeeds and (ended.status is None or at_once)
        if self._planned is not None and self._left_to_holder(self._planned, ended):
            return
        fault = _fault_of(status)
        if fault is not None:
            record.faults += (fault,)
        if ticket is not None and not unseen:
            ticket.end(Outcome.FAILED if status >= 400 else ended.outcome, fault=fault)
        elif ticket is not None:
            self._lingers = True
            self._linger(ticket)
        record.status, record.outcome = status, "routed" if unseen else str(ended.outcome)
        if 400 <= status < 500:
            record.outcome = "rejected" if status == 429 else "invalid"
            record.reason = f"upstream-{status}"
        self._recorded()
        self._finished(ended)

    def _finished(self, ended: Ended) -> None:
        for listen in self._face.listeners:
            listen(
                Finished(request_id=self._record.id, outcome=ended.outcome, decode=self._decode, served=self._served)
            )


def _nobody_waits(replies: list[Reply]) -> None:
    """The stream has ended."""


def _fault_of(status: int) -> Fault | None:
    """What a response's status says of its endpoint; None: nothing.

    A 400 is the client's fault as far as can be seen here: the proxy asks no second endpoint.
    """
    if status >= 500:
        return Fault.ERROR
    if status == 429:
        return Fault.BUSY
    return Fault.REFUSED if status in {401, 403, 404, 408} else None
