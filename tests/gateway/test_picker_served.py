"""The proxy says which endpoint serves: books and health follow, on scripted streams; with a real Envoy in
`test_picker_envoy.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, Fault, Stage
from ballast_core.model.events import EndpointObserved
from ballast_gateway.driver import Driver
from ballast_gateway.picker.exchange import ExchangeSettings
from ballast_gateway.picker.face import Finished, PickerEvent, PickerFace
from ballast_gateway.picker.messages import BodyMode, Inbound, Kind, Modes, Reply
from ballast_gateway.picker.transport import Session
from ballast_gateway.records import RequestRecord
from tests.support.core_builders import director, endpoint, observation
from tests.support.recount import check_books

HEADERS = Inbound(kind=Kind.REQUEST_HEADERS, headers={":path": "/v1/completions", "x-request-id": "r"})
BODY = Inbound(kind=Kind.REQUEST_BODY, body=b'{"model":"m","prompt":"x"}', end_of_stream=True)
LAST = Inbound(kind=Kind.RESPONSE_BODY, body=b"{}", end_of_stream=True)


class Stand:
    """A picker face without a transport."""

    def __init__(self, *names: str, fallbacks: int = 2) -> None:
        self.director = Director(replace(director(()).settings, fallbacks=fallbacks))
        for name in names:
            self.director.on_event(EndpointObserved(endpoint(name)), 0.0)
        self.driver = Driver(self.director)
        self.events: list[PickerEvent] = []
        self.records: list[RequestRecord] = []
        self.face = PickerFace(
            self.driver,
            ExchangeSettings(max_body_bytes=1000),
            new_id=lambda: "id",
            listeners=(self.events.append,),
            on_record=self.records.append,
        )

    def routed(self, modes: Modes | None = None) -> Session:
        def late(replies: list[Reply]) -> None:
            raise AssertionError(replies)

        session = self.face.open(late)
        session.receive(HEADERS._replace(modes=modes))
        session.receive(BODY)
        return session

    def booked(self, stage: Stage = Stage.DECODE) -> dict[str, int]:
        ledger, inventory = self.director.ledger, self.director.inventory
        check_books(ledger)
        slots = {str(name): inventory.slot_of(EndpointId(name)) for name in inventory.known()}
        counts = {name: int(ledger.requests[stage][slot]) for name, slot in slots.items() if slot is not None}
        return {name: count for name, count in counts.items() if count}

    def failed_legs(self) -> dict[str, int]:
        reports = {str(name): self.director.health.report(name) for name in self.director.inventory.known()}
        return {name: report.failed_legs for name, report in reports.items() if report.failed_legs}


def answered(by: str, status: str = "200") -> Inbound:
    return Inbound(kind=Kind.RESPONSE_HEADERS, headers={":status": status}, served=by)


async def test_a_request_is_booked_where_it_is_served_as_soon_as_its_headers_show_it() -> None:
    """The endpoint that was picked took no connection: that counts against it, and its load is gone."""
    on = Stand("f0", "f1", "f2")
    session = on.routed()
    assert on.booked() == {"f0": 1}
    session.receive(answered("f1:8000"))
    assert (on.booked(), on.failed_legs()) == ({"f1": 1}, {"f0": 1})
    session.receive(LAST)
    assert (on.booked(), len(on.director.ledger)) == ({}, 0)
    assert on.director.health.report(EndpointId("f1")).legs == 1
    (end,) = [event for event in on.events if isinstance(event, Finished)]
    assert (end.outcome, end.decode, end.served) == ("completed", "f0:8000", "f1:8000")
    assert [(record.outcome, record.decode) for record in on.records] == [("completed", "f1")]
    assert [(record.retries, record.faults) for record in on.records] == [(1, (Fault.UNREACHABLE,))]


async def test_each_endpoint_that_was_passed_over_has_failed() -> None:
    """The list is tried in its order."""
    on = Stand("f0", "f1", "f2", "f3")
    on.routed().receive(answered("f2:8000"))
    assert (on.booked(), on.failed_legs()) == ({"f2": 1}, {"f0": 1, "f1": 1})


async def test_where_the_proxy_went_somewhere_of_its_own_only_the_first_has_failed() -> None:
    """It may not have tried the others."""
    on = Stand("f0", "f1", "f2", "f3", fallbacks=1)
    on.routed().receive(answered("f3:8000"))
    assert (on.booked(), on.failed_legs()) == ({"f3": 1}, {"f0": 1})


async def test_an_endpoint_that_nobody_knows_carries_the_request_off_the_books() -> None:
    """It runs, but no endpoint of ours has it; its end still ends it."""
    on = Stand("f0", "f1")
    session = on.routed()
    session.receive(answered("10.9.9.9:80"))
    assert (on.booked(), len(on.director.ledger)) == ({}, 1)
    session.receive(LAST)
    assert (len(on.director.ledger), on.records[0].outcome) == (0, "completed")


@pytest.mark.parametrize("by", ["f0:8000", "F0:8000", "f0"], ids=["the-same", "in-capitals", "without-port"])
async def test_the_endpoint_that_was_picked_has_not_failed(by: str) -> None:
    """However its address is written."""
    on = Stand("f0", "f1")
    on.routed().receive(answered(by))
    assert (on.booked(), on.failed_legs()) == ({"f0": 1}, {})


async def test_an_error_counts_against_the_endpoint_that_gave_it() -> None:
    """The first one has failed by itself before."""
    on = Stand("f0", "f1")
    session = on.routed()
    session.receive(answered("f1:8000", "500"))
    session.receive(LAST)
    assert on.failed_legs() == {"f0": 1, "f1": 1}


async def test_a_prefill_endpoint_stays_booked_where_only_the_decode_endpoint_is_another() -> None:
    """The sidecar there has the prompt computed by the same prefiller."""
    on = Stand("p0", "d0", "d1")
    session = on.routed()
    session.receive(answered("d1:8000"))
    assert (on.booked(Stage.PREFILL), on.booked(), on.failed_legs()) == ({"p0": 1}, {"d1": 1}, {"d0": 1})


async def test_where_no_end_is_shown_the_scrapes_of_the_serving_endpoint_tell_it() -> None:
    """Headers alone are shown: the request stays on the books of its new endpoint until that reports fewer."""
    on = Stand("f0", "f1")
    session = on.routed(Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE))
    session.receive(answered("f1:8000"))
    session.close(broken=False)
    assert on.booked() == {"f1": 1}
    later_s = on.driver.now_s() + 3600
    for name in ("f0", "f1"):
        on.face.unseen.observed(EndpointId(name), observation(at_s=later_s))
    assert (on.booked(), len(on.director.ledger)) == ({}, 0)


async def test_what_is_said_again_changes_nothing_and_what_is_said_last_counts() -> None:
    """An endpoint that has failed once has failed once."""
    on = Stand("f0", "f1", "f2")
    session = on.routed()
    for by in ("f1:8000", "f1:8000", "f0:8000"):
        session.receive(Inbound(kind=Kind.RESPONSE_BODY, body=b"{", served=by))
    assert (on.booked(), on.failed_legs()) == ({"f0": 1}, {"f0": 1})
