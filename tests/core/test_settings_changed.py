"""New settings while a Director decides: it keeps what it knows, and decides by the new ones from the next event on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings, SettingsChanged
from ballast_core.model import Binding, EndpointId, Outcome, Request, RequestId, Stage
from ballast_core.model.effects import Dispatch, Handoff, Hold, Migrate, Reject
from ballast_core.model.events import (
    DispatchFailed,
    EndpointObserved,
    FirstToken,
    LeadershipChanged,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
    SegmentDone,
    TimerFired,
)
from ballast_core.policies.admission import Bounded
from ballast_core.policies.partition.fixed import Fixed
from ballast_core.policies.placement.placements import LeastRequests, RoundRobin
from ballast_core.policies.registry import QUEUE_ORDER, build, build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.health import HealthSettings
from tests.support.core_builders import director, endpoint, observation, only_dispatch, request
from tests.support.director_strategies import FLEETS, Restless, Step, dated, fleet, scripts, settings
from tests.support.director_watch import Watch

pytestmark = pytest.mark.rotating(4, each=True)

ONE_EACH = Bounded(max_prefill_requests=1, max_decode_requests=1)


def change(on: Director, at_s: float = 0.0, **parts: object) -> list[object]:
    return list(on.on_event(SettingsChanged(replace(on.settings, **parts)), at_s))  # type: ignore[arg-type]


@pytest.mark.rotating(2)
@given(
    settings,
    st.lists(st.tuples(settings, scripts), min_size=1, max_size=3),
    st.sampled_from(FLEETS),
    scripts,
    st.booleans(),
)
def test_any_change_between_any_events(
    first: DirectorSettings,
    later: list[tuple[DirectorSettings, list[Step]]],
    ready: tuple[str, ...],
    script: list[Step],
    lose_first: bool,
) -> None:
    """The Director's invariants (`test_director_properties`) hold across changes of every part of a suite."""
    watch = Watch(first)
    for one in fleet(ready):
        watch.feed(EndpointObserved(one), 0.0)
    now_s = 0.0
    for changed, steps in [(None, script), *later]:
        if changed is not None:
            fixed = {"binding": first.binding, "watch": changed.watch if first.watch and changed.watch else first.watch}
            watch.feed(SettingsChanged(replace(changed, **fixed)), now_s)  # type: ignore[arg-type]
        for gap_s, what in steps:
            event = dated(what, now_s, now_s + gap_s)
            now_s += gap_s
            if not (isinstance(event, RequestArrived) and watch.director.ledger.get(event.request.id)):
                watch.feed(event, now_s)
    watch.finish(lose_first=lose_first)


def test_the_next_request_is_placed_by_the_new_policy_and_the_ledger_stays() -> None:
    on = director(names=("p0", "d0", "d1"), policy=RoundRobin())
    for name in ("a", "b", "c"):
        on.on_event(RequestArrived(request(name)), 0.0)
    before = on.ledger.requests[Stage.DECODE].tolist()
    change(on, prefill=LeastRequests(), decode=LeastRequests())
    assert on.ledger.requests[Stage.DECODE].tolist() == before
    on.on_event(RequestEnded(RequestId("a"), Outcome.COMPLETED), 1.0)
    on.on_event(RequestEnded(RequestId("c"), Outcome.COMPLETED), 1.0)
    chosen = [only_dispatch(on.on_event(RequestArrived(request(f"n{k}")), 1.0)).decode.id for k in range(2)]
    assert chosen == ["d0", "d1"], "by load: b is still on d1; turns would begin there"


def test_a_leg_in_flight_goes_on_by_the_new_placement() -> None:
    """What was prefilling is bound late, by what decides then."""
    on = director(names=("p0", "d0", "d1"), policy=RoundRobin())
    for name in ("a", "b", "c"):  # d0, d1, d0
        on.on_event(RequestArrived(request(name)), 0.0)
    on.on_event(RequestEnded(RequestId("b"), Outcome.COMPLETED), 1.0)
    change(on, 1.0, decode=LeastRequests(), prefill=LeastRequests())
    (handoff,) = on.on_event(PrefillDone(RequestId("c")), 1.0)
    assert isinstance(handoff, Handoff)
    assert handoff.decode.id == "d1"


def test_who_waits_is_served_in_the_new_order() -> None:
    on = director(names=("p0", "d0"))
    change(on, admission=ONE_EACH)
    on.on_event(EndpointObserved(endpoint("p0"), observation()), 0.0)
    on.on_event(EndpointObserved(endpoint("d0"), observation()), 0.0)
    only_dispatch(on.on_event(RequestArrived(request("running")), 0.0))
    for name, tokens in (("long", 900), ("short", 10), ("middle", 90)):
        assert isinstance(on.on_event(RequestArrived(request(name, tokens)), 0.1)[0], Hold)
    change(on, 0.2, queue=build(QUEUE_ORDER, "sjf"))
    served = []
    running = "running"
    for _ in range(3):
        running = only_dispatch(on.on_event(RequestEnded(RequestId(running), Outcome.COMPLETED), 1.0)).request_id
        served.append(running)
    assert served == ["short", "middle", "long"]


def test_nobody_waits_for_capacity_that_is_no_longer_bounded() -> None:
    on = director(names=("p0", "d0"))
    change(on, admission=ONE_EACH)
    for name in ("p0", "d0"):
        on.on_event(EndpointObserved(endpoint(name), observation()), 0.0)
    only_dispatch(on.on_event(RequestArrived(request("running")), 0.0))
    for k in range(3):
        on.on_event(RequestArrived(request(f"waits{k}")), 0.1)
    effects = change(on, 0.2, admission=None)
    assert [each.request_id for each in effects if isinstance(each, Dispatch)] == ["waits0", "waits1", "waits2"]
    assert not len(on.queue)


def test_a_smaller_limit_rejects_nobody_who_was_taken() -> None:
    on = director(names=("p0", "d0"))
    for k in range(4):
        on.on_event(RequestArrived(request(f"r{k}")), 0.0)
    assert not change(on, max_in_flight=2)
    (refused,) = on.on_event(RequestArrived(request("more")), 0.0)
    assert isinstance(refused, Reject)
    assert len(on.ledger) == 4


def test_a_cut_request_ends_by_its_plan_after_the_partition_is_gone() -> None:
    on = director(names=("f0", "f1"))
    change(on, partition=Fixed(at="ratio", ratio=0.5, margin_tokens=0), learn=Belief.ALL)
    cut = only_dispatch(on.on_event(RequestArrived(Request(RequestId("cut"), 400, max_output_tokens=9)), 0.0))
    assert len(cut.segments) == 2
    change(on, 0.1, partition=None)
    whole = only_dispatch(on.on_event(RequestArrived(request("whole")), 0.2))
    assert not whole.segments
    (handoff,) = on.on_event(SegmentDone(RequestId("cut"), 0), 0.3)
    assert isinstance(handoff, Handoff)
    assert handoff.decode.id == cut.segments[1].endpoint.id
    for name in ("cut", "whole"):
        on.on_event(RequestEnded(RequestId(name), Outcome.COMPLETED, 5), 1.0)
    assert not len(on.ledger)
    assert not on.partitioner.planned(RequestId("cut"))


def test_a_new_rescheduling_runs_rounds_over_what_decodes_already() -> None:
    on = director(names=("f0", "f1"))
    for name in ("a", "b"):
        only_dispatch(on.on_event(RequestArrived(request(name)), 0.0))
        on.on_event(FirstToken(RequestId(name)), 0.1)
    assert change(on, 0.2, rescheduling=Restless())
    effects = on.on_event(TimerFired(), 0.2 + Restless.interval_s)
    assert any(isinstance(each, Migrate) for each in effects)


def test_who_does_not_lead_runs_no_rounds_of_a_new_rescheduling() -> None:
    on = director(names=("f0", "f1"))
    on.on_event(LeadershipChanged(False), 0.0)
    only_dispatch(on.on_event(RequestArrived(request("a")), 0.0))
    on.on_event(FirstToken(RequestId("a")), 0.1)
    assert not change(on, 0.2, rescheduling=Restless())


def test_health_and_the_retry_budget_go_on() -> None:
    """Who was ejected stays so; the next ones are by the new settings."""
    on = director(names=("p0", "d0", "d1", "d2"))
    change(on, health=HealthSettings(failures_in_a_row=1, ejection_s=30.0))
    dispatch = only_dispatch(on.on_event(RequestArrived(request("a")), 0.0))
    on.on_event(DispatchFailed(RequestId("a"), Stage.DECODE, dispatch.decode.id), 0.1)
    slot = on.inventory.slot_of(dispatch.decode.id)
    assert slot is not None
    assert on.health.is_ejected(slot)
    change(on, 0.2, health=HealthSettings(failures_in_a_row=5))
    assert on.health.is_ejected(slot)


def test_a_profile_with_new_numbers_is_believed_at_once_and_the_others_keep_what_was_learned() -> None:
    policy = build_placement("ballast")
    shipped = SHIPPED_PROFILES["h200-llama3-8b"]
    on = director(names=(), policy=policy)
    for name, profile in (("p0", "mine"), ("p1", "h200-llama3-8b"), ("d0", "mine")):
        on.on_event(EndpointObserved(replace(endpoint(name), profile=profile)), 0.0)
    change(on, profiles={**SHIPPED_PROFILES, "mine": replace(shipped, name="mine")})
    mine, other = on.inventory.slot_of(EndpointId("p0")), on.inventory.slot_of(EndpointId("p1"))
    assert mine is not None
    assert other is not None
    times = on.beliefs.prefill_times
    for slot in (mine, other):
        times.completed(slot, dispatched_s=0.0, uncached_tokens=2000, now_s=60.0)
    learned = times.factor(other)
    assert learned > 1
    before = on.beliefs.hardware.kv_tokens(on.inventory.known_slots())[0]
    change(on, profiles={**SHIPPED_PROFILES, "mine": replace(shipped, name="mine", kv_tokens=shipped.kv_tokens * 2)})
    assert on.beliefs.hardware.kv_tokens(on.inventory.known_slots())[0] == 2 * before
    assert (times.factor(mine), times.factor(other)) == (1.0, learned)


def test_beliefs_that_a_new_policy_reads_are_learned_from_now_on() -> None:
    on = director(names=("p0", "d0"))
    on.on_event(RequestArrived(Request(RequestId("a"), 64, block_hashes=(1, 2), block_size=32)), 0.0)
    change(on, 0.1, prefill=build_placement("least-uncached-tokens"), decode=build_placement("least-uncached-tokens"))
    again = Request(RequestId("b"), 64, block_hashes=(1, 2), block_size=32)
    on.on_event(RequestArrived(again), 0.2)
    assert on.beliefs.cached_tokens(again, on.inventory.known_slots()).max() == 64


def test_lengths_are_learned_from_the_life_after_the_change() -> None:
    """Those that run then are mostly long: that the short ones have ended was not followed."""
    on = director(names=("p0", "d0"))
    change(on, learn=Belief.RATES)
    for k in range(20):
        on.on_event(RequestArrived(request(f"long-{k}")), 0.0)
        on.on_event(PrefillDone(RequestId(f"long-{k}")), 0.1)
        on.on_event(FirstToken(RequestId(f"long-{k}")), 0.2)
        on.on_event(Progress(RequestId(f"long-{k}"), 4000), 9.0)
    change(on, 9.5, learn=Belief.RATES | Belief.LENGTHS)
    on.on_event(EndpointObserved(endpoint("d0"), observation(at_s=10.0)), 10.0)
    for k in range(20):
        on.on_event(RequestArrived(request(f"short-{k}")), 10.0)
        on.on_event(RequestEnded(RequestId(f"short-{k}"), Outcome.COMPLETED, 100), 11.0)
    assert on.beliefs.lengths.tables(12.0).survival(np.array([128.0]))[0] < 0.05


def test_requests_of_before_end_for_all_traffic_not_for_their_class() -> None:
    """Their life was counted for all traffic alone. As ends without a life they cut the curve of their class short."""
    on = director(names=("p0", "d0"))
    change(on, learn=Belief.RATES)
    for k in range(20):
        on.on_event(RequestArrived(replace(request(f"r{k}"), traffic_class="chat")), 0.0)
        on.on_event(PrefillDone(RequestId(f"r{k}")), 0.1)
        on.on_event(FirstToken(RequestId(f"r{k}")), 0.2)
    change(on, 1.0, learn=Belief.RATES | Belief.LENGTHS)
    on.on_event(RequestArrived(replace(request("new"), traffic_class="chat")), 1.0)
    for k in range(20):
        on.on_event(Progress(RequestId(f"r{k}"), 100 * (k + 1)), 2.0)
    on.on_event(EndpointObserved(endpoint("d0"), observation(at_s=3.0)), 3.0)
    for k in range(20):
        on.on_event(RequestEnded(RequestId(f"r{k}"), Outcome.COMPLETED, 100 * (k + 1)), 4.0)
    lengths, ages = on.beliefs.lengths, np.array([0.0, 500.0, 1500.0])
    of_all, of_class = (lengths.tables(5.0).expected_remaining(ages, each) for each in (0, lengths.known_slot("chat")))
    assert lengths.known_slot("chat")
    assert of_class == pytest.approx(of_all, rel=0.01)


def test_what_cannot_change_is_refused() -> None:
    on = director()
    with pytest.raises(ValueError, match="binding"):
        change(on, binding=Binding.EARLY)
