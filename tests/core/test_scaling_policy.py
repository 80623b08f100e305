"""What the scaling policy `ballast` answers: the equilibrium by hand, reasons in words, rehearsals, windows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ballast_core.model import Role
from ballast_core.policies.registry import SCALING, build
from ballast_core.policies.scaling.ballast import BallastScaling
from ballast_core.policies.scaling.forecast import MOST_GROWTH, holt_damped
from ballast_core.policies.scaling.measuring import Seen, lengths_of, wilson
from ballast_core.policies.scaling.protocol import (
    REASONS,
    Attained,
    Clamps,
    Counts,
    Inputs,
    Rehearsal,
    ScalingObjective,
    Traffic,
)
from ballast_core.profiles.capacity import decode_rps, prefill_rps
from tests.support.scaling import (
    CHAT,
    H200,
    REASONING,
    SLO,
    carried_out,
    decided,
    flexible,
    inputs,
    pool,
    split,
    traffic,
)

POLICY = BallastScaling(rehearse=False)
REHEARSED = BallastScaling()


def test_the_equilibrium_is_what_the_law_says_over_the_planned_load() -> None:
    rate_rps = 20.0
    decision = decided(POLICY, inputs(flexible(1, 1), traffic(rate_rps)))
    prefill = math.ceil(rate_rps / 0.75 / prefill_rps(H200, CHAT))
    decode = math.ceil(rate_rps / 0.85 / decode_rps(H200, CHAT, 0.05))
    assert decision.target == (Counts(prefill, decode),)
    assert (decision.reason, decision.chosen) == ("ScaledUp", 0)
    assert "not rehearsed" in decision.message
    assert decision.predicted_attainment is None


def test_a_flexible_pool_flips_roles_before_it_grows() -> None:
    """Long outputs in place of short ones: the same instances, other roles, no start."""
    given = inputs(flexible(5, 3), traffic(3.0, REASONING), budget=8)
    decision = decided(POLICY, carried_out(given, decided(POLICY, given), after_s=61.0))
    assert decision.target[0].replicas == 8
    assert decision.target[0].decode > 3


def test_roles_flip_only_after_their_window() -> None:
    right = decided(POLICY, inputs(flexible(3, 5), traffic(20.0), budget=8)).proposal.candidates[0].layout
    shifted = inputs(flexible(right[0].prefill, right[0].decode), traffic(1.9, REASONING), budget=right[0].replicas)
    first = decided(POLICY, shifted)
    assert (first.target, first.reason) == (shifted.wanted, "Stabilising")
    second = decided(POLICY, carried_out(shifted, first, after_s=61.0))
    assert second.reason == "RolesFlipped"


def test_a_pool_shrinks_only_after_its_window_and_grows_at_once() -> None:
    given = inputs(split(6, 6), traffic(2.0))
    first = decided(POLICY, given)
    assert (first.target, first.reason) == (given.wanted, "Stabilising")
    later = carried_out(given, first, after_s=301.0)
    assert decided(POLICY, later).reason == "ScaledDown"
    assert decided(POLICY, inputs(split(2, 2), traffic(60.0))).reason == "ScaledUp"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param(inputs(split(1, 1), Traffic(bin_s=15.0)), "NoTraffic", id="no window at all"),
        pytest.param(inputs(split(1, 1), traffic(0.0)), "NoTraffic", id="empty windows"),
        pytest.param(inputs(split(1, 1), traffic(5.0, None)), "NoLengths", id="traffic without lengths"),
        pytest.param(
            inputs(split(1, 1), traffic(5.0), clamps=Clamps(min_ratio=2.0, max_ratio=1.0)),
            "ClampsContradict",
            id="minRatio above maxRatio",
        ),
        pytest.param(
            inputs(split(1, 1, most=2), traffic(5.0), clamps=Clamps(min_ratio=3.0)),
            "ClampsContradict",
            id="no numbers have the ratio",
        ),
        pytest.param(
            inputs((pool(Role.PREFILL, prefill=3, least=3, most=2), pool(Role.DECODE, decode=1)), traffic(5.0)),
            "ClampsContradict",
            id="least above most",
        ),
        pytest.param(inputs(split(1, 1), traffic(5.0), budget=1), "BudgetTooSmall", id="budget below the minimum"),
        pytest.param(
            inputs(split(1, 1), traffic(5.0), clamps=Clamps(min_ratio=3.0, gpu_budget=3)),
            "BudgetTooSmall",
            id="budget below the ratio's least",
        ),
        pytest.param(inputs((pool(Role.DECODE, decode=1),), traffic(5.0)), "NoPools", id="nothing prefills"),
        pytest.param(inputs(flexible(1, 0, least=1, most=1), traffic(5.0)), "NoPools", id="one instance for two roles"),
        pytest.param(
            replace(inputs(split(1, 1), traffic(5.0)), objectives=(replace(SLO, tpot_s=0.001),)),
            "ObjectiveOutOfReach",
            id="TPOT below an idle step",
        ),
        pytest.param(
            replace(inputs(split(1, 1), traffic(5.0)), objectives=(replace(SLO, ttft_s=0.01),)),
            "ObjectiveOutOfReach",
            id="TTFT below the prompt alone",
        ),
        pytest.param(
            replace(inputs(split(1, 1), traffic(5.0)), objectives=(ScalingObjective(),)),
            "NoObjective",
            id="no threshold",
        ),
    ],
)
def test_what_cannot_be_decided_has_a_reason_and_scales_nothing(given: Inputs, reason: str) -> None:
    decision = decided(POLICY, given)
    assert decision.reason == reason
    assert reason in REASONS
    assert decision.target == given.wanted
    assert "nothing is scaled" in decision.message


def test_a_budget_that_is_used_up_gives_the_best_balanced_layout_and_says_so() -> None:
    given = inputs(flexible(1, 1), traffic(60.0), budget=6)
    decision = decided(POLICY, given)
    assert decision.target[0].replicas == 6
    assert "clamps and budget leave" in decision.message
    after = decided(POLICY, carried_out(given, decision))
    assert (after.reason, after.target) == ("BudgetReached", decision.target)


def test_of_rehearsed_candidates_the_cheapest_that_meets_the_objective_with_margin_is_chosen() -> None:
    given = inputs(flexible(3, 2), traffic(20.0))
    proposal = REHEARSED.propose(given)
    cheapest = min(range(len(proposal.candidates)), key=lambda k: proposal.candidates[k].price)
    every = [Rehearsal(candidate=k, requests=200, met=199) for k in range(len(proposal.candidates))]
    decision = REHEARSED.decide(proposal, every)
    assert proposal.candidates[decision.chosen or 0].price == proposal.candidates[cheapest].price
    assert decision.predicted_attainment == pytest.approx(0.995)
    only = [replace(each, met=199 if each.candidate == 0 else 180) for each in every]
    assert REHEARSED.decide(proposal, only).chosen == 0
    just = [replace(each, met=190) for each in every]
    assert "none reached" in REHEARSED.decide(proposal, just).message, "95.5 % is needed: 95 % and the margin"


def test_without_rehearsals_that_count_the_equilibrium_decides_and_says_so() -> None:
    proposal = REHEARSED.propose(inputs(flexible(3, 2), traffic(20.0)))
    few = [Rehearsal(candidate=k, requests=3, met=3) for k in range(len(proposal.candidates))]
    for tried in ([], few):
        decision = REHEARSED.decide(proposal, tried)
        assert decision.chosen == 0
        assert "without a rehearsal" in decision.message
        assert decision.rehearsals == tuple(tried)


def test_traffic_that_has_just_ceased_still_needs_one_instance_of_each_stage() -> None:
    for bins in range(2, 12):
        ceased = replace(traffic(1.0), arrivals=(90_000, *[0] * bins))
        decision = decided(POLICY, inputs(flexible(3, 3), ceased))
        assert decision.chosen == 0
    assert decision.proposal.candidates[0].layout == (Counts(1, 1),)


def test_requests_that_decode_now_keep_their_instances() -> None:
    """Arrivals have become few, but as many requests as ten instances hold are still decoding."""
    few, many = (
        decided(POLICY, inputs(flexible(1, 1), traffic(1.0, REASONING, decoding=count))).target[0].decode
        for count in (10, 900)
    )
    assert many > few


def test_nothing_shrinks_while_a_class_misses_its_objective() -> None:
    given = inputs(split(6, 6), traffic(2.0))
    later = carried_out(given, decided(POLICY, given), after_s=301.0)
    for high_ratio, reason in ((0.9, "Stabilising"), (0.97, "ScaledDown")):
        seen = Attained(name="default", requests=400, met=340, low_ratio=0.8, high_ratio=high_ratio)
        assert decided(POLICY, replace(later, traffic=replace(later.traffic, attained=(seen,)))).reason == reason


def test_roles_flip_at_once_where_the_present_ones_cannot_carry_the_traffic() -> None:
    given = inputs(flexible(1, 7), traffic(30.0), budget=8)
    assert decided(POLICY, given).reason == "RolesFlipped"


def test_new_instances_wait_for_the_gpus_of_those_that_drain() -> None:
    given = inputs(split(4, 1), traffic(3.0, REASONING), budget=5)
    later = carried_out(given, decided(POLICY, given), after_s=301.0)
    decision = decided(POLICY, later)
    assert decision.target[0].prefill < 4
    assert decision.target[1].decode == 1, "their GPUs are not free yet"
    drained = carried_out(later, decision)
    assert decided(POLICY, drained).target[1].decode > 1


def test_holt_forecasts_a_rise_but_never_more_than_double() -> None:
    level, ahead = holt_damped([1.0] * 10, 4)
    assert (level, ahead) == (1.0, 1.0)
    level, ahead = holt_damped([float(k) for k in range(1, 11)], 4)
    assert ahead > level > 8
    level, ahead = holt_damped([0.0, 0.0, 100.0], 100)
    assert ahead <= MOST_GROWTH * level
    assert holt_damped([10.0, 0.0, 0.0], 100)[1] >= 0


def test_lengths_of_requests_that_still_run_count_as_censored() -> None:
    """Ten tokens each, one of four has ended: 40 tokens for one end, and 50 in the end for those that run."""
    seen = [Seen(100, 10, ended=False)] * 3 + [Seen(100, 10, ended=True)]
    found = lengths_of(seen)
    assert found is not None
    assert found.output_tokens == pytest.approx((3 * 50 + 10) / 4)
    assert found.input_pairs == 100**2 / 2
    assert lengths_of([Seen(100, 0, ended=False)]) is None
    assert lengths_of([]) is None


def test_wilsons_interval_is_wide_for_few_requests() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(9, 10)
    assert low == pytest.approx(0.596, abs=1e-3)
    assert high == pytest.approx(0.982, abs=1e-3)
    assert wilson(900, 1000)[0] > low


def test_every_shipped_scaling_policy_can_be_built_from_plain_values() -> None:
    for name in SCALING.types:
        assert build(SCALING, name).type == name
    assert build(SCALING, "ballast", {"down_s": 60.0}) == BallastScaling(down_s=60.0)
