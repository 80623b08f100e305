"""Outlier ejection: who is ejected, for how long, and how it comes back.

Properties, whatever happens: no more than the share of a role is kept from new requests, one endpoint is always a
candidate; a half-open endpoint has one probe at most; without faults everything heals.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ballast_core.model import EndpointId, RequestId, Role, Stage
from ballast_core.state.health import Health, HealthChange, HealthSettings, HealthState
from ballast_core.state.inventory import Inventory
from tests.support.core_builders import endpoint

R = RequestId("r")


class Fleet:
    """Endpoints by name (p* prefill, d* decode, f* flexible) and their health."""

    def __init__(self, *names: str, **settings: float) -> None:
        self.inventory = Inventory()
        self.health = Health(HealthSettings(**settings), self.inventory)  # type: ignore[arg-type]
        self.changes: list[HealthChange] = []
        self.health.on_change = self.changes.append
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        one = endpoint(name)
        slot, _ = self.inventory.put(one)
        self.health.grow(self.inventory.capacity)
        self.health.appeared(slot, one)

    def lose(self, name: str) -> None:
        slot = self.slot(name)
        self.inventory.lose(slot)
        self.health.keep_share()
        self.health.forget(slot, EndpointId(name))
        self.inventory.release(slot)

    def slot(self, name: str) -> int:
        slot = self.inventory.slot_of(EndpointId(name))
        assert slot is not None
        return slot

    def fail(self, name: str, times: int = 1, at_s: float = 0.0, request_id: RequestId = R) -> None:
        for _ in range(times):
            self.health.failed(self.slot(name), request_id, "broke", at_s)

    def serve(self, name: str, times: int = 1, at_s: float = 0.0, request_id: RequestId = R) -> None:
        for _ in range(times):
            self.health.succeeded(self.slot(name), request_id, at_s)

    def state(self, name: str) -> HealthState:
        return self.health.report(EndpointId(name)).state

    def candidates(self, stage: Stage = Stage.DECODE) -> list[str]:
        return [str(one.id) for one in self.inventory.candidates(stage).endpoints]


def test_five_failures_in_a_row_eject_and_a_success_between_starts_anew() -> None:
    """Others serve meanwhile."""
    fleet = Fleet("d0", "d1", "d2")
    fleet.serve("d1", 20)
    fleet.fail("d0", 4)
    fleet.serve("d0", 40)
    fleet.fail("d0", 4)
    assert fleet.state("d0") is HealthState.HEALTHY
    fleet.fail("d0")
    assert fleet.state("d0") is HealthState.EJECTED
    assert fleet.candidates() == ["d1", "d2"]
    assert fleet.changes[-1].reason == "5 legs in a row failed, the last one: broke"


def test_a_share_of_failures_far_from_that_of_the_others_ejects() -> None:
    """Every second leg fails there: 5 of 9."""
    fleet = Fleet("d0", "d1", "d2")
    fleet.serve("d1", 20)
    for _ in range(4):
        fleet.fail("d0")
        fleet.serve("d0")
    assert fleet.state("d0") is HealthState.HEALTHY
    fleet.fail("d0")
    assert fleet.changes[-1].cause == "share"
    assert fleet.changes[-1].reason == "5 of 9 legs failed, 0% of the others'; the last one: broke"


def test_what_hits_all_alike_ejects_nobody() -> None:
    """An overload, a broken network, one client's wrong key: there is no outlier."""
    fleet = Fleet("d0", "d1", "d2")
    for _ in range(50):
        for name in ("d0", "d1", "d2"):
            fleet.fail(name)
    assert {fleet.state(name) for name in ("d0", "d1", "d2")} == {HealthState.HEALTHY}


def test_roles_are_judged_apart() -> None:
    """Failing prefills say nothing of a decode."""
    fleet = Fleet("p0", "p1", "d0", "d1")
    fleet.fail("p0", 50)
    fleet.fail("d0", 5)
    assert fleet.state("d0") is HealthState.EJECTED


def test_a_lone_endpoint_is_never_ejected_and_no_more_than_the_share_is() -> None:
    """Half of three is one, rounded down."""
    lone = Fleet("d0", "p0", "p1")
    lone.fail("d0", 100)
    assert lone.state("d0") is HealthState.HEALTHY
    fleet = Fleet("d0", "d1", "d2")
    fleet.serve("d2", 20)
    fleet.fail("d0", 5)
    fleet.fail("d1", 5)
    assert fleet.candidates() == ["d1", "d2"]


def test_an_ejected_endpoint_is_probed_by_one_request_at_a_time_and_a_success_heals() -> None:
    """A probe that leaves without an outcome makes room for the next; other requests' outcomes are no probe's."""
    fleet = Fleet("d0", "d1", ejection_s=10.0)
    fleet.fail("d0", 5, at_s=100.0)
    assert fleet.health.wakes_s == 110.0
    fleet.health.wake(110.0)
    assert fleet.state("d0") is HealthState.PROBING
    assert fleet.candidates() == ["d0", "d1"]
    fleet.health.sent(RequestId("a"), fleet.slot("d0"))
    assert fleet.candidates() == ["d1"]
    fleet.serve("d0", request_id=RequestId("from before"))
    assert fleet.state("d0") is HealthState.PROBING
    fleet.health.left(RequestId("a"))
    assert fleet.candidates() == ["d0", "d1"]
    fleet.health.sent(RequestId("b"), fleet.slot("d0"))
    fleet.serve("d0", at_s=111.0, request_id=RequestId("b"))
    assert fleet.state("d0") is HealthState.HEALTHY
    assert fleet.candidates() == ["d0", "d1"]
    assert fleet.health.probes == 0


def test_each_failed_probe_ejects_for_twice_as_long_and_a_good_time_begins_anew() -> None:
    """10 s, 20 s, 40 s, ... 300 s."""
    fleet = Fleet("d0", "d1", ejection_s=10.0)
    fleet.fail("d0", 5)
    lasting_s, now_s = [fleet.health.wakes_s], 0.0
    for _ in range(6):
        now_s = fleet.health.wakes_s
        fleet.health.wake(now_s)
        fleet.health.sent(R, fleet.slot("d0"))
        fleet.fail("d0", at_s=now_s)
        lasting_s.append(fleet.health.wakes_s - now_s)
    assert lasting_s == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    now_s = fleet.health.wakes_s
    fleet.health.wake(now_s)
    fleet.health.sent(R, fleet.slot("d0"))
    fleet.serve("d0", at_s=now_s)
    fleet.fail("d0", 5, at_s=now_s + 1000.0)
    assert fleet.health.wakes_s == now_s + 1010.0


def test_one_that_comes_back_after_it_was_lost_is_half_open() -> None:
    """A crash loop does not begin anew each time."""
    fleet = Fleet("d0", "d1", "d2")
    fleet.fail("d0", 5)
    fleet.lose("d0")
    fleet.add("d0")
    assert fleet.state("d0") is HealthState.PROBING
    assert fleet.health.report(EndpointId("d0")).ejections == 1


def test_when_others_are_lost_an_ejected_endpoint_is_let_back_in() -> None:
    """The share is that of the endpoints that are there."""
    fleet = Fleet("d0", "d1")
    fleet.fail("d0", 5)
    assert fleet.candidates() == ["d1"]
    fleet.lose("d1")
    assert fleet.state("d0") is HealthState.HEALTHY
    assert fleet.changes[-1].cause == "role"


def test_a_failure_counts_as_load_until_a_success_or_for_some_seconds() -> None:
    """Errors are quick: an endpoint that answers with them must not look idle."""
    fleet = Fleet("d0", "d1")
    slot = fleet.slot("d0")
    fleet.fail("d0")
    assert fleet.health.dear(1.9) == {slot}
    assert fleet.health.dear(2.1) == set()
    fleet.fail("d0", at_s=3.0)
    assert fleet.health.dear(6.9) == {slot}
    fleet.serve("d0", at_s=5.0)
    assert fleet.health.dear(5.0) == set()
    fleet.health.suspected(slot, 10.0)
    assert fleet.health.dear(10.5) == {slot}
    fleet.health.cleared(slot)
    assert fleet.health.dear(10.5) == set()


def test_outcomes_are_forgotten_in_time() -> None:
    """A record costs each decision something, so it does not stay for ever."""
    fleet = Fleet("d0", "d1")
    fleet.fail("d0", 4)
    fleet.serve("d0")
    assert fleet.health.troubled
    fleet.serve("d1", at_s=31.0)
    assert fleet.health.report(EndpointId("d0")).failed_legs == 4
    fleet.serve("d1", at_s=62.0)
    assert fleet.health.report(EndpointId("d0")).failed_legs == 0
    assert not fleet.health.troubled


def test_a_fleet_without_a_failure_keeps_its_candidates() -> None:
    """The very same object: nothing is computed anew."""
    fleet = Fleet("d0", "d1")
    before = fleet.inventory.candidates(Stage.DECODE)
    fleet.serve("d0", 100)
    assert fleet.inventory.candidates(Stage.DECODE) is before


NAMES = ("p0", "p1", "d0", "d1", "d2", "d3", "f0", "f1")
steps = st.lists(
    st.tuples(
        st.sampled_from(["fail", "fail", "fail", "serve", "send", "leave", "lose", "add", "later"]),
        st.sampled_from(NAMES),
        st.integers(1, 6),
    ),
    max_size=80,
)


def check(fleet: Fleet, ratio: float) -> None:
    inventory, health = fleet.inventory, fleet.health
    for role in Role:
        ready = inventory.ready_of(role)
        out = [slot for slot in ready if slot in inventory.shunned | inventory.on_trial]
        assert len(out) <= max(0, min(int(len(ready) * ratio), len(ready) - 1)), "more than the share is out"
    for stage in Stage:
        assert bool(inventory.candidates(stage).endpoints) == bool(inventory.ready(stage).endpoints)
    probes = [record.probe for record in health._records.values() if record.probe is not None]
    assert health.probes == len(probes)
    for slot, record in health._records.items():
        assert (slot in inventory.on_trial) == (record.state is HealthState.PROBING)
        kept_away = record.state is HealthState.EJECTED or record.probe is not None
        assert (slot in inventory.shunned) == kept_away, "a half-open endpoint takes a request without a probe only"


def step(fleet: Fleet, present: set[str], what: str, name: str, *, number: int, now_s: float) -> None:
    request_id = RequestId(f"r{number}")
    match what:
        case "add":
            fleet.add(name)
            present.add(name)
        case "fail":
            fleet.fail(name, number, now_s, request_id)
        case "serve":
            fleet.serve(name, number, now_s, request_id)
        case "send" if fleet.slot(name) in fleet.inventory.on_trial:
            fleet.health.sent(request_id, fleet.slot(name))
        case "leave":
            fleet.health.left(request_id)
        case "lose":
            fleet.lose(name)
            present.discard(name)


def recover(fleet: Fleet, present: set[str], now_s: float) -> None:
    """Nothing fails any more: each half-open endpoint gets a probe, which succeeds."""
    while fleet.health.wakes_s < float("inf"):
        now_s = max(now_s, fleet.health.wakes_s)
        fleet.health.wake(now_s)
    for name in sorted(present):
        slot = fleet.slot(name)
        if slot in fleet.inventory.on_trial:
            for number in range(1, 7):
                fleet.health.left(RequestId(f"r{number}"))
            fleet.health.sent(R, slot)
            fleet.serve(name, at_s=now_s)


@given(st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.sets(st.sampled_from(NAMES)), steps)
def test_properties(ratio: float, names: set[str], script: list[tuple[str, str, int]]) -> None:
    """The properties of the head of this file."""
    fleet = Fleet(*sorted(names), max_ejected_ratio=ratio)
    present, now_s = set(names), 0.0
    for what, name, number in script:
        now_s += 10.0 * number if what == "later" else 0.1
        if now_s >= fleet.health.wakes_s:
            fleet.health.wake(now_s)
        if what == "add" or name in present:
            step(fleet, present, what, name, number=number, now_s=now_s)
        check(fleet, ratio)
    recover(fleet, present, now_s)
    assert {fleet.state(name) for name in present} <= {HealthState.HEALTHY}
    assert not fleet.inventory.shunned
    assert fleet.health.probes == 0
