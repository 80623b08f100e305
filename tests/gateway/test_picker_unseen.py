"""Requests whose end nobody shows: what scrapes say of them is what the ledger holds."""

from __future__ import annotations

import pytest

from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, Outcome, Stage
from ballast_core.state.ledger import Phase
from ballast_gateway.driver import Driver, Ticket
from ballast_gateway.picker.unseen import UnseenRequests
from tests.support.core_builders import director, observation, request

SETTLE_S = 0.2


class Fleet:
    """A driver on a clock of the test's own, and the requests that nobody follows."""

    def __init__(self, *names: str) -> None:
        self.now_s = 0.0
        self.director: Director = director(names)
        self.driver = Driver(self.director, clock=lambda: self.now_s)
        self.unseen = UnseenRequests(settle_s=SETTLE_S, now_s=self.driver.now_s)
        self.tickets: dict[str, Ticket] = {}

    def route(self, *names: str) -> None:
        for name in names:
            self.tickets[name] = ticket = self.driver.open(request(name))
            dispatch = ticket.poll()
            assert dispatch is not None
            self.unseen.add(ticket, dispatch, lambda ticket=ticket: ticket.end(Outcome.COMPLETED))  # type: ignore[misc]

    def scrape(self, endpoint: str, running: int, waiting: int = 0) -> list[str]:
        """Returns what is booked after it."""
        self.unseen.observed(EndpointId(endpoint), observation(running, waiting, self.now_s))
        return list(self.director.ledger.entries)

    def phases(self) -> dict[str, Phase]:
        return {name: entry.phase for name, entry in self.director.ledger.entries.items()}


async def test_an_engine_that_reports_fewer_has_finished_the_oldest() -> None:
    """Bookings never exceed what is reported, and what remains are the youngest."""
    fleet = Fleet("f0")
    fleet.route("a", "b", "c")
    fleet.now_s = 1.0
    assert fleet.scrape("f0", running=3) == ["a", "b", "c"]
    assert fleet.scrape("f0", running=1, waiting=1) == ["b", "c"]
    assert fleet.scrape("f0", running=0) == []
    assert len(fleet.unseen) == 0


async def test_a_scrape_says_nothing_of_a_request_that_may_still_be_on_its_way() -> None:
    """Neither does it count against the older ones."""
    fleet = Fleet("f0")
    fleet.route("old")
    fleet.now_s = 1.0
    fleet.route("young")
    assert fleet.scrape("f0", running=0) == ["young"]
    fleet.now_s += SETTLE_S
    assert fleet.scrape("f0", running=0) == []


async def test_requests_of_others_hide_ends_and_end_none() -> None:
    """The sum is what the engine reports."""
    fleet = Fleet("f0")
    fleet.route("a", "b")
    fleet.now_s = 1.0
    assert fleet.scrape("f0", running=9) == ["a", "b"]
    assert fleet.director.ledger.requests[Stage.DECODE].sum() == 2


async def test_what_does_not_wait_decodes() -> None:
    """Engines admit in order, so the newest are those that wait."""
    fleet = Fleet("f0")
    fleet.route("a", "b", "c")
    fleet.now_s = 1.0
    fleet.scrape("f0", running=1, waiting=2)
    assert fleet.phases() == {"a": Phase.DECODING, "b": Phase.PREFILLING, "c": Phase.PREFILLING}
    fleet.scrape("f0", running=3)
    assert set(fleet.phases().values()) == {Phase.DECODING}


async def test_a_prefill_that_left_its_endpoint_decodes_on_the_other() -> None:
    """And is looked for there, once it has had time to arrive."""
    fleet = Fleet("p0", "d0")
    fleet.route("a", "b")
    fleet.now_s = 1.0
    fleet.scrape("d0", running=0)
    assert fleet.phases() == {"a": Phase.PREFILLING, "b": Phase.PREFILLING}
    fleet.scrape("p0", running=1)
    assert fleet.phases() == {"a": Phase.DECODING, "b": Phase.PREFILLING}
    assert fleet.scrape("d0", running=0) == ["a", "b"]
    fleet.now_s = 2.0
    assert fleet.scrape("d0", running=0) == ["b"]


async def test_prefill_times_are_not_learned_from_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are several scrape intervals off."""
    fleet = Fleet("f0")
    learned: list[object] = []
    times = fleet.director.beliefs.prefill_times
    monkeypatch.setattr(type(times), "completed", lambda *args, **kwargs: learned.append(args))
    fleet.route("a")
    fleet.now_s = 1.0
    fleet.scrape("f0", running=1)
    assert fleet.phases() == {"a": Phase.DECODING}
    assert learned == []


async def test_what_ran_on_an_endpoint_that_is_lost_is_over() -> None:
    """Its own requests, and those that it was to decode; those that it prefilled are the others' to finish."""
    fleet = Fleet("p0", "p1", "d0", "d1", "d2")
    fleet.route("a", "b", "c", "d", "e", "f")
    entries = dict(fleet.director.ledger.entries)
    slot = {name: fleet.director.inventory.slot_of(EndpointId(name)) for name in ("p0", "d0")}
    decoded = {name for name, entry in entries.items() if entry.decode_slot == slot["d0"]}
    prefilled = {name for name, entry in entries.items() if entry.prefill_slot == slot["p0"]} - decoded
    assert decoded
    assert prefilled
    fleet.now_s = 1.0
    fleet.unseen.lost(EndpointId("d0"))
    assert set(fleet.director.ledger.entries) == set(entries) - decoded
    fleet.unseen.lost(EndpointId("p0"))
    assert set(fleet.director.ledger.entries) == set(entries) - decoded
    fleet.now_s = 2.0
    fleet.scrape("d1", running=0)
    assert not prefilled & set(fleet.scrape("d2", running=0))
    fleet.scrape("p1", running=0)
    fleet.now_s = 3.0
    fleet.scrape("d1", running=0)
    assert fleet.scrape("d2", running=0) == []
    assert len(fleet.unseen) == 0


async def test_every_booking_has_a_latest_end() -> None:
    """By its own limit of output; an engine that is scraped no more cannot keep it for good."""
    fleet = Fleet("f0")
    fleet.route("a")
    (one,) = fleet.unseen._decoding[EndpointId("f0")]
    assert one.latest is not None
    one.latest.cancel()
    fleet.unseen._drop(one)
    assert (list(fleet.director.ledger.entries), len(fleet.unseen)) == ([], 0)
