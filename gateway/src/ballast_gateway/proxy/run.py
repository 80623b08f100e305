"""One generation from arrival to answer: begins what each state waits for, and carries out the table's actions.

`life` has the states, events and actions. Here is how they are carried out: the requests that engines get, and the
reports to the Director. Everything calls back: engines when a leg has ended (`_over`), the relay and a move with
events (`on`), the Director with orders (`order_move`), the client's connection when it is lost (`client_gone`).
A leg's bytes pass through `relay`, orders to move are in `orders`, answers are in `answers`.

The Director is a `Ticket` away. Nothing else of it is known here, and its decisions come in as events. Two of
them are answered at once today (`prefill_done`, `segment_done`); HANDING_OFF and REJOINING are where to await them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ballast_core.model import Endpoint, Fault, Outcome, RejectReason, Stage
from ballast_core.model.effects import Handoff, Leave, Migrate, Reject
from ballast_gateway import openai_body
from ballast_gateway.errors import ApiError, cancelled, gateway_shutdown, internal_error, rejected, upstream_broke
from ballast_gateway.http.client import Collect, StoppedReading, UpstreamError
from ballast_gateway.life_signs import Signs
from ballast_gateway.proxy import answers
from ballast_gateway.proxy.course import NEVER_S, Course, Resources
from ballast_gateway.proxy.cutting import Remainder
from ballast_gateway.proxy.decode_legs import decode_body, decode_leg
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.legs import (
    Job,
    LegFailed,
    failure_of,
    handle_of,
    is_answer,
    payload,
    read_text,
    refused,
)
from ballast_gateway.proxy.life import CROSSING, MOVING, Action, Event, Life, State
from ballast_gateway.proxy.orders import ACTIONS, Orders
from ballast_gateway.proxy.relay import Relay
from ballast_gateway.proxy.ways_on import kind_of_failure, may_leave
from ballast_gateway.records import RequestRecord
from ballast_gateway.tickets import Rejected, Ticket

_log = logging.getLogger(__name__)

MEASURED_DUE_S: Final = 5.0
"""For an engine's word on where the text so far ends, while the client sees nothing."""
_DETOKENIZE: Final = b"/detokenize"

After = Callable[["Run", UpstreamError | None], Event | None]
"""What the end of an exchange means. None where its event has been taken already."""


class Run:
    """One generation. If it is `movable`, its ticket's `mover` is `order_move`. `on_over` is called at its end."""

    def __init__(
        self,
        resources: Resources,
        job: Job,
        ticket: Ticket,
        *,
        movable: bool,
        deadline_s: float | None = None,
        waited_s: float = 0.0,
        on_over: Callable[[RequestRecord], None],
    ) -> None:
        """`deadline_s`: seconds within which the answer must be whole, of which `waited_s` are over."""
        self.life = Life()
        self._resources = resources
        self._job = job
        self._ticket = ticket
        self._on_over = on_over
        self._trace = job.record.trace
        if movable:
            ticket.mover = self.order_move
        ticket.leaver, ticket.canceller = self.order_leave, self.cancel
        self._deadline = None
        if deadline_s is not None:
            self._deadline = resources.loop.call_later(deadline_s - waited_s, self._expired, deadline_s)
        self._closed = False
        self._orders: Orders | None = None
        self._asked: Collect | None = None
        """The exchange under way, whose end `_after` takes."""
        self._after: After
        self._owed: Signs | None = None
        """Signs of life of the engine whose prefill is due."""
        self._part: asyncio.Task[Remainder | None] | None = None
        # What an action needs of the event before it; what brings the event sets it.
        self._course: Course
        self._handoff: Handoff
        self._leg: Relay
        self._answer: Collect
        self._failure: LegFailed | Rejected
        self._deadline_s: float
        self._parting: tuple[ApiError, Outcome]
        self._failed: list[LegFailed] = []
        """The legs that have been reported as failed."""

    def start(self) -> None:
        """Answer the client, trying other endpoints as long as the Director gives some."""
        try:
            self._go_on()
        except Exception as fault:
            self._fail(fault)

    def on(self, event: Event) -> None:
        """Take an event and do what follows from it."""
        for action in self.life.on(event):
            _DOES[action](self)

    def order_move(self, order: Migrate) -> None:
        """Take the Director's order to move the decode. The outcome is reported to it."""
        held = self._job.held
        fit = held is not None and held.begun and held.may_go_on
        if self._orders is None:
            self._orders = Orders(self._resources, self._job, self._ticket, self.on)
        self._orders.take(order, self.life.state, self._course if fit else None)
        self.on(Event.MOVE_ORDERED if fit else Event.MOVE_UNFIT)

    def order_leave(self, order: Leave) -> None:
        """Take the Director's order to leave a silent engine. A stream that could not go on elsewhere stays there."""
        try:
            event = self._left(order)
            if event is not None:
                self.on(event)
                self._go_on()
        except Exception as fault:
            self._fail(fault)

    def _left(self, order: Leave) -> Event | None:
        """Hang up on the engine that the order names; None if no leg there may be left."""
        state = self.life.state
        decodes = state in _FOLLOWED
        if not decodes and state not in _ASKS:
            return None
        if decodes and order.alone and not self._leg.owes:
            return None  # its answer comes whole, and may just be long; or its client is slow
        endpoint = self._course.endpoint if decodes else self._asked_first
        if endpoint.id != order.endpoint_id or (decodes and not may_leave(self._job, self._leg, rescue=self._rescues)):
            return None
        self._leave()
        stage = Stage.DECODE if decodes else self._first_stage
        self._failure = LegFailed(stage, endpoint, order.reason, Fault.SILENT)
        return self._kind_of_failure() if decodes else Event.ENGINE_FAILED

    def client_gone(self) -> None:
        """Leave the engines: the client has closed its connection."""
        if self.life.state is State.ENDED:
            return
        self._leave()
        record = self._job.record
        record.outcome, record.reason = "cancelled", "client-gone"
        self._end_by(Event.CLIENT_GONE)

    def _expired(self, deadline_s: float) -> None:
        """Leave the engines: the time of the request is over."""
        if self.life.state is not State.ENDED:
            self._leave()
            self._deadline_s = deadline_s
            self._end_by(Event.DEADLINE_PASSED)

    def _end_by(self, event: Event) -> None:
        try:
            self.on(event)
            self._close()
        except Exception as fault:
            self._fail(fault)

    def shut_down(self) -> None:
        """Leave the engines, and tell the client that the gateway ends."""
        self._part_with(gateway_shutdown(), Outcome.FAILED)

    def cancel(self) -> None:
        """Leave the engines, and tell the client that the request was cancelled by order."""
        self._part_with(cancelled(), Outcome.CANCELLED)

    def _part_with(self, error: ApiError, outcome: Outcome) -> None:
        if self.life.state is State.ENDED:
            return
        self._parting = error, outcome
        self._leave()
        try:
            self.on(Event.SHUT_DOWN)
            self._close()
        except Exception as fault:
            self._fail(fault)

    # --- called by the relay ------------------------------------------------------------------------------------

    def progress(self, tokens: int) -> None:
        """So many output tokens have passed, in all legs."""
        self._ticket.progress(tokens)

    def done(self) -> None:
        """The stream's last event has passed. That its HTTP answer ends, too, nobody waits for."""
        if self._trace is not None:
            self._trace.answered()
        self._asked = None  # it ends by itself, or is left after a moment
        self._end_leg(self._leg)
        self._end_by(Event.END)

    def between_events(self) -> None:
        """Leave the source where a warm target may go on; give a move up that cannot come to that any more."""
        if self._orders is None or self._orders.move is None:
            return
        state, held = self.life.state, self._held
        if state in CROSSING:
            return
        if not held.may_go_on:
            if not held.finished:  # else its end is near, and ends the move too
                self.on(Event.TIED)
        elif state is State.WARM and held.at_boundary():
            self.on(Event.CUT_REACHED)
            raise StoppedReading

    # --- what happens between two states ------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Begin what the state waits for, and go on at once where that is there already."""
        while (begin := _BEGINS.get(self.life.state)) is not None:
            event = begin(self)
            if event is None:
                return
            self.on(event)
        self._close()

    def _ask(
        self, endpoint: Endpoint, body: bytes, exchange: Collect, after: After, *, path: bytes | None = None
    ) -> None:
        """`path`: if it is not that of the client's request."""
        self._asked, self._after = exchange, after
        decodes = isinstance(exchange, Relay)
        if self._trace is not None:
            self._trace.asks("decode" if decodes else "prefill" if path is None else "last tokens", endpoint)
        if not decodes:
            self._owed = self._resources.life_signs.of(endpoint.id)
            self._owed.owe(self._resources.loop.time())
        job = self._job if path is None else replace(self._job, path=path)
        request = payload(job, endpoint, body, self._course.dispatch.priority)
        self._resources.pool.start(endpoint.address, request, exchange, self._over)

    def _over(self, error: UpstreamError | None) -> None:
        """The exchange under way has ended."""
        self._settle(heard=error is None and self.life.state is not State.MEASURING)  # its API server answers that
        self._asked = None
        if self._closed:
            return  # its stream's last event had come before
        if self._trace is not None:
            self._trace.answered()
        try:
            event = self._after(self, error)
            if event is not None:
                self.on(event)
            self._go_on()
        except Exception as fault:
            self._fail(fault)

    def _arrived(self) -> None:
        """The dispatch that was waited for has come."""
        if self.life.state is not State.ENDED:
            self.start()

    def _leave(self) -> None:
        """Hang up on the engines that are at work."""
        asked, self._asked = self._asked, None
        self._settle(heard=False)
        if asked is not None:
            self._resources.pool.cancel(asked)
            if isinstance(asked, Relay):
                self._end_leg(asked)
        part, self._part = self._part, None
        if part is not None:
            part.cancel()
        if self._trace is not None:
            self._trace.answered()

    def _settle(self, *, heard: bool) -> None:
        """Nothing is due from a prefill leg any more."""
        if self._owed is not None:
            if heard:
                self._owed.heard_s = self._resources.loop.time()
            self._owed.settle()
            self._owed = None

    def _fail(self, fault: Exception) -> None:
        """A fault of ours: answer with it as far as that can be, and end."""
        record, client = self._job.record, self._job.client
        message = "a request handler failed"
        self._resources.loop.call_exception_handler({"message": message, "exception": fault})
        if self._closed:
            return  # its client's next request may be under way
        self._leave()
        record.outcome, record.reason, record.status = "failed", internal_error().code, 500
        if self.life.state is not State.ENDED or client.answering:  # it may be the end itself that has failed
            self.life.state = State.ENDED  # the table has what may happen; a fault may not
            if client.head_sent:
                client.abort()
            else:
                client.respond_error(internal_error())
        self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._ticket.mover = self._ticket.leaver = self._ticket.canceller = None
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        try:
            self._ticket.end(Outcome.FAILED)  # unless its end has been reported
        finally:
            self._on_over(self._job.record)

    # --- what each state waits for ------------------------------------------------------------------------------

    def _place(self) -> Event | None:
        event = self._replace()
        if event is not None and event is not Event.REJECTED:
            record = self._job.record
            record.prefill, record.prefilled_s, record.cut_tokens = "", None, 0
        return event

    def _replace(self) -> Event | None:
        try:
            dispatch = self._ticket.poll()
        except Rejected as rejection:
            self._failure = rejection
            return Event.REJECTED
        if dispatch is None:
            self._ticket.when_arrived(self._arrived)
            return None
        record = self._job.record
        record.dispatches += 1
        if record.first_token_s is None:
            record.dispatched_s = self._ticket.now_s()
        self._course = Course(dispatch, dispatch.decode)
        if self._job.held is not None and self._job.held.unsure:
            return Event.DISPATCHED_UNSURE
        return self._kind_of_dispatch()

    def _kind_of_dispatch(self) -> Event:
        dispatch = self._course.dispatch
        if dispatch.prefill is None:
            return Event.DISPATCHED
        if dispatch.segments:
            return Event.DISPATCHED_CUT
        return Event.DISPATCHED_SPLIT if self._job.generation.can_hand_off else Event.DISPATCHED_UNSPLITTABLE

    def _measure(self) -> Event | None:
        """Ask what the last tokens read: a character that is not whole yet shows as U+FFFD."""
        ids = self._held.last_ids()
        if not ids:
            return self._measured_as_whole()
        body = openai_body.dump({"model": self._job.generation.model, "tokens": ids})
        self._answer = Collect(self._resources.loop.time() + MEASURED_DUE_S)
        self._ask(self._asked_first, body, self._answer, Run._measured, path=_DETOKENIZE)
        return None

    def _measured(self, error: UpstreamError | None) -> Event | None:
        """None: it is asked again, with one token less."""
        stage, endpoint = self._first_stage, self._asked_first
        failure = failure_of(stage, endpoint, self._answer, error, passed=True)
        text = None if failure is not None else read_text(self._answer.body)
        if text is None:
            self._failure = failure or LegFailed(stage, endpoint, "gave no text for token ids", Fault.BROKE)
            return Event.ENGINE_FAILED if self._job.whole is None else Event.ENGINE_FAILED_ANEW
        if not text.endswith("\ufffd"):
            return self._measured_as_whole()
        if self._held.step_back():
            return None
        said = "the text so far ends in the midst of a character"
        if self._job.whole is not None:
            self._failure = LegFailed(stage, endpoint, said, Fault.BROKE)
            return Event.ENGINE_FAILED_ANEW
        self._failure = Rejected(Reject(self._ticket.request.id, RejectReason.UPSTREAM_FAILED, said))
        return Event.ENGINE_BROKE

    def _measured_as_whole(self) -> Event:
        self._held.unsure = False
        return self._kind_of_dispatch()

    def _compute_part(self) -> None:
        resources = self._resources
        if self._trace is not None:
            self._trace.asks("first part", self._prefiller)
        part = resources.cutter.first_part(self._job, self._course.dispatch, self._ticket.request.prompt_tokens)
        self._part = resources.loop.create_task(part)
        self._part.add_done_callback(self._part_over)

    def _part_over(self, part: asyncio.Task[Remainder | None]) -> None:
        if part is not self._part:  # it was left, though it may have ended in the same turn of the loop
            _ = part.cancelled() or part.exception()
            return
        self._part = None
        if self._trace is not None:
            self._trace.answered()
        if part.cancelled():
            return  # with the loop
        try:
            self.on(self._part_event(part))
            self._go_on()
        except Exception as fault:
            self._fail(fault)

    def _part_event(self, part: asyncio.Task[Remainder | None]) -> Event:
        try:
            rest = self._course.rest = part.result()
        except LegFailed as failure:
            self._failure = failure
            return Event.ENGINE_FAILED
        return Event.PART_SKIPPED if rest is None else Event.PART_COMPUTED

    def _prefill(self) -> None:
        self._ask_prefill(self._job.generation.prefill_body(), Run._prefilled)

    def _refill(self) -> None:
        self._ask_prefill(self._held.prefill(hold=True), Run._refilled)

    def _ask_prefill(self, body: bytes, after: After) -> None:
        resources = self._resources
        self._answer = Collect(resources.loop.time() + resources.prefill_timeout_s)
        self._ask(self._prefiller, body, self._answer, after)

    def _prefilled(self, error: UpstreamError | None) -> Event:
        endpoint, reply = self._prefiller, self._answer
        failure = failure_of(Stage.PREFILL, endpoint, reply, error)
        if failure is not None:
            self._failure = failure
            return Event.ENGINE_FAILED
        self._note_prefill(endpoint)
        self._course.handle = handle_of(reply.body)
        return Event.PREFILLED

    def _refilled(self, error: UpstreamError | None) -> Event:
        endpoint, reply = self._prefiller, self._answer
        failure = failure_of(Stage.PREFILL, endpoint, reply, error)
        if failure is not None:
            self._failure = failure
            return Event.ENGINE_FAILED
        handle = handle_of(reply.body)
        self._course.handle = handle if self._held.is_covered_by(handle, reply.body) else None
        return Event.PREFILLED

    def _hand_off(self) -> Event:
        course, decode = self._course, self._handoff.decode
        first = course.dispatch.prefill
        if first is not None and decode.id == first.id:
            course.handle = course.rest = None  # its KV is where it is needed, in the prefix cache
        course.endpoint = decode
        if course.rest is not None:
            self._job.record.cut_tokens = course.rest.part_tokens
        return Event.HANDED_OFF

    def _follow(self) -> None:
        """Send the decode leg's request; the relay follows its answer."""
        course = self._course
        self._job.record.decode = course.endpoint.id
        body = decode_body(self._job, course, self.life.state)
        leg = self._leg = decode_leg(self, self._job, course, self._resources, self.life.state)
        course.handle = course.rest = None
        course.due_s = NEVER_S
        self._ask(course.endpoint, body, leg, Run._followed)

    def _followed(self, error: UpstreamError | None) -> Event | None:
        leg, endpoint = self._leg, self._course.endpoint
        self._end_leg(leg)
        if isinstance(error, StoppedReading) or self.life.state is State.ENDED:
            return None  # with the stream's last event, in the relay
        passed = self._job.generation.passed
        failure = failure_of(Stage.DECODE, endpoint, leg, error, passed=passed)
        if failure is None and not leg.continues and not leg.relays and is_answer(leg, passed=passed):
            self._answer = leg
            return Event.ANSWERED
        self._failure = failure or _without_end(endpoint, leg)
        return self._kind_of_failure()

    def _end_leg(self, leg: Relay) -> None:
        record = self._job.record
        leg.over()
        record.output_tokens = max(record.output_tokens, leg.tokens)
        if self._job.held is not None:
            record.measured_prompt_tokens = self._job.held.prompt_tokens

    def _kind_of_failure(self) -> Event:
        return kind_of_failure(self._job, self._leg, rescue=self._rescues)

    @property
    def _rescues(self) -> bool:
        """Whether the stream is to go on elsewhere. One that the gateway has cut is brought to its end in any case."""
        return self._resources.rescue or self._course.crossed

    # --- what is done: legs -------------------------------------------------------------------------------------

    def _retry(self) -> None:
        failure, record = self._failure, self._job.record
        assert isinstance(failure, LegFailed)
        record.detail = str(failure)
        _log.warning("a leg failed", extra={"request_id": record.id, "problem": str(failure)})
        self._log_said(failure)
        if self._trace is not None:
            self._trace.failed(failure.fault)
        self._resources.cutter.forget(failure.endpoint)
        record.faults += (failure.fault,)
        self._failed.append(failure)
        self._ticket.failed(failure.stage, failure.endpoint.id, failure.fault, failure.status)

    def _rescue(self) -> None:
        self._job.record.rescues += 1
        if self._trace is not None:
            self._trace.rescued()
        self._retry()

    def _start_over(self) -> None:
        whole = self._job.whole
        assert whole is not None
        whole.start_over()
        self._held.start_over()
        self._job.record.output_tokens = 0

    def _ask_whole(self) -> None:
        resources, whole = self._resources, self._job.whole
        assert whole is not None
        resources.unfit.note(whole.asked, resources.loop.time())
        self._job = self._job.as_asked()

    def _report_prefilled(self) -> None:
        self._handoff = self._ticket.prefill_done(computed=self._job.generation.can_hand_off)

    def _report_part(self) -> None:
        self._note_prefill(self._prefiller)
        self._handoff = self._ticket.segment_done(0)

    def _report_no_part(self) -> None:
        self._handoff = self._ticket.segment_done(0, computed=False)

    def _report_token(self) -> None:
        record = self._job.record
        if self._trace is not None:
            self._trace.token()
        if record.first_token_s is None:
            record.first_token_s = self._ticket.now_s()
            self._ticket.first_token()

    # --- what is done: answers ----------------------------------------------------------------------------------

    def _begin_answer(self) -> None:
        answers.begin(self._job, self._leg)

    def _refuse_request(self) -> None:
        rejection = self._failure
        assert isinstance(rejection, Rejected)
        if (reply := answers.shared(rejection.reason, self._failed)) is not None:
            answers.pass_on(self._job, reply)
            return
        answers.refuse(self._job, rejected(rejection.reason, str(rejection), rejection.retry_after_s))

    def _pass_on(self) -> None:
        completed = answers.pass_on(self._job, self._answer)
        self._ticket.end(Outcome.COMPLETED if completed else Outcome.FAILED, self._job.record.output_tokens)

    def _finish(self) -> None:
        record = self._job.record
        record.output_tokens = max(record.output_tokens, self._leg.tokens)
        answers.end(self._job, self._leg)
        self._ticket.end(Outcome.COMPLETED, record.output_tokens)

    def _break(self) -> None:
        failure, fault = self._failure, None
        if isinstance(failure, LegFailed):
            fault = failure.fault
            self._log_said(failure)
            self._job.record.faults += (fault,)
            if self._trace is not None:
                self._trace.failed(fault)
        self._job.record.detail = str(failure)
        error = upstream_broke("the engine failed in the middle of the answer")
        answers.break_off(self._job, error, between_events=self._leg.between_events)
        self._ticket.end(Outcome.FAILED, self._leg.tokens, fault)

    def _tell_end(self) -> None:
        error, outcome = self._parting
        if self._job.client.head_sent:
            answers.break_off(self._job, error, between_events=self._leg.between_events)
        else:
            answers.refuse(self._job, error)
        self._ticket.end(outcome, self._job.record.output_tokens)

    def _expire(self) -> None:
        begun = self._job.client.head_sent
        answers.expire(self._job, self._deadline_s, between_events=begun and self._leg.between_events)
        self._ticket.end(Outcome.FAILED, self._job.record.output_tokens)

    def _cancel(self) -> None:
        self._ticket.end(Outcome.CANCELLED)

    def _log_said(self, failure: LegFailed) -> None:
        if _log.isEnabledFor(logging.DEBUG) and failure.said:
            _log.debug("what the engine said", extra={"request_id": self._job.record.id, "said": failure.said})

    # --- helpers ------------------------------------------------------------------------------------------------

    @property
    def _held(self) -> HeldStream:
        """The tokens of a begun stream that can go on elsewhere."""
        assert self._job.held is not None
        return self._job.held

    @property
    def _asked_first(self) -> Endpoint:
        """Where the first leg since the last dispatch goes."""
        return self._course.dispatch.prefill or self._course.dispatch.decode

    @property
    def _first_stage(self) -> Stage:
        return Stage.DECODE if self._course.dispatch.prefill is None else Stage.PREFILL

    @property
    def _prefiller(self) -> Endpoint:
        endpoint = self._course.dispatch.prefill
        assert endpoint is not None
        return endpoint

    def _note_prefill(self, endpoint: Endpoint) -> None:
        record = self._job.record
        record.prefill, record.prefilled_s = endpoint.id, self._ticket.now_s()
        if self._trace is not None:
            self._trace.prefilled()


def _without_end(endpoint: Endpoint, leg: Relay) -> LegFailed:
    if leg.status != 200:
        return refused(Stage.DECODE, endpoint, leg)
    return LegFailed(Stage.DECODE, endpoint, "the stream ended before its end", Fault.BROKE)


def _about_a_move(action: Action) -> Callable[[Run], None]:
    def do(run: Run) -> None:
        assert run._orders is not None
        run._orders.do(action)

    return do


_ASKS: Final = frozenset({State.FIRST_PART, State.PREFILLING, State.REFILLING, State.MEASURING})
_FOLLOWED: Final = MOVING | {State.OPENING, State.FLOWING, State.PASSING}

_BEGINS: Final[Mapping[State, Callable[[Run], Event | None]]] = {
    State.PLACING: Run._place,
    State.FIRST_PART: Run._compute_part,
    State.PREFILLING: Run._prefill,
    State.HANDING_OFF: Run._hand_off,
    State.REPLACING: Run._replace,
    State.MEASURING: Run._measure,
    State.REFILLING: Run._refill,
    State.REJOINING: Run._hand_off,
    **dict.fromkeys(_FOLLOWED, Run._follow),
}

_DOES: Final[Mapping[Action, Callable[[Run], None]]] = {
    Action.RETRY: Run._retry,
    Action.RESCUE: Run._rescue,
    Action.START_OVER: Run._start_over,
    Action.ASK_WHOLE: Run._ask_whole,
    Action.REPORT_PREFILLED: Run._report_prefilled,
    Action.REPORT_PART: Run._report_part,
    Action.REPORT_NO_PART: Run._report_no_part,
    Action.REPORT_TOKEN: Run._report_token,
    Action.BEGIN_ANSWER: Run._begin_answer,
    Action.REFUSE_REQUEST: Run._refuse_request,
    Action.PASS_ON: Run._pass_on,
    Action.FINISH: Run._finish,
    Action.BREAK: Run._break,
    Action.CANCEL: Run._cancel,
    Action.TELL_END: Run._tell_end,
    Action.EXPIRE: Run._expire,
    **{action: _about_a_move(action) for action in ACTIONS},
}
