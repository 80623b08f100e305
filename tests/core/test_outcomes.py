"""What the Director makes of the outcomes of legs: who is asked next, who gets the blame, and when it is enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, Fault, Observation, Outcome, RejectReason, RequestId, Role, Stage
from ballast_core.model.effects import Dispatch, Effect, Handoff, Reject
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointLost,
    EndpointObserved,
    FirstToken,
    PrefillDone,
    RequestArrived,
    RequestEnded,
)
from ballast_core.state.health import HealthSettings, HealthState
from tests.support.core_builders import director, endpoint, only_dispatch, request

FLEXIBLE = ("f0", "f1", "f2", "f3")


class Told(Director):
    """A Director with a clock, and what it is told in short."""

    now_s = 0.0

    def send(self, name: str) -> EndpointId:
        return only_dispatch(self.on_event(RequestArrived(request(name)), self.now_s)).decode.id

    def fails(self, name: str, at: EndpointId, fault: Fault = Fault.BROKE, status: int = 0) -> Effect:
        (effect,) = self.on_event(DispatchFailed(RequestId(name), Stage.DECODE, at, fault, status), self.now_s)
        return effect

    def serves(self, name: str) -> None:
        self.on_event(FirstToken(RequestId(name)), self.now_s)
        self.on_event(RequestEnded(RequestId(name), Outcome.COMPLETED, 5), self.now_s)

    def scraped(self, *names: str) -> None:
        for name in names:
            self.on_event(EndpointObserved(endpoint(name), Observation(self.now_s, 0, 0)), self.now_s)

    def state(self, name: str) -> HealthState:
        return self.health.report(EndpointId(name)).state

    def counted(self, name: str) -> tuple[int, int]:
        report = self.health.report(EndpointId(name))
        return report.failed_legs, report.legs


def told(*names: str, **settings: Any) -> Told:
    made = Told(replace(director(names=names).settings, **settings))
    for name in names:
        made.on_event(EndpointObserved(endpoint(name)), 0.0)
    return made


def refused(d: Told, name: str, status: int = 401) -> tuple[list[str], Effect]:
    """A request that every endpoint refuses: who was asked, and the last effect."""
    asked = [d.send(name)]
    while isinstance(effect := d.fails(name, asked[-1], Fault.REFUSED, status), Dispatch):
        asked.append(effect.decode.id)
    return [str(one) for one in asked], effect


def reason(effect: Effect) -> RejectReason:
    assert isinstance(effect, Reject)
    return effect.reason


def test_a_refusal_counts_once_another_endpoint_has_served_the_request() -> None:
    """Until then it may be the client's fault."""
    d = told(*FLEXIBLE)
    at = d.send("a")
    assert isinstance(d.fails("a", at, Fault.REFUSED, 401), Dispatch)
    assert d.counted(at) == (0, 0)
    d.serves("a")
    assert d.counted(at) == (1, 1)


def test_what_all_refuse_is_the_clients_fault_and_its_answer() -> None:
    """401 is asked as often as may be; a 400 needs one second opinion. Nobody is blamed."""
    d = told(*FLEXIBLE)
    asked, last = refused(d, "a", 401)
    assert (len(asked), reason(last)) == (3, RejectReason.UPSTREAM_REFUSED)
    asked, last = refused(d, "b", 400)
    assert (len(asked), reason(last)) == (2, RejectReason.UPSTREAM_REFUSED)
    assert [d.counted(name) for name in FLEXIBLE] == [(0, 0)] * 4


def test_a_flood_of_bad_requests_costs_few_second_opinions() -> None:
    """At first each one is asked twice; then endpoints whose refusals others share are believed. Ten seconds long."""
    d = told(*FLEXIBLE, health=HealthSettings(retry_ratio=10.0))
    asked = sum(len(refused(d, f"bad{number}", 400)[0]) for number in range(400))
    assert 400 < asked < 460
    d.now_s = 20.0
    assert len(refused(d, "later", 400)[0]) == 2


def test_a_believed_endpoint_that_is_contradicted_is_doubted_again() -> None:
    """Its credit is gone at once."""
    d = told("f0", "f1")
    for number in range(4):
        refused(d, f"bad{number}", 400)
    while isinstance(effect := d.fails("x", d.send("x"), Fault.REFUSED, 400), Reject):
        assert effect.reason is RejectReason.UPSTREAM_REFUSED
    d.serves("x")
    (failing,) = [name for name in ("f0", "f1") if d.counted(name)[0]]
    while (at := d.send("y")) != failing:
        d.serves("y")
    assert isinstance(d.fails("y", at, Fault.REFUSED, 400), Dispatch)


def test_an_endpoint_that_refuses_what_others_serve_is_ejected() -> None:
    """One of four has another key. It gets next to nothing from then on."""
    d = told(*FLEXIBLE, health=HealthSettings(failures_in_a_row=3))
    given = 0
    for number in range(200):
        d.now_s += 0.04
        if d.health.wakes_s <= d.now_s:
            break
        name = f"r{number}"
        if d.send(name) == "f0":
            given += 1
            assert isinstance(d.fails(name, EndpointId("f0"), Fault.REFUSED, 401), Dispatch)
        d.serves(name)
    assert d.state("f0") is HealthState.EJECTED
    assert given == 3


def test_an_ejected_endpoint_is_used_where_nothing_else_is_left() -> None:
    """By a request that may go nowhere else, and by one that has failed everywhere else."""
    d = told("f0", "f1")
    for number in range(5):
        d.health.failed(0, RequestId(f"r{number}"), "broke", 0.0)
    assert d.state("f0") is HealthState.EJECTED
    only = replace(request("only"), subset=frozenset({endpoint("f0").address}))
    assert only_dispatch(d.on_event(RequestArrived(only), 0.0)).decode.id == "f0"
    at = d.send("r")
    assert at == "f1"
    effect = d.fails("r", at, Fault.ERROR, 500)
    assert isinstance(effect, Dispatch)
    assert effect.decode.id == "f0"


def test_a_probe_is_one_request_that_heals_or_makes_room_for_the_next() -> None:
    """Whatever else is sent goes to the others."""
    d = told("f0", "f1")
    for number in range(5):
        d.health.failed(0, RequestId(f"r{number}"), "broke", 0.0)
    d.now_s = 10.0
    sent = {name: d.send(name) for name in ("a", "b", "c", "d")}
    (probe,) = [name for name, at in sent.items() if at == "f0"]
    d.on_event(ClientGone(RequestId(probe)), d.now_s)
    assert d.state("f0") is HealthState.PROBING
    sent = {name: d.send(name) for name in ("e", "f", "g", "h")}
    (probe,) = [name for name, at in sent.items() if at == "f0"]
    d.serves(probe)
    assert d.state("f0") is HealthState.HEALTHY


def test_a_probe_of_a_decode_survives_late_binding() -> None:
    """Its endpoint is chosen again when prefill has ended, and it is still the only one there."""
    d = told("p0", "d0", "d1")
    slot = d.inventory.slot_of(EndpointId("d0"))
    assert slot is not None
    for number in range(5):
        d.health.failed(slot, RequestId(f"r{number}"), "broke", 0.0)
    d.now_s = 10.0
    sent = {name: d.send(name) for name in ("a", "b", "c")}
    (probe,) = [name for name, at in sent.items() if at == "d0"]
    handed = {}
    for name in sent:
        (effect,) = d.on_event(PrefillDone(RequestId(name)), d.now_s)
        assert isinstance(effect, Handoff)
        handed[name] = effect.decode.id
    assert [name for name, at in handed.items() if at == "d0"] == [probe]
    d.serves(probe)
    assert d.state("d0") is HealthState.HEALTHY


def test_an_endpoint_that_fails_quickly_does_not_look_idle() -> None:
    """It has nothing on its books, and the others have; it is passed over all the same."""
    d = told(*FLEXIBLE)
    for name in ("a", "b", "c"):
        d.send(name)
    at = d.send("d")
    assert isinstance(d.fails("d", at), Dispatch)
    assert d.send("e") != at
    d.now_s = 5.0
    assert d.send("f") == at


def test_retries_beyond_the_budget_are_refused_but_leaving_an_ejected_endpoint_is_free() -> None:
    """Ten, and a fifth of the requests of the window and in flight."""
    d = told(*FLEXIBLE, health=HealthSettings(max_ejected_ratio=0.0))
    sent = {f"r{number}": d.send(f"r{number}") for number in range(50)}
    effects = [d.fails(name, at, Fault.ERROR, 500) for name, at in sent.items()]
    retried = [effect for effect in effects if isinstance(effect, Dispatch)]
    assert {reason(effect) for effect in effects if isinstance(effect, Reject)} == {RejectReason.RETRY_BUDGET}
    assert 20 <= len(retried) <= 10 + 0.2 * (50 + 50)
    d = told("f0", "f1", "f2", health=HealthSettings(retry_ratio=0.0))
    sent = {f"r{number}": d.send(f"r{number}") for number in range(90)}
    dying = [d.fails(name, at) for name, at in sent.items() if at == "f0"]
    assert len(dying) == 30
    assert all(isinstance(effect, Dispatch) for effect in dying)


def test_answers_that_have_begun_overdraw_the_budget_once_over() -> None:
    """By as many as there are requests in flight; those that have not begun are refused meanwhile."""
    d = told(*FLEXIBLE, health=HealthSettings(max_ejected_ratio=0.0, retry_ratio=0.0))
    sent = {f"r{number}": d.send(f"r{number}") for number in range(30)}
    for name in sent:
        d.on_event(FirstToken(RequestId(name)), d.now_s)
    for name, at in sent.items():
        effect = d.fails(name, at)
        assert isinstance(effect, Dispatch)
        sent[name] = effect.decode.id
    assert d.outcomes.retries_left(0.0) == 0
    assert reason(d.fails("new", d.send("new"), Fault.ERROR, 500)) is RejectReason.RETRY_BUDGET
    again = [d.fails(name, at) for name, at in sent.items()]
    assert isinstance(again[0], Dispatch)
    assert reason(again[-1]) is RejectReason.RETRY_BUDGET


def test_retries_that_reached_no_engine_are_free() -> None:
    """No connection came about: nobody has worked for them."""
    d = told(*FLEXIBLE, health=HealthSettings(max_ejected_ratio=0.0, retry_ratio=0.0))
    for number in range(30):
        assert isinstance(d.fails(f"r{number}", d.send(f"r{number}"), Fault.UNREACHABLE), Dispatch)
    assert d.outcomes.retries_left(0.0) == 10


def test_the_budget_is_that_of_a_window() -> None:
    """Later there is room again."""
    d = told(*FLEXIBLE, health=HealthSettings(max_ejected_ratio=0.0, retry_ratio=0.0))
    for number in range(10):
        assert isinstance(d.fails(f"r{number}", d.send(f"r{number}"), Fault.ERROR, 500), Dispatch)
    assert reason(d.fails("r", d.send("r"), Fault.ERROR, 500)) is RejectReason.RETRY_BUDGET
    assert d.outcomes.retries_left(0.0) == 0
    d.now_s = 25.0
    assert d.outcomes.retries_left(25.0) == 10
    assert isinstance(d.fails("s", d.send("s"), Fault.ERROR, 500), Dispatch)


def test_a_request_that_two_dead_endpoints_broke_off_with_is_not_fed_to_a_third() -> None:
    """Neither has been scraped since. Where the first one lives, it was a broken connection and no death."""
    for lives in (False, True):
        d = told(*FLEXIBLE)
        d.now_s = 1.0
        d.scraped(*FLEXIBLE)
        first = d.send("r")
        second = d.fails("r", first)
        assert isinstance(second, Dispatch)
        d.now_s = 2.0
        if lives:
            d.scraped(first)
        effect = d.fails("r", second.decode.id)
        if lives:
            assert isinstance(effect, Dispatch)
        else:
            assert reason(effect) is RejectReason.BREAKS_ENGINES


def test_a_prefill_and_a_decode_that_break_off_say_nothing_of_the_request() -> None:
    """What kills engines does so at the same work."""
    d = told("p0", "p1", "d0", "d1")
    d.now_s = 1.0
    d.scraped("p0", "p1", "d0", "d1")
    d.send("r")
    entry = d.ledger.entries[RequestId("r")]
    assert entry.prefill_slot is not None
    effect = d.fails("r", d.inventory.endpoint(entry.prefill_slot).id)
    assert isinstance(effect, Dispatch)
    d.on_event(PrefillDone(RequestId("r")), d.now_s)
    effect = d.fails("r", effect.decode.id)
    assert isinstance(effect, Dispatch)
    d.on_event(PrefillDone(RequestId("r")), d.now_s)
    assert reason(d.fails("r", effect.decode.id)) is RejectReason.BREAKS_ENGINES


def test_requests_that_ran_well_on_an_engine_are_not_blamed_for_its_death() -> None:
    """They had tokens from it: what killed it came later."""
    d = told(*FLEXIBLE)
    d.now_s = 1.0
    d.scraped(*FLEXIBLE)
    at = d.send("r")
    d.on_event(FirstToken(RequestId("r")), d.now_s)
    second = d.fails("r", at)
    assert isinstance(second, Dispatch)
    d.on_event(EndpointLost(at), d.now_s)
    assert isinstance(d.fails("r", second.decode.id), Dispatch)


def test_an_end_with_a_fault_counts_and_one_without_does_not() -> None:
    """The client's leave, a fault of ours, and a whole answer beside a broken one."""
    d = told("f0", "f1")
    at = d.send("a")
    d.on_event(RequestEnded(RequestId("a"), Outcome.FAILED, 3, Fault.BROKE), 0.0)
    assert d.counted(at) == (1, 1)
    at = d.send("b")
    before = d.counted(at)
    d.on_event(RequestEnded(RequestId("b"), Outcome.FAILED), 0.0)
    assert d.counted(at) == before
    at = d.send("c")
    failed, legs = d.counted(at)
    d.on_event(RequestEnded(RequestId("c"), Outcome.COMPLETED, 7), 0.0)
    assert d.counted(at) == (failed, legs + 1)


def test_a_prefill_that_was_left_out_is_no_success() -> None:
    """Requests of several choices have no prefill leg, though one was dispatched."""
    d = told("p0", "d0")
    d.send("a")
    d.on_event(PrefillDone(RequestId("a"), computed=False), 0.0)
    assert d.counted("p0") == (0, 0)
    d.send("b")
    d.on_event(PrefillDone(RequestId("b")), 0.0)
    assert d.counted("p0") == (0, 1)
    assert {role for role, _ in d.health.states()} == {Role.PREFILL, Role.DECODE}
