"""Scale to zero and back: both stages together, only after the time that is set, and back with the first request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ballast_core.policies.scaling.ballast import BallastScaling
from ballast_core.policies.scaling.protocol import Clamps, Counts, Inputs, Traffic
from tests.support.scaling import CHAT, carried_out, decided, flexible, inputs, split, traffic

POLICY = BallastScaling(rehearse=False)
NOTHING = Traffic(bin_s=15.0, arrivals=(0,) * 8)


def given(prefill: int, decode: int, seen: Traffic, *, least: int = 0, after_s: float | None = 600.0) -> Inputs:
    """A prefill and a decode pool that may have no instance."""
    pools = tuple(replace(each, least=least) for each in split(prefill, decode))
    return replace(inputs(pools, seen), zero_after_s=after_s)


def test_both_stages_stop_after_the_time_without_a_request_and_start_with_the_next_one() -> None:
    awake = given(3, 2, replace(NOTHING, idle_s=599.0))
    assert decided(POLICY, awake).reason == "NoTraffic"
    asleep = replace(awake, traffic=replace(NOTHING, idle_s=600.0))
    decision = decided(POLICY, asleep)
    assert (decision.reason, decision.target) == ("ScaledToZero", (Counts(), Counts()))
    later = carried_out(asleep, decision)
    stays = decided(POLICY, replace(later, traffic=replace(NOTHING, idle_s=615.0)))
    assert (stays.reason, stays.changes) == ("ScaledToZero", False)
    woken = decided(POLICY, replace(later, traffic=replace(NOTHING, idle_s=0.0)))
    assert (woken.reason, woken.target) == ("Woken", (Counts(1, 0), Counts(0, 1)))
    grown = decided(POLICY, replace(carried_out(later, woken), traffic=traffic(40.0)))
    assert grown.reason == "ScaledUp", "nothing of before the sleep holds it back"


def test_a_fleet_that_wakes_waits_for_the_gpus_of_instances_that_still_drain() -> None:
    """With both stages: one alone could serve nobody."""
    asleep = given(0, 0, replace(NOTHING, idle_s=0.0))
    asleep = replace(asleep, clamps=Clamps(gpu_budget=8))
    for draining, reason in ((8, "ChangeUnderWay"), (7, "ChangeUnderWay"), (6, "Woken")):
        pools = (replace(asleep.pools[0], draining=draining), asleep.pools[1])
        decision = decided(POLICY, replace(asleep, pools=pools))
        assert (decision.reason, decision.changes) == (reason, reason == "Woken")


def test_a_request_that_has_left_again_wakes_the_fleet_and_a_new_gateway_does_not() -> None:
    asleep = given(0, 0, NOTHING)
    left = replace(NOTHING, arrivals=(0,) * 7 + (1,), idle_s=5.0)
    assert decided(POLICY, replace(asleep, traffic=left)).reason == "Woken"
    assert not decided(POLICY, replace(asleep, traffic=replace(NOTHING, idle_s=5.0))).changes


@pytest.mark.parametrize(
    "kept",
    [given(1, 1, replace(NOTHING, idle_s=9e9), least=1), given(1, 1, replace(NOTHING, idle_s=9e9), after_s=None)],
    ids=["a pool keeps an instance", "no time is set"],
)
def test_nothing_stops_unless_it_may(kept: Inputs) -> None:
    decision = decided(POLICY, kept)
    assert (decision.reason, decision.changes) == ("NoTraffic", False)


def test_a_flexible_pool_wakes_with_an_instance_of_each_stage() -> None:
    asleep = replace(inputs(flexible(0, 0, least=0), NOTHING), zero_after_s=60.0)
    assert decided(POLICY, asleep).target == (Counts(1, 1),)


def test_what_cannot_start_says_why() -> None:
    asleep = replace(given(0, 0, NOTHING), clamps=Clamps(gpu_budget=1))
    decision = decided(POLICY, asleep)
    assert (decision.reason, decision.changes) == ("BudgetTooSmall", False)


def test_awake_with_traffic_nothing_goes_below_one_of_each_stage() -> None:
    calm = given(1, 1, replace(traffic(0.1, CHAT), idle_s=0.0))
    assert decided(POLICY, calm).target == (Counts(1, 0), Counts(0, 1))
