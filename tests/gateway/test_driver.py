"""What the driver does with effects that a face must support: segments and migrations. The Director is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.directing.settings import SettingsChanged
from ballast_core.model import Endpoint, EndpointId, Outcome, Request, RequestId, Role
from ballast_core.model.effects import Dispatch, Effect, Handoff, Migrate
from ballast_core.model.events import (
    EndpointObserved,
    Event,
    FirstToken,
    Migrated,
    MigrationFailed,
    ProgressBatch,
    RequestArrived,
    RequestEnded,
    SegmentDone,
)
from ballast_core.policies.rescheduling.ares import Ares
from ballast_gateway.driver import GATHER_S, SAY_EVERY_S, Driver, Ticket
from ballast_gateway.tickets import Rejected
from tests.support.core_builders import director
from tests.support.virtual_loop import CoarseLoop, run_virtually

FIRST, SECOND = (Endpoint(EndpointId(name), f"{name}:1", Role.FLEXIBLE) for name in ("first", "second"))
ONE = Request(RequestId("one"), prompt_tokens=10)
MOVE = Migrate(ONE.id, FIRST, SECOND)


class Scripted(Director):
    """Answers events by their type and keeps them, with their times."""

    def __init__(self, script: Mapping[type, Sequence[Effect]], *, learn: Belief = Belief.PROGRESS) -> None:
        super().__init__(replace(director().settings, learn=learn))
        self.script = script
        self.events: list[Event] = []
        self.times_s: list[float] = []

    def on_event(self, event: Event | SettingsChanged, now_s: float) -> list[Effect]:
        assert not isinstance(event, SettingsChanged)
        self.events.append(event)
        self.times_s.append(now_s)
        return list(self.script.get(type(event), ()))


DISPATCH = Dispatch(ONE.id, None, FIRST)


def test_an_order_to_move_a_request_without_a_mover_is_reported_as_failed_at_once() -> None:
    """No silent no-op: a move that is not carried out has failed."""
    scripted = Scripted({RequestArrived: [DISPATCH], FirstToken: [MOVE]})

    async def serve() -> None:
        with Driver(scripted).open(ONE) as ticket:
            await ticket.dispatched()
            ticket.first_token()
            ticket.end(Outcome.COMPLETED, 20)

    run_virtually(serve())
    assert scripted.events[1:3] == [FirstToken(ONE.id), MigrationFailed(ONE.id, SECOND.id)]


@pytest.mark.parametrize("works", [True, False])
def test_a_mover_gets_each_order_once_and_its_report_reaches_the_director(works: bool) -> None:
    """Also if it reports within the call: the Director gets one event after the other."""
    scripted = Scripted({RequestArrived: [DISPATCH], FirstToken: [MOVE, MOVE]})
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
            ticket.first_token()
            ticket.end(Outcome.COMPLETED)

    run_virtually(serve())
    report = (Migrated if works else MigrationFailed)(ONE.id, SECOND.id)
    assert asked == [MOVE, MOVE]
    assert scripted.events[2:4] == [report, report]


def test_a_request_that_has_ended_is_not_moved() -> None:
    """Its end has been reported, and its mover is not called."""
    scripted = Scripted({FirstToken: [MOVE]})
    asked: list[Migrate] = []

    async def serve() -> None:
        driver = Driver(scripted)
        driver.open(ONE, mover=asked.append).end(Outcome.COMPLETED)
        driver.feed(FirstToken(ONE.id))

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


# --- progress in batches ------------------------------------------------------------------------------------------

TWO = Request(RequestId("two"), prompt_tokens=10)


async def report(ticket: Ticket, *reports: tuple[float, int]) -> None:
    """So many tokens, each so long after the report before it."""
    for after_s, tokens in reports:
        await asyncio.sleep(after_s)
        ticket.progress(tokens)


def test_progress_is_gathered_for_a_few_milliseconds_and_each_report_keeps_its_own_time() -> None:
    """One batch for what comes within them, in the order of time; the next report begins another."""
    scripted = Scripted({})

    async def serve() -> None:
        driver = Driver(scripted)
        one, two = driver.open(ONE), driver.open(TWO)
        await report(one, (1.0, 16), (0.001, 17))
        await report(two, (0.001, 5))
        await asyncio.sleep(0.5)
        await report(one, (0.0, 33))
        await asyncio.sleep(0.5)

    run_virtually(serve())
    first, second = scripted.events[2:]
    assert isinstance(first, ProgressBatch)
    assert isinstance(second, ProgressBatch)
    assert [(round(at_s, 6), name, tokens) for at_s, name, tokens in first.reports] == [
        (1.0, ONE.id, 16),
        (1.001, ONE.id, 17),
        (1.002, TWO.id, 5),
    ]
    assert [report[1:] for report in second.reports] == [(ONE.id, 33)]
    assert [round(at_s, 6) for at_s in scripted.times_s[2:]] == [1.0 + GATHER_S, 1.502 + GATHER_S]
    assert GATHER_S <= 0.005


def test_what_is_gathered_goes_before_any_other_event() -> None:
    """Of the same request or of another: no decision misses what had happened, and no end its last progress."""
    scripted = Scripted({RequestArrived: [DISPATCH]})

    async def serve() -> None:
        driver = Driver(scripted)
        one = driver.open(ONE)
        one.progress(16)
        two = driver.open(TWO)
        two.progress(1)
        one.progress(32)
        one.end(Outcome.COMPLETED, 40)
        two.end(Outcome.CANCELLED)

    run_virtually(serve())
    assert scripted.events[:5] == [
        RequestArrived(ONE),
        ProgressBatch([(0.0, ONE.id, 16)]),
        RequestArrived(TWO),
        ProgressBatch([(0.0, TWO.id, 1), (0.0, ONE.id, 32)]),
        RequestEnded(ONE.id, Outcome.COMPLETED, 40),
    ]


def test_progress_that_an_effect_brings_goes_before_the_events_that_follow() -> None:
    """A mover reports tokens and then its outcome within one call: the Director hears them in that order."""
    scripted = Scripted({FirstToken: [MOVE]})

    async def serve() -> None:
        driver = Driver(scripted)

        def move(effect: Migrate) -> None:
            ticket.progress(7)
            ticket.migrated(effect.target.id)

        ticket = driver.open(ONE, mover=move)
        ticket.first_token()

    run_virtually(serve())
    assert scripted.events[1:] == [
        FirstToken(ONE.id),
        ProgressBatch([(0.0, ONE.id, 7)]),
        Migrated(ONE.id, SECOND.id),
    ]


def test_a_listener_that_fails_keeps_no_effect_from_being_carried_out(caplog: pytest.LogCaptureFixture) -> None:
    """The other listeners hear all, each ticket gets what is its own, and the log has one line in ten seconds."""
    scripted = Scripted({RequestArrived: [DISPATCH], FirstToken: [MOVE]})
    heard: list[Effect] = []

    def full(effect: Effect, now_s: float) -> None:
        raise OSError("No space left on device")

    async def serve() -> None:
        driver = Driver(scripted, listeners=(full, lambda effect, now_s: heard.append(effect)))
        for _ in range(2):
            with driver.open(ONE) as ticket:
                assert await ticket.dispatched() is DISPATCH
                ticket.first_token()
                ticket.end(Outcome.COMPLETED, 20)
            await asyncio.sleep(SAY_EVERY_S)

    run_virtually(serve())
    assert heard == [DISPATCH, MOVE] * 2
    assert [event for event in scripted.events if isinstance(event, RequestEnded)] == [
        RequestEnded(ONE.id, Outcome.COMPLETED, 20)
    ] * 2
    assert [record.exc_info is not None for record in caplog.records] == [True] * 2


def test_nothing_gathered_is_lost_at_the_close() -> None:
    """And no timer is left to fire later."""
    scripted = Scripted({})

    async def serve() -> None:
        driver = Driver(scripted)
        driver.open(ONE).progress(16)
        driver.close()
        assert scripted.events[1:] == [ProgressBatch([(0.0, ONE.id, 16)])]
        await asyncio.sleep(1.0)

    run_virtually(serve())
    assert len(scripted.events) == 2


def test_policies_that_follow_no_progress_are_told_none() -> None:
    """It would change nothing, and costs time for each chunk of each stream."""
    scripted = Scripted({}, learn=Belief.NONE)

    async def serve() -> None:
        driver = Driver(scripted)
        ticket = driver.open(ONE)
        ticket.progress(16)
        ticket.end(Outcome.COMPLETED, 20)
        driver.close()

    run_virtually(serve())
    assert scripted.events == [RequestArrived(ONE), RequestEnded(ONE.id, Outcome.COMPLETED, 20)]
