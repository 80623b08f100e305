"""What the driver does with effects that a face must support: segments and migrations. The Director is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ballast_core.directing.director import Director
from ballast_core.model import Endpoint, EndpointId, Outcome, Request, RequestId, Role
from ballast_core.model.effects import Dispatch, Effect, Handoff, Migrate
from ballast_core.model.events import (
    EndpointObserved,
    Event,
    Migrated,
    MigrationFailed,
    Progress,
    RequestArrived,
    SegmentDone,
)
from ballast_core.policies.rescheduling.ares import Ares
from ballast_gateway.driver import Driver, Rejected, Ticket
from tests.support.core_builders import director
from tests.support.virtual_loop import CoarseLoop, run_virtually

FIRST, SECOND = (Endpoint(EndpointId(name), f"{name}:1", Role.FLEXIBLE) for name in ("first", "second"))
ONE = Request(RequestId("one"), prompt_tokens=10)
MOVE = Migrate(ONE.id, FIRST, SECOND)


class Scripted(Director):
    """Answers events by their type and keeps them."""

    def __init__(self, script: Mapping[type, Sequence[Effect]]) -> None:
        super().__init__(director().settings)
        self.script = script
        self.events: list[Event] = []

    def on_event(self, event: Event, now_s: float) -> list[Effect]:
        self.events.append(event)
        return list(self.script.get(type(event), ()))


DISPATCH = Dispatch(ONE.id, None, FIRST)


def test_an_order_to_move_a_request_without_a_mover_is_reported_as_failed_at_once() -> None:
    """No silent no-op: a move that is not carried out has failed."""
    scripted = Scripted({RequestArrived: [DISPATCH], Progress: [MOVE]})

    async def serve() -> None:
        with Driver(scripted).open(ONE) as ticket:
            await ticket.dispatched()
            ticket.progress(16)
            ticket.end(Outcome.COMPLETED, 20)

    run_virtually(serve())
    assert scripted.events[1:3] == [Progress(ONE.id, 16), MigrationFailed(ONE.id, SECOND.id)]


@pytest.mark.parametrize("works", [True, False])
def test_a_mover_gets_each_order_once_and_its_report_reaches_the_director(works: bool) -> None:
    """Also if it reports within the call: the Director gets one event after the other."""
    scripted = Scripted({RequestArrived: [DISPATCH], Progress: [MOVE, MOVE]})
    asked: list[Migrate] = []
    tickets: list[Ticket] = []

    def move(effect: Migrate) -> None:
        asked.append(effect)
        report = tickets[0].migrated if works else tickets[0].migration_failed
        report(effect.target.id)
        assert not any(isinstance(event, Migrated | MigrationFailed) for event in scripted.events)

    async def serve() -> None:
        with Driver(scripted).open(ONE, mover=move) as ticket:
            tickets.append(ticket)
            ticket.progress(16)
            ticket.end(Outcome.COMPLETED)

    run_virtually(serve())
    report = (Migrated if works else MigrationFailed)(ONE.id, SECOND.id)
    assert asked == [MOVE, MOVE]
    assert scripted.events[2:4] == [report, report]


def test_a_request_that_has_ended_is_not_moved() -> None:
    """Its end has been reported, and its mover is not called."""
    scripted = Scripted({Progress: [MOVE]})
    asked: list[Migrate] = []

    async def serve() -> None:
        driver = Driver(scripted)
        driver.open(ONE, mover=asked.append).end(Outcome.COMPLETED)
        driver.feed(Progress(ONE.id, 1))

    run_virtually(serve())
    assert not asked
    assert not any(isinstance(event, MigrationFailed) for event in scripted.events)


def test_segment_done_returns_the_endpoint_of_the_next_segment() -> None:
    """The event carries the tokens so far."""
    scripted = Scripted({RequestArrived: [DISPATCH], SegmentDone: [Handoff(ONE.id, SECOND)]})

    async def serve() -> Any:
        with Driver(scripted).open(ONE) as ticket:
            await ticket.dispatched()
            return ticket.segment_done(7)

    assert run_virtually(serve()) == Handoff(ONE.id, SECOND)
    assert scripted.events[1] == SegmentDone(ONE.id, 7)


def test_a_held_request_is_rejected_in_time_though_timers_fire_too_soon() -> None:
    """The loop's milliseconds end before the Director's time: the timer is set again, so no request waits forever."""

    async def serve() -> None:
        with Driver(director((), hold_s=0.0504)).open(ONE) as ticket, pytest.raises(Rejected):
            await ticket.dispatched()

    run_virtually(serve(), CoarseLoop)


def test_rounds_go_on_on_timers_that_fire_too_soon() -> None:
    """An interval that is no whole number of milliseconds: each round comes, and asks for the next."""
    policy, rounds_s = Ares(interval_s=0.0504), list[float]()

    async def serve() -> None:
        core = Director(replace(director().settings, rescheduling=policy))
        driver = Driver(core)
        for each in (FIRST, SECOND):
            driver.feed(EndpointObserved(each))
        with driver.open(ONE) as ticket:
            await ticket.dispatched()
            ticket.first_token()
            await asyncio.sleep(1.0)
        assert core.rescheduler is not None
        rounds_s.extend(each.at_s for each in core.rescheduler.rounds)
        driver.close()

    run_virtually(serve(), CoarseLoop)
    assert len(rounds_s) >= 18
