"""One generation from arrival to answer: waits for what its state names, and carries out the table's actions.

`life` has the states, events and actions. Here is how they are carried out: the requests that engines get, and the
reports to the Director. A leg's bytes pass through `relay`, a move's warm-up is in `moving`, answers are in `answers`.

The Director is a `Ticket` away. Nothing else of it is known here, and its decisions come in as events. Two of
them are answered at once today (`prefill_done`, `segment_done`); HANDING_OFF and REJOINING are where to await them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ballast_core.model import Endpoint, Outcome, Stage
from ballast_core.model.effects import Dispatch, Handoff, Migrate
from ballast_gateway.driver import Rejected, Ticket
from ballast_gateway.errors import rejected
from ballast_gateway.http.client import Collect, StoppedReading, UpstreamPool
from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy import answers
from ballast_gateway.proxy.cutting import Cutter, Remainder
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.legs import Job, LegFailed, handle_of, payload, perform, refusal
from ballast_gateway.proxy.life import Action, Event, Life, State
from ballast_gateway.proxy.moving import Move
from ballast_gateway.proxy.relay import HeldRelay, Relay
from ballast_gateway.records import MoveOutcome, MoveRecord

_log = logging.getLogger(__name__)

TARGET_DUE_S: Final = 5.0
"""From a cut to the target's first token, while the client sees nothing: 2 s to be admitted, as the simulator has it,
and 3 s for the few tokens that the warm-up has not computed. Then the source goes on."""
_NEVER_S: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Resources:
    """What all generations share."""

    pool: UpstreamPool
    loop: asyncio.AbstractEventLoop
    cutter: Cutter
    prefill_timeout_s: float
    """For a whole prefill, and for the first byte of a decode."""
    idle_timeout_s: float
    rescue: bool
    """Whether a stream goes on elsewhere when its engine fails."""


@dataclass(slots=True)
class _Course:
    """Where the request goes since its last dispatch. Handle, rest and limit are good for one leg."""

    dispatch: Dispatch
    endpoint: Endpoint
    """Of the next decode leg, or of the one that runs."""
    handle: JsonObject | None = None
    """For the KV of a prefill leg."""
    rest: Remainder | None = None
    """After a first part."""
    due_s: float = _NEVER_S
    """When the next decode leg must have begun, on the loop's clock."""
    crossed: bool = False
    """The gateway has cut this stream, so it must bring it to its end, with rescue off too."""


class Run:
    """One generation. If it is `movable`, its ticket's `mover` is `order_move`."""

    def __init__(self, resources: Resources, job: Job, ticket: Ticket, *, movable: bool) -> None:
        self.life = Life()
        self._resources = resources
        self._job = job
        self._ticket = ticket
        self._movable = movable
        if movable:
            ticket.mover = self.order_move
        self._move: Move | None = None
        # What an action needs of the event before it; the wait or the call that brings the event sets it.
        self._course: _Course
        self._handoff: Handoff
        self._leg: Relay
        self._answer: Collect
        self._failure: LegFailed | Rejected
        self._order: Migrate

    async def run(self) -> None:
        """Answer the client, trying other endpoints as long as the Director gives some."""
        try:
            while (wait := _WAITS.get(self.life.state)) is not None:
                event = await wait(self)
                if event is not None:
                    self.on(event)
        except asyncio.CancelledError:
            if self.life.state is not State.ENDED:
                self.on(Event.CLIENT_GONE)
            raise
        finally:
            self._ticket.mover = None
            if self._move is not None:
                self._move.close()

    def on(self, event: Event) -> None:
        """Take an event and do what follows from it."""
        for action in self.life.on(event):
            _DOES[action](self)

    def order_move(self, order: Migrate) -> None:
        """Take the Director's order to move the decode. The outcome is reported to it."""
        held = self._job.held
        self._order = order
        self.on(Event.MOVE_ORDERED if held is not None and held.begun and held.may_go_on else Event.MOVE_UNFIT)

    # --- called by the relay ------------------------------------------------------------------------------------

    def progress(self, tokens: int) -> None:
        """So many output tokens have passed, in all legs."""
        self._ticket.progress(tokens)

    def between_events(self) -> None:
        """Leave the source where a warm target may go on; give a move up that cannot come to that any more."""
        if self._move is None:
            return
        state, held = self.life.state, self._held
        if state is State.CROSSING:
            return
        if not held.may_go_on:
            if not held.finished:  # else its end is near, and ends the move too
                self.on(Event.TIED)
        elif state is State.WARM and held.at_boundary():
            self.on(Event.CUT_REACHED)
            raise StoppedReading

    # --- what each state waits for ------------------------------------------------------------------------------

    async def _place(self) -> Event:
        record = self._job.record
        event = await self._replace()
        if event is not Event.REJECTED:
            record.prefill, record.prefilled_s, record.cut_tokens = "", None, 0
        return event

    async def _replace(self) -> Event:
        try:
            dispatch = await self._ticket.dispatched()
        except Rejected as rejection:
            self._failure = rejection
            return Event.REJECTED
        self._job.record.dispatches += 1
        self._course = _Course(dispatch, dispatch.decode)
        if dispatch.prefill is None:
            return Event.DISPATCHED
        if dispatch.segments:
            return Event.DISPATCHED_CUT
        return Event.DISPATCHED_SPLIT if self._job.generation.can_hand_off else Event.DISPATCHED_UNSPLITTABLE

    async def _compute_part(self) -> Event:
        course = self._course
        try:
            rest = await self._resources.cutter.first_part(
                self._job, course.dispatch, self._ticket.request.prompt_tokens
            )
        except LegFailed as failure:
            self._failure = failure
            return Event.ENGINE_FAILED
        course.rest = rest
        return Event.PART_SKIPPED if rest is None else Event.PART_COMPUTED

    async def _prefill(self) -> Event:
        generation = self._job.generation
        try:
            endpoint, reply = await self._ask_prefill(generation.prefill_body())
        except LegFailed as failure:
            self._failure = failure
            return Event.ENGINE_FAILED
        self._note_prefill(endpoint)
        if reply.status != 200:
            self._answer = reply
            return Event.ANSWERED
        self._course.handle = handle_of(reply.body)
        return Event.PREFILLED

    async def _refill(self) -> Event:
        held = self._held
        try:
            endpoint, reply = await self._ask_prefill(held.prefill(hold=True))
            if reply.status != 200:
                raise LegFailed(Stage.PREFILL, endpoint, f"answered {reply.status}")
        except LegFailed as failure:
            self._failure = failure
            return Event.ENGINE_FAILED
        handle = handle_of(reply.body)
        self._course.handle = handle if held.is_covered_by(handle, reply.body) else None
        return Event.PREFILLED

    async def _ask_prefill(self, body: bytes) -> tuple[Endpoint, Collect]:
        resources, dispatch = self._resources, self._course.dispatch
        endpoint = dispatch.prefill
        assert endpoint is not None
        reply = Collect(resources.loop.time() + resources.prefill_timeout_s)
        request = payload(self._job, endpoint, body, dispatch.priority)
        await perform(resources.pool, Stage.PREFILL, endpoint, request, reply)
        return endpoint, reply

    async def _hand_off(self) -> Event:
        course, decode = self._course, self._handoff.decode
        first = course.dispatch.prefill
        if first is not None and decode.id == first.id:
            course.handle = course.rest = None  # its KV is where it is needed, in the prefix cache
        course.endpoint = decode
        if course.rest is not None:
            self._job.record.cut_tokens = course.rest.part_tokens
        return Event.HANDED_OFF

    async def _follow(self) -> Event | None:
        """Send the decode leg's request and follow its answer. None where the event has been taken already."""
        job, course, pool = self._job, self._course, self._resources.pool
        job.record.decode = course.endpoint.id
        request = payload(job, course.endpoint, self._decode_body(), course.dispatch.priority)
        leg = self._leg = self._new_leg()
        course.handle = course.rest = None
        course.due_s = _NEVER_S
        failure = None
        try:
            await perform(pool, Stage.DECODE, course.endpoint, request, leg)
        except StoppedReading:
            return None
        except LegFailed as error:
            failure = error
        finally:
            leg.over()
            job.record.output_tokens = max(job.record.output_tokens, leg.tokens)
        if self.life.state is State.ENDED:
            return None  # with its last byte, in the relay
        if failure is None and not leg.continues and not leg.relays:
            self._answer = leg
            return Event.ANSWERED
        self._failure = failure or LegFailed(Stage.DECODE, course.endpoint, _without_end(leg))
        return self._kind_of_failure()

    def _decode_body(self) -> bytes:
        course, generation, held = self._course, self._job.generation, self._job.held
        if self.life.state is not State.OPENING:
            return self._held.continuation(course.handle)
        body = generation.decode_body(course.handle) if course.rest is None else course.rest.body
        return body if held is None else held.first_body(body)

    def _new_leg(self) -> Relay:
        job, course, resources, state = self._job, self._course, self._resources, self.life.state
        due_s = min(resources.loop.time() + resources.prefill_timeout_s, course.due_s)
        if course.rest is not None:
            due_s = min(due_s, course.rest.due_s)
        continues, idle_timeout_s = state is not State.OPENING, resources.idle_timeout_s
        if job.held is None:
            return Relay(
                *(self, job.client, resources.loop),
                streams=job.generation.stream,
                continues=continues,
                due_s=due_s,
                idle_timeout_s=idle_timeout_s,
            )
        job.held.begin_leg()
        return HeldRelay(
            *(self, job.client, resources.loop, job.held),
            continues=continues,
            due_s=due_s,
            idle_timeout_s=idle_timeout_s,
            until_token=state is State.CROSSING,
            movable=self._movable,
        )

    def _kind_of_failure(self) -> Event:
        """Whether another engine could go on, and whether that is wanted."""
        held, leg = self._job.held, self._leg
        if not (leg.continues or leg.shows):
            return Event.ENGINE_FAILED
        if held is None or not held.may_go_on or not held.rewind():
            return Event.ENGINE_BROKE
        rescued = self._resources.rescue or self._course.crossed
        return Event.ENGINE_FAILED if rescued else Event.ENGINE_FAILED_UNRESCUED

    # --- what is done: legs -------------------------------------------------------------------------------------

    def _retry(self) -> None:
        failure, record = self._failure, self._job.record
        assert isinstance(failure, LegFailed)
        record.detail = str(failure)
        _log.warning("a leg failed", extra={"request_id": record.id, "problem": str(failure)})
        self._resources.cutter.forget(failure.endpoint)
        self._ticket.failed(failure.stage, failure.endpoint.id)

    def _rescue(self) -> None:
        self._job.record.rescues += 1
        self._retry()

    def _report_prefilled(self) -> None:
        self._handoff = self._ticket.prefill_done()

    def _report_part(self) -> None:
        first = self._course.dispatch.prefill
        assert first is not None
        self._note_prefill(first)
        self._handoff = self._ticket.segment_done(0)

    def _report_no_part(self) -> None:
        self._handoff = self._ticket.segment_done(0, computed=False)

    def _report_token(self) -> None:
        record = self._job.record
        if record.first_token_s is None:
            record.first_token_s = self._ticket.now_s()
            self._ticket.first_token()

    # --- what is done: answers ----------------------------------------------------------------------------------

    def _begin_answer(self) -> None:
        answers.begin(self._job, self._leg)

    def _refuse_request(self) -> None:
        rejection = self._failure
        assert isinstance(rejection, Rejected)
        answers.refuse(self._job, rejected(rejection.reason, str(rejection)))

    def _pass_on(self) -> None:
        completed = answers.pass_on(self._job, self._answer)
        self._ticket.end(Outcome.COMPLETED if completed else Outcome.FAILED, self._job.record.output_tokens)

    def _finish(self) -> None:
        record = self._job.record
        record.output_tokens = max(record.output_tokens, self._leg.tokens)
        self._job.client.end()
        self._ticket.end(Outcome.COMPLETED, record.output_tokens)

    def _break(self) -> None:
        answers.break_off(self._job, self._failure, between_events=self._leg.between_events)
        self._ticket.end(Outcome.FAILED, self._leg.tokens)

    def _cancel(self) -> None:
        self._ticket.end(Outcome.CANCELLED)

    # --- what is done: moves ------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        resources = self._resources
        self._move = Move(
            *(resources.pool, resources.loop, self._job, self._held),
            target=self._order.target,
            source=self._course.endpoint,
            on=self.on,
            warm_up_s=resources.prefill_timeout_s,
        )

    def _await_cut(self) -> None:
        self._moving.await_cut()

    def _follow_target(self) -> None:
        self._moving.leave_source()
        self._course.endpoint = self._moving.target
        self._course.crossed = True

    def _limit_target(self) -> None:
        self._course.due_s = self._resources.loop.time() + TARGET_DUE_S

    def _follow_source(self) -> None:
        self._moving.problem = "the target failed after the cut"
        self._course.endpoint = self._moving.source

    def _report_moved(self) -> None:
        move = self._end_move()
        self._note_move(MoveOutcome.MOVED, self._resources.loop.time() - move.left_s)
        self._ticket.migrated(move.target.id)

    def _give_move_up(self) -> None:
        move = self._end_move()
        self._report_failed_move(move.target, move.problem or "its state can no longer be carried over")

    def _refuse_move(self) -> None:
        self._report_failed_move(
            self._order.target, f"ordered while {self.life.state.value}, or not to be carried over"
        )

    def _drop_move(self) -> None:
        self._end_move()
        self._note_move(MoveOutcome.ENDED if self._held.finished else MoveOutcome.FAILED)

    def _report_failed_move(self, target: Endpoint, problem: str) -> None:
        self._note_move(MoveOutcome.FAILED)
        _log.info("a move failed", extra={"request_id": self._job.record.id, "problem": problem})
        self._ticket.migration_failed(target.id)

    def _end_move(self) -> Move:
        move, self._move = self._moving, None
        move.close()
        return move

    # --- helpers ------------------------------------------------------------------------------------------------

    @property
    def _held(self) -> HeldStream:
        """The tokens of a begun stream that can go on elsewhere."""
        assert self._job.held is not None
        return self._job.held

    @property
    def _moving(self) -> Move:
        """The move under way."""
        assert self._move is not None
        return self._move

    def _note_prefill(self, endpoint: Endpoint) -> None:
        record = self._job.record
        record.prefill, record.prefilled_s = endpoint.id, self._ticket.now_s()

    def _note_move(self, outcome: MoveOutcome, pause_s: float | None = None) -> None:
        self._job.record.moves += (MoveRecord(outcome, pause_s),)


def _without_end(leg: Relay) -> str:
    return refusal(leg) if leg.status != 200 else "the stream ended before its end"


_FOLLOWED: Final = (State.OPENING, State.FLOWING, State.PASSING, State.WARMING, State.WARM, State.CROSSING)

_WAITS: Final[Mapping[State, Callable[[Run], Awaitable[Event | None]]]] = {
    State.PLACING: Run._place,
    State.FIRST_PART: Run._compute_part,
    State.PREFILLING: Run._prefill,
    State.HANDING_OFF: Run._hand_off,
    State.REPLACING: Run._replace,
    State.REFILLING: Run._refill,
    State.REJOINING: Run._hand_off,
    **dict.fromkeys(_FOLLOWED, Run._follow),
}

_DOES: Final[Mapping[Action, Callable[[Run], None]]] = {
    Action.RETRY: Run._retry,
    Action.RESCUE: Run._rescue,
    Action.REPORT_PREFILLED: Run._report_prefilled,
    Action.REPORT_PART: Run._report_part,
    Action.REPORT_NO_PART: Run._report_no_part,
    Action.REPORT_TOKEN: Run._report_token,
    Action.REPORT_MOVED: Run._report_moved,
    Action.BEGIN_ANSWER: Run._begin_answer,
    Action.REFUSE_REQUEST: Run._refuse_request,
    Action.PASS_ON: Run._pass_on,
    Action.FINISH: Run._finish,
    Action.BREAK: Run._break,
    Action.CANCEL: Run._cancel,
    Action.WARM_UP: Run._warm_up,
    Action.AWAIT_CUT: Run._await_cut,
    Action.FOLLOW_TARGET: Run._follow_target,
    Action.LIMIT_TARGET: Run._limit_target,
    Action.FOLLOW_SOURCE: Run._follow_source,
    Action.GIVE_MOVE_UP: Run._give_move_up,
    Action.REFUSE_MOVE: Run._refuse_move,
    Action.DROP_MOVE: Run._drop_move,
}
