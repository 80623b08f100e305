"""Orders to move a running decode: what the table's actions about moves do. A move's own course is in `moving`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from ballast_core.model import Endpoint
from ballast_core.model.effects import Migrate
from ballast_gateway.proxy.course import Course, Resources
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.legs import Job
from ballast_gateway.proxy.life import Action, Event, State
from ballast_gateway.proxy.moving import Move
from ballast_gateway.records import MoveOutcome, MoveRecord
from ballast_gateway.tickets import Ticket

_log = logging.getLogger(__name__)

TARGET_DUE_S: Final = 5.0
"""From a cut to the target's first token, while the client sees nothing: 2 s to be admitted, as the simulator has it,
and 3 s for the few tokens that the warm-up has not computed. Then the source goes on."""


class Orders:
    """The orders about one stream, of which one at most is under way (`move`)."""

    def __init__(self, resources: Resources, job: Job, ticket: Ticket, on: Callable[[Event], None]) -> None:
        """`on` gets the events of the move under way."""
        self.move: Move | None = None
        self._resources = resources
        self._job = job
        self._ticket = ticket
        self._on = on
        self._order: Migrate
        self._at: State
        self._course: Course

    def take(self, order: Migrate, at: State, course: Course | None) -> None:
        """An order has come in this state; `course` unless the stream cannot be moved."""
        self._order, self._at = order, at
        if course is not None:
            self._course = course

    def do(self, action: Action) -> None:
        """Carry out one of the actions about moves."""
        _DOES[action](self)

    def close(self) -> None:
        """The request is over."""
        if self.move is not None:
            self.move.close()

    def _warm_up(self) -> None:
        resources = self._resources
        self._held.moves = True
        self.move = Move(
            *(resources.pool, resources.loop, self._job, self._held),
            target=self._order.target,
            source=self._course.endpoint,
            on=self._on,
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
        self._note(MoveOutcome.MOVED, self._resources.loop.time() - move.left_s)
        self._ticket.migrated(move.target.id)

    def _give_up(self) -> None:
        move = self._end_move()
        self._report_failed(move.target, move.problem or "its state can no longer be carried over")

    def _refuse(self) -> None:
        self._report_failed(self._order.target, f"ordered while {self._at.value}, or not to be carried over")

    def _drop(self) -> None:
        self._end_move()
        self._note(MoveOutcome.ENDED if self._held.finished else MoveOutcome.FAILED)

    def _report_failed(self, target: Endpoint, problem: str) -> None:
        self._note(MoveOutcome.FAILED, problem=problem)
        _log.info("a move failed", extra={"request_id": self._job.record.id, "problem": problem})
        self._ticket.migration_failed(target.id)

    def _end_move(self) -> Move:
        move, self.move = self._moving, None
        self._held.moves = False
        move.close()
        return move

    def _note(self, outcome: MoveOutcome, pause_s: float | None = None, problem: str = "") -> None:
        record = self._job.record
        record.moves += (MoveRecord(outcome, pause_s),)
        if record.trace is not None:
            record.trace.moved(outcome, problem)

    @property
    def _held(self) -> HeldStream:
        assert self._job.held is not None
        return self._job.held

    @property
    def _moving(self) -> Move:
        assert self.move is not None
        return self.move


_DOES: Final[Mapping[Action, Callable[[Orders], None]]] = {
    Action.WARM_UP: Orders._warm_up,
    Action.AWAIT_CUT: Orders._await_cut,
    Action.FOLLOW_TARGET: Orders._follow_target,
    Action.LIMIT_TARGET: Orders._limit_target,
    Action.FOLLOW_SOURCE: Orders._follow_source,
    Action.REPORT_MOVED: Orders._report_moved,
    Action.GIVE_MOVE_UP: Orders._give_up,
    Action.REFUSE_MOVE: Orders._refuse,
    Action.DROP_MOVE: Orders._drop,
}

ACTIONS: Final = frozenset(_DOES)
"""What `Orders.do` carries out."""
