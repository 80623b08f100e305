"""The Director moves decodes: rounds by timer, books on both sides meanwhile, and whatever may happen on the way."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.directing.director import Director
from ballast_core.directing.rescheduler import Rescheduler
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import EndpointId, Observation, Outcome, RequestId, Role, Stage
from ballast_core.model.effects import Dispatch, Effect, Migrate, Reject, WakeAt
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    EndpointRestored,
    Event,
    FirstToken,
    LengthPredicted,
    Migrated,
    MigrationFailed,
    ModelsObserved,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
    SegmentDone,
    TimerFired,
)
from ballast_core.model.served_models import ServedModels
from ballast_core.policies.admission import Bounded
from ballast_core.policies.partition.fixed import Fixed
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.policies.rescheduling.ares import Ares
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.inventory import Readiness
from ballast_core.state.ledger import Phase
from tests.support.core_builders import endpoint, request


def mover(policy: Ares | None = None, names: tuple[str, ...] = ("p0", "d0", "d1")) -> Director:
    least = LeastRequests()
    made = Director(
        DirectorSettings(
            prefill=least, decode=least, rescheduling=policy or Ares(min_stay_s=5.0), profiles=SHIPPED_PROFILES
        )
    )
    for name in names:
        made.on_event(EndpointObserved(endpoint(name)), 0.0)
    return made


def start(d: Director, name: str, now_s: float, *, on: str, output: float = 5000.0, **more: object) -> list[Effect]:
    """A request that decodes on this endpoint after 100 tokens."""
    asked = replace(request(name, 4000), expected_output_tokens=output, **more)  # type: ignore[arg-type]
    effects = d.on_event(RequestArrived(asked), now_s)
    d.on_event(FirstToken(asked.id), now_s)
    entry = d.ledger.get(asked.id)
    assert entry is not None
    d.ledger.move(entry, slot_of(d, on), now_s)
    d.on_event(Progress(asked.id, 100), now_s)
    return effects


def crowded(d: Director, count: int = 3) -> None:
    """So many requests on d0, none on d1."""
    for k in range(count):
        start(d, f"r{k}", 0.0, on="d0")


def slot_of(d: Director, name: str) -> int:
    slot = d.inventory.slot_of(EndpointId(name))
    assert slot is not None
    return slot


def where(d: Director, name: str) -> str:
    entry = d.ledger.get(RequestId(name))
    assert entry is not None
    assert entry.decode_slot is not None
    return d.inventory.endpoint(entry.decode_slot).id


def moves(effects: list[Effect]) -> list[Migrate]:
    return [effect for effect in effects if isinstance(effect, Migrate)]


def test_a_round_moves_one_and_books_it_on_both_sides() -> None:
    """Three on d0: one goes to d1, and is load there at once."""
    d = mover()
    crowded(d)
    effects = d.on_event(TimerFired(), 1.0)
    (move,) = moves(effects)
    assert (move.source.id, move.target.id) == ("d0", "d1")
    source, target = (slot_of(d, name) for name in ("d0", "d1"))
    assert d.ledger.requests[Stage.DECODE][[source, target]].tolist() == [3, 1]
    assert where(d, move.request_id) == "d0"
    d.on_event(Migrated(move.request_id, EndpointId("d1")), 1.2)
    assert where(d, move.request_id) == "d1"
    assert d.ledger.decoding_requests[[source, target]].tolist() == [2, 1]


def test_the_round_says_why() -> None:
    """On the effect and among the Director's last rounds, as plain values too."""
    d = mover()
    crowded(d)
    (move,) = moves(d.on_event(TimerFired(), 1.0))
    (trace,) = d.rescheduler.rounds
    assert move.trace is trace
    told: dict[str, Any] = trace.as_dict()
    assert told["reason"] == "1 moves, the limit"
    assert [made["request_id"] for made in told["moves"]] == [move.request_id]
    assert set(told["loads"]) == {"d0", "d1"}
    assert d.on_event(TimerFired(), 1.5) == [WakeAt(2.0)]
    d.on_event(TimerFired(), 2.0)
    assert len(d.rescheduler.rounds) == 2


def test_timers_come_while_there_is_work() -> None:
    """The first arrival asks for one; each round for the next; early timers start none; idle asks for none."""
    d = mover()
    assert start(d, "r0", 0.0, on="d0")[-1] == WakeAt(1.0)
    assert not any(isinstance(effect, WakeAt) for effect in start(d, "r1", 0.5, on="d1"))
    assert d.on_event(TimerFired(), 0.7) == [WakeAt(1.0)]
    assert d.on_event(TimerFired(), 1.0)[-1] == WakeAt(2.0)
    assert d.on_event(TimerFired(), 1.0) == [WakeAt(2.0)]
    for name in ("r0", "r1"):
        d.on_event(RequestEnded(RequestId(name), Outcome.COMPLETED, 100), 1.5)
    assert d.on_event(TimerFired(), 2.0) == []
    assert start(d, "r2", 9.0, on="d0")[-1] == WakeAt(10.0)


def test_a_lost_timer_is_asked_for_anew() -> None:
    """One that never fires does not end the rounds: the next arrival after its time asks again."""
    d = mover()
    start(d, "r0", 0.0, on="d0")
    assert start(d, "r1", 5.0, on="d0")[-1] == WakeAt(6.0)


def test_no_ping_pong() -> None:
    """One that moved, or could not, stays for min_stay_s."""
    d = mover()
    crowded(d)
    (first,) = moves(d.on_event(TimerFired(), 1.0))
    d.on_event(MigrationFailed(first.request_id, EndpointId("d1")), 1.5)
    assert where(d, first.request_id) == "d0"
    assert d.ledger.requests[Stage.DECODE][slot_of(d, "d1")] == 0
    (second,) = moves(d.on_event(TimerFired(), 2.0))
    assert second.request_id != first.request_id
    d.on_event(Migrated(second.request_id, EndpointId("d1")), 2.1)
    for name in ("r0", "r1", "r2"):
        if name != second.request_id:
            d.on_event(RequestEnded(RequestId(name), Outcome.COMPLETED, 100), 2.2)
    for k in range(3, 6):
        start(d, f"r{k}", 2.5, on="d1")
    for now_s in (3.0, 4.0, 5.0, 6.0, 7.0):
        for move in moves(d.on_event(TimerFired(), now_s)):
            assert move.request_id != second.request_id or now_s >= 2.1 + 5.0
            d.on_event(Migrated(move.request_id, move.target.id), now_s)


def test_who_has_ended_is_not_remembered() -> None:
    """However long a request that moved, or could not, would have stayed."""
    d = mover(Ares(min_stay_s=1e9))
    crowded(d)
    for now_s in (1.0, 2.0):
        for move in moves(d.on_event(TimerFired(), now_s)):
            report = Migrated if now_s == 1.0 else MigrationFailed
            d.on_event(report(move.request_id, move.target.id), now_s)
    for k in range(3):
        d.on_event(RequestEnded(RequestId(f"r{k}"), Outcome.COMPLETED, 100), 2.5)
    d.on_event(TimerFired(), 3.0)
    assert isinstance(d.rescheduler, Rescheduler)
    assert not d.rescheduler._stays_until_s
    assert not d.rescheduler._failed_until_s


@pytest.mark.parametrize("what", ["ended", "gone", "target lost", "source lost"])
def test_what_may_happen_on_the_way(what: str) -> None:
    """The books are right after it, and nothing is left in the end."""
    d = mover()
    crowded(d)
    (move,) = moves(d.on_event(TimerFired(), 1.0))
    if what == "ended":
        d.on_event(RequestEnded(move.request_id, Outcome.COMPLETED, 200), 1.1)
        assert d.on_event(Migrated(move.request_id, move.target.id), 1.2) == []
        assert d.ledger.requests[Stage.DECODE].sum() == 2
    elif what == "gone":
        d.on_event(ClientGone(move.request_id), 1.1)
        assert d.ledger.requests[Stage.DECODE].sum() == 2
    elif what == "target lost":
        d.on_event(EndpointLost(move.target.id), 1.1)
        d.on_event(MigrationFailed(move.request_id, move.target.id), 1.2)
        assert d.inventory.slot_of(move.target.id) is None
        assert where(d, move.request_id) == "d0"
    else:
        d.on_event(EndpointLost(move.source.id), 1.1)
        d.on_event(Migrated(move.request_id, move.target.id), 1.2)
        assert where(d, move.request_id) == "d1"
    for name in ("r0", "r1", "r2"):
        d.on_event(RequestEnded(RequestId(name), Outcome.FAILED), 2.0)
    for name in ("p0", "d0", "d1"):
        d.on_event(EndpointLost(EndpointId(name)), 2.0)
    assert len(d.inventory) == 0
    assert not any(d.ledger.requests[stage].any() for stage in Stage)
    assert d.ledger.flights.count == 0


def test_what_may_not_move_stays() -> None:
    """State that cannot be carried over, a subset of endpoints, a prefill that is not over."""
    d = mover()
    start(d, "r0", 0.0, on="d0", movable=False)
    start(d, "r1", 0.0, on="d0", subset=frozenset({"p0:8000", "d0:8000", "d1:8000"}))
    d.on_event(RequestArrived(request("r2", 50_000)), 0.0)
    assert moves(d.on_event(TimerFired(), 1.0)) == []
    start(d, "r3", 1.5, on="d0")
    assert [move.request_id for move in moves(d.on_event(TimerFired(), 2.0))] in (["r3"], [])


def test_a_draining_endpoint_is_emptied() -> None:
    """The longest ahead, some at a time; nobody moves there."""
    d = mover(Ares(max_moves_under_way=2), ("p0", "d0", "d1", "d2"))
    for k, output in enumerate((500.0, 9000.0, 3000.0)):
        start(d, f"r{k}", 0.0, on="d0", output=output)
    d.on_event(EndpointDraining(EndpointId("d0")), 0.5)
    first = moves(d.on_event(TimerFired(), 1.0))
    assert [move.request_id for move in first] == ["r1", "r2"]
    assert {move.target.id for move in first} == {"d1", "d2"}
    assert moves(d.on_event(TimerFired(), 2.0)) == []  # two are under way
    for move in first:
        d.on_event(Migrated(move.request_id, move.target.id), 2.5)
    (last,) = moves(d.on_event(TimerFired(), 3.0))
    assert last.request_id == "r0"
    assert moves(d.on_event(TimerFired(), 4.0)) == []


def emptier(names: tuple[str, ...] = ("p0", "d0", "d1", "d2"), **more: Any) -> Director:
    """Without a rescheduling policy."""
    least = LeastRequests()
    made = Director(
        DirectorSettings(prefill=least, decode=least, empties_draining=True, profiles=SHIPPED_PROFILES, **more)
    )
    for name in names:
        made.on_event(EndpointObserved(endpoint(name)), 0.0)
    return made


def test_without_a_policy_nothing_moves_until_an_endpoint_drains() -> None:
    """Not a timer is asked for; then what can move leaves, and the Director counts what became of all."""
    d = emptier()
    for k in range(3):
        start(d, f"r{k}", 0.0, on="d0", movable=k != 2)
    assert not [e for e in d.on_event(TimerFired(), 1.0) if isinstance(e, (WakeAt, Migrate))]
    (wake,) = d.on_event(EndpointDraining(EndpointId("d0")), 1.5)
    assert isinstance(wake, WakeAt)
    ordered = moves(d.on_event(TimerFired(), wake.at_s))
    assert {move.request_id for move in ordered} == {"r0", "r1"}
    for move in ordered:
        d.on_event(Migrated(move.request_id, move.target.id), 2.5)
    assert moves(d.on_event(TimerFired(), 3.0)) == []
    d.on_event(RequestEnded(RequestId("r2"), Outcome.COMPLETED, 500), 4.0)
    assert (d.departures.moved_out, d.departures.finished, d.departures.lost) == (2, 1, 0)


def test_an_endpoint_whose_role_has_changed_while_it_decoded_is_emptied() -> None:
    """It prefills by now, and drains: what it still decodes leaves."""
    d = emptier()
    start(d, "r0", 0.0, on="d0")
    d.on_event(EndpointObserved(replace(endpoint("d0"), role=Role.PREFILL)), 0.2)
    d.on_event(EndpointDraining(EndpointId("d0")), 0.5)
    (move,) = moves(d.on_event(TimerFired(), 1.0))
    assert (move.request_id, move.source.id) == ("r0", "d0")
    d.on_event(Migrated(move.request_id, move.target.id), 1.5)
    assert moves(d.on_event(TimerFired(), 2.0)) == []
    assert d.departures.moved_out == 1


def test_a_drain_that_is_taken_back_ends_the_moves_out_of_it() -> None:
    """Moves under way come to their end; no further one is ordered."""
    d = emptier()
    for k in range(10):
        start(d, f"r{k}", 0.0, on="d0")
    d.on_event(EndpointDraining(EndpointId("d0")), 0.5)
    ordered = moves(d.on_event(TimerFired(), 1.0))
    assert len(ordered) == 8  # at once
    d.on_event(EndpointRestored(EndpointId("d0")), 1.1)
    for move in ordered:
        d.on_event(Migrated(move.request_id, move.target.id), 1.2)
    assert [e for k in range(4) for e in d.on_event(TimerFired(), 2.0 + k) if isinstance(e, Migrate)] == []


def test_moves_out_are_bounded_by_the_room_that_targets_report() -> None:
    """d1 says that it is full, though nothing is booked there: all go to d2, as far as it has room."""
    d = emptier()
    for k in range(6):
        start(d, f"r{k}", 0.0, on="d0", output=40_000.0)
    d.on_event(EndpointObserved(endpoint("d1"), Observation(0.1, 5, 0, 0.95)), 0.1)
    d.on_event(EndpointObserved(endpoint("d2"), Observation(0.1, 0, 0, 0.3)), 0.1)
    d.on_event(EndpointDraining(EndpointId("d0")), 0.5)
    ordered = moves(d.on_event(TimerFired(), 1.0))
    size = float(d.beliefs.hardware.kv_tokens(np.array([slot_of(d, "d2")]))[0])
    most = int((0.9 - 0.3) * size // (4100 + 39_900))
    assert {move.target.id for move in ordered} == {"d2"}
    assert len(ordered) == min(most, 6)


def test_one_that_fails_on_a_draining_endpoint_is_counted_as_lost() -> None:
    """Also when the endpoint has gone meanwhile; not one that its client gives up."""
    d = emptier()
    for k in range(3):
        start(d, f"r{k}", 0.0, on="d0", movable=False)
    d.on_event(EndpointDraining(EndpointId("d0")), 0.5)
    d.on_event(RequestEnded(RequestId("r0"), Outcome.FAILED, 5), 1.0)
    d.on_event(EndpointLost(EndpointId("d0")), 1.5)
    d.on_event(RequestEnded(RequestId("r1"), Outcome.FAILED, 5), 2.0)
    d.on_event(ClientGone(RequestId("r2")), 2.0)
    assert (d.departures.moved_out, d.departures.finished, d.departures.lost) == (0, 0, 2)


def test_one_that_cannot_go_on_elsewhere_is_counted_as_lost() -> None:
    """Its leg broke on the only endpoint, which drained: the Director rejects it, and hears nothing more of it."""
    d = emptier(("d0",))
    start(d, "r0", 0.0, on="d0")
    d.on_event(EndpointDraining(EndpointId("d0")), 0.5)
    effects = d.on_event(DispatchFailed(RequestId("r0"), Stage.DECODE, EndpointId("d0")), 1.0)
    assert [type(each) for each in effects if not isinstance(each, WakeAt)] == [Reject]
    assert (len(d.ledger), d.departures.lost) == (0, 1)


def test_moves_out_go_where_the_adapter_is() -> None:
    """d1 has more room, and does not serve it."""
    d = emptier()
    for name, models in (("d0", {"m", "x"}), ("d1", {"m"}), ("d2", {"m", "x"})):
        served = ServedModels(frozenset(models), frozenset({"x"} & models))
        d.on_event(ModelsObserved(EndpointId(name), served), 0.0)
    start(d, "r0", 0.0, on="d0", model="x")
    d.on_event(EndpointObserved(endpoint("d2"), Observation(0.1, 5, 0, 0.5)), 0.1)
    d.on_event(EndpointDraining(EndpointId("d0")), 0.5)
    assert [move.target.id for move in moves(d.on_event(TimerFired(), 1.0))] == ["d2"]


def rolled_out(d: Director, count: int, *others: str) -> None:
    """So many requests decode on d0, with the weights of old, as d2 has them; d1 has new ones under the same name."""
    for name in ("d0", *others):
        d.on_event(EndpointObserved(endpoint(name), Observation(0.0, 0, 0, 0.0)), 0.0)
        root = "new" if name == "d1" else "old"
        d.on_event(ModelsObserved(EndpointId(name), ServedModels(frozenset({"m"}), roots={"m": root})), 0.0)
        for k in range(count if name == "d0" else 0):
            start(d, f"r{k}", 0.0, on="d0", model="m")


def test_moves_out_go_where_the_same_weights_are() -> None:
    """Without such an endpoint nothing moves: another model would go on with what this one began."""
    d, alone = emptier(("p0",)), emptier(("p0",))
    rolled_out(d, 2, "d1", "d2")
    d.on_event(EndpointObserved(endpoint("d2"), Observation(0.1, 5, 0, 0.5)), 0.1)
    rolled_out(alone, 2, "d1")
    for each, targets in ((d, {"d2"}), (alone, set())):
        each.on_event(EndpointDraining(EndpointId("d0")), 0.5)
        assert {move.target.id for move in moves(each.on_event(TimerFired(), 1.0))} == targets


def test_a_policy_moves_nothing_to_other_weights() -> None:
    d = mover(names=("p0",))
    rolled_out(d, 3, "d1")
    assert not moves(d.on_event(TimerFired(), 1.0))


def test_what_has_begun_goes_on_with_the_same_weights() -> None:
    """Once there is a token: d2 has fewer places left than d1. Without its weights it ends."""
    d = emptier(("p0",))
    rolled_out(d, 1, "d1", "d2")
    d.on_event(EndpointObserved(endpoint("d2"), Observation(0.1, 9, 9, 0.9)), 0.1)
    d.on_event(EndpointLost(EndpointId("d0")), 1.0)
    (again,) = d.on_event(DispatchFailed(RequestId("r0"), Stage.DECODE, EndpointId("d0")), 1.0)
    assert isinstance(again, Dispatch)
    assert again.decode.id == "d2"
    d.on_event(EndpointLost(EndpointId("p0")), 1.5)
    (end,) = d.on_event(DispatchFailed(RequestId("r0"), Stage.DECODE, EndpointId("d2")), 2.0)
    assert isinstance(end, Reject)


def test_what_has_not_begun_goes_anywhere() -> None:
    d = emptier(("p0",))
    rolled_out(d, 0, "d1")
    d.on_event(EndpointDraining(EndpointId("d1")), 0.0)
    d.on_event(RequestArrived(replace(request("r0", 100), model="m")), 0.0)
    d.on_event(EndpointRestored(EndpointId("d1")), 0.5)
    (again,) = d.on_event(DispatchFailed(RequestId("r0"), Stage.DECODE, EndpointId("d0")), 1.0)
    assert isinstance(again, Dispatch)
    assert again.decode.id == "d1"


def test_an_endpoint_that_appears_draining_gets_nothing_that_waits() -> None:
    """Not for a moment: its pod is to go."""
    d = emptier((), hold_s=60.0)
    d.on_event(RequestArrived(request("r0", 100)), 0.0)
    appeared = d.on_event(EndpointObserved(endpoint("d0"), draining=True), 1.0)
    assert not [each for each in appeared if isinstance(each, Dispatch)]
    assert slot_of(d, "d0") in d.inventory.leaving
    restored = d.on_event(EndpointRestored(EndpointId("d0")), 2.0)
    assert [type(each) for each in restored if isinstance(each, Dispatch)] == [Dispatch]


def test_moves_go_where_admission_has_a_place() -> None:
    """d1 is full and d2 takes one more: one move of a round goes there, and to d1 when one of its own has ended."""
    least = LeastRequests()
    limits = Bounded(max_prefill_requests=99, max_decode_requests=3)
    d = Director(
        DirectorSettings(
            prefill=least,
            decode=least,
            admission=limits,
            rescheduling=Ares(theta=0.0, max_moves_per_round=2, payoff=0.001),
            profiles=SHIPPED_PROFILES,
        )
    )
    for name in ("p0", "d0", "d1", "d2"):
        d.on_event(EndpointObserved(endpoint(name)), 0.0)
    for k, name in enumerate(("d1", "d1", "d1", "d2", "d2")):
        start(d, f"short{k}", 0.0, on=name, output=200.0)
    for k in range(3):
        start(d, f"long{k}", 0.0, on="d0", output=9000.0)
    first = moves(d.on_event(TimerFired(), 1.0))
    assert [move.target.id for move in first] == ["d2"]
    d.on_event(Migrated(first[0].request_id, EndpointId("d2")), 1.5)
    assert moves(d.on_event(TimerFired(), 2.0)) == []
    d.on_event(RequestEnded(RequestId("short0"), Outcome.COMPLETED, 200), 2.5)
    assert "d1" in {move.target.id for move in moves(d.on_event(TimerFired(), 3.0))}


def test_a_predictor_changes_what_is_foreseen() -> None:
    """Two equal requests each: word that those on d0 are about to end makes d1 the crowded one."""
    d = mover(Ares(theta=0.0))
    for k, name in enumerate(("d0", "d0", "d1", "d1")):
        start(d, f"r{k}", 0.0, on=name, output=4000.0)
    assert moves(d.on_event(TimerFired(), 1.0)) == []
    for name in ("r0", "r1"):
        d.on_event(LengthPredicted(RequestId(name), 5.0), 1.5)
    (move,) = moves(d.on_event(TimerFired(), 2.0))
    assert (move.source.id, move.target.id) == ("d1", "d0")


NAMES = ("p0", "d0", "d1", "d2")
REQUESTS = tuple(f"r{k}" for k in range(6))
WHAT = (
    *("arrive", "arrive", "handed", "tokens", "tokens", "timer", "timer", "done", "failed", "end", "gone"),
    *("drain", "restore", "lose", "observe", "predict"),
)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(WHAT),
            st.sampled_from(REQUESTS),
            st.sampled_from(NAMES),
            st.integers(1, 3000),
        ),
        max_size=80,
    )
)
def test_the_books_balance_while_requests_move(script: list[tuple[str, str, str, int]]) -> None:
    """Any events in any order: sums are those of the entries, only ready endpoints are moved to, nothing is left."""
    d = mover(Ares(theta=0.0, min_stay_s=1.0, max_moves_per_round=2), NAMES)
    asked: dict[str, EndpointId] = {}
    for number, (what, name, place, tokens) in enumerate(script):
        now_s, request_id, endpoint_id = number * 0.5, RequestId(name), EndpointId(place)
        if what == "arrive" and d.ledger.get(request_id) is not None:
            continue
        events: dict[str, Event] = {
            "arrive": RequestArrived(request(name, tokens)),
            "handed": PrefillDone(request_id),
            "tokens": Progress(request_id, tokens),
            "timer": TimerFired(),
            "done": Migrated(request_id, asked.get(name, endpoint_id)),
            "failed": MigrationFailed(request_id, asked.get(name, endpoint_id)),
            "end": RequestEnded(request_id, Outcome.COMPLETED),
            "gone": ClientGone(request_id),
            "drain": EndpointDraining(endpoint_id),
            "restore": EndpointRestored(endpoint_id),
            "lose": EndpointLost(endpoint_id),
            "observe": EndpointObserved(endpoint(place)),
            "predict": LengthPredicted(request_id, float(tokens - 5)),
        }
        for move in moves(d.on_event(events[what], now_s)):
            asked[move.request_id] = move.target.id
            assert d.inventory.readiness(slot_of(d, move.target.id)) is Readiness.READY
            assert move.target.role is Role.DECODE
            assert move.source.id == where(d, move.request_id) != move.target.id
        check_books(d)
    for name in REQUESTS:
        d.on_event(ClientGone(RequestId(name)), 1000.0)
    for name in NAMES:
        d.on_event(EndpointLost(EndpointId(name)), 1000.0)
    assert (len(d.ledger), len(d.inventory), d.ledger.flights.count) == (0, 0, 0)


def check_books(d: Director) -> None:
    requests = [0] * d.inventory.capacity
    tokens = [0] * d.inventory.capacity
    for entry in itertools.chain(d.ledger, (e.reservation for e in d.ledger if e.reservation is not None)):
        if entry.phase is Phase.HELD:
            continue
        assert entry.decode_slot is not None
        requests[entry.decode_slot] += 1
        tokens[entry.decode_slot] += entry.request.prompt_tokens + entry.generated_tokens
    assert d.ledger.requests[Stage.DECODE].tolist() == requests
    assert d.ledger.tokens[Stage.DECODE].tolist() == tokens


def test_unlike_caches_have_no_link() -> None:
    """KV of another size a token cannot be copied."""
    least = LeastRequests()
    d = Director(DirectorSettings(prefill=least, decode=least, rescheduling=Ares(), profiles=SHIPPED_PROFILES))
    for name, profile in (("p0", "h20-qwen3-32b"), ("d0", "h20-qwen3-32b"), ("d1", "h200-llama3-8b")):
        d.on_event(EndpointObserved(replace(endpoint(name), profile=profile)), 0.0)
    crowded(d)
    assert moves(d.on_event(TimerFired(), 1.0)) == []


def test_what_is_yet_to_be_cut_stays() -> None:
    """A request with a planned cut before it moves by its plan only; after the cut it is like any other."""
    least = LeastRequests()
    cut = Fixed(at="ratio", ratio=0.9, margin_tokens=0)
    d = Director(
        DirectorSettings(
            prefill=least,
            decode=least,
            partition=cut,
            rescheduling=Ares(theta=0.0, min_stay_s=0.0),
            profiles=SHIPPED_PROFILES,
        )
    )
    for name in ("f0", "f1"):
        d.on_event(EndpointObserved(endpoint(name)), 0.0)
    planned: dict[str, str] = {}
    for k in range(3):
        asked = replace(request(f"r{k}", 4000), expected_output_tokens=5000.0)
        (dispatch,) = (e for e in d.on_event(RequestArrived(asked), 0.0) if isinstance(e, Dispatch))
        d.on_event(FirstToken(asked.id), 0.0)
        entry = d.ledger.get(asked.id)
        assert entry is not None
        d.ledger.move(entry, slot_of(d, "f0"), 0.0)
        planned[asked.id] = dispatch.segments[-1].endpoint.id
    assert moves(d.on_event(TimerFired(), 1.0)) == []
    for request_id in planned:
        d.on_event(SegmentDone(RequestId(request_id), 4100), 1.5)
        entry = d.ledger.get(RequestId(request_id))
        assert entry is not None
        d.ledger.move(entry, slot_of(d, "f0"), 1.5)
    assert len(moves(d.on_event(TimerFired(), 2.0))) == 1
