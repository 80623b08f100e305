"""What the scaling policy `ballast` answers: the equilibrium by hand, reasons in words, rehearsals, windows."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from ballast_core.attainment import Counts as RequestCounts
from ballast_core.attainment import Objective
from ballast_core.model import Role
from ballast_core.policies.registry import SCALING, build
from ballast_core.policies.scaling.ballast import BallastScaling
from ballast_core.policies.scaling.forecast import MOST_GROWTH, holt_damped
from ballast_core.policies.scaling.measuring import Seen, lengths_of
from ballast_core.policies.scaling.protocol import (
    REASONS,
    Attained,
    Clamps,
    Counts,
    Decision,
    Inputs,
    Pool,
    Rehearsal,
    Traffic,
)
from ballast_core.policies.scaling.rehearsing import carried_over, worth_rehearsing
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.profiles.capacity import LengthStatistics, decode_rps, prefill_rps
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


def test_rounds_that_cannot_say_what_is_right_bring_no_pool_nearer_to_its_end() -> None:
    """Traffic that comes back begins with few requests."""
    busy = inputs(split(6, 3), traffic(40.0))
    first = decided(POLICY, busy)
    now = carried_out(busy, first)
    for _ in range(40):
        now = carried_out(now, decided(POLICY, replace(now, traffic=traffic(0.0))))
    assert len(now.memory.recommended) <= 3
    calm = replace(now, traffic=traffic(2.0))
    held = decided(POLICY, calm)
    assert (held.target, held.reason) == (first.target, "Stabilising")
    assert decided(POLICY, carried_out(calm, held, after_s=301.0)).reason == "ScaledDown"


def set_by_another(pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
    """The same, with another scaler that sets the last one."""
    return (*pools[:-1], replace(pools[-1], least=0, by_others=True))


@pytest.mark.parametrize(
    ("decode", "clamps"),
    [(1, Clamps(max_ratio=0.5)), (0, Clamps())],
    ids=["outside of the ratio", "at zero"],
)
def test_what_another_scaler_sets_lifts_no_window(decode: int, clamps: Clamps) -> None:
    """Its number may break a clamp for long: the others shrink after their window, and not while the objective is
    missed."""
    given = inputs(set_by_another(split(6, decode)), traffic(2.0), clamps=clamps)
    first = decided(POLICY, given)
    assert (first.target[0], first.reason) == (Counts(6, 0), "ScaledUp"), "it is advised to grow"
    later = replace(given, now_s=301.0, memory=first.memory)
    late = Attained("default", RequestCounts(340, 60))
    missed = replace(later, traffic=replace(later.traffic, attained=(late,)))
    assert decided(POLICY, missed).target[0] == Counts(6, 0)
    assert decided(POLICY, later).target[0].prefill < 6


@pytest.mark.parametrize(
    ("pools", "clamps"),
    [(split(6, 1), Clamps(max_ratio=0.5)), (set_by_another(split(6, 1)), Clamps(gpu_budget=4))],
    ids=["a ratio", "a budget beside another scaler, which keeps to it"],
)
def test_a_clamp_that_was_edited_waits_for_no_window(pools: tuple[Pool, ...], clamps: Clamps) -> None:
    assert decided(POLICY, inputs(pools, traffic(2.0), clamps=clamps)).target[0].prefill < 6


@pytest.mark.parametrize(
    ("pools", "target"),
    [(split(6, 3), (Counts(4, 0), Counts(0, 2))), (flexible(6, 3), (Counts(4, 2),))],
    ids=["two pools", "a flexible one"],
)
def test_a_budget_that_was_lowered_is_kept_without_traffic_too(
    pools: tuple[Pool, ...], target: tuple[Counts, ...]
) -> None:
    calm = inputs(pools, traffic(0.0), budget=6)
    decision = decided(POLICY, calm)
    assert (decision.target, decision.reason) == (target, "ScaledDown")
    assert decided(POLICY, carried_out(calm, decision)).reason == "NoTraffic"


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
            replace(inputs(split(1, 1), traffic(5.0)), objectives=(Objective("default"),)),
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


@pytest.mark.parametrize("share", [0.9999, 0.97, 0.8, 0.3])
def test_an_objective_out_of_reach_is_told_with_one_that_can_be_met(share: float) -> None:
    """By its prompt alone, with which the policy goes on."""
    given = inputs(split(1, 1), traffic(5.0))

    def by(ttft_s: float) -> Decision:
        return decided(POLICY, replace(given, objectives=(replace(SLO, ttft_s=ttft_s),)))

    assert given.traffic.lengths is not None
    limit_s = float(f"{share / prefill_rps(given.pools[0].profile, given.traffic.lengths):.6g}")
    said = re.search(r"a TTFT of some (\S+) s; the objective is (\S+) s", by(limit_s).message)
    assert said is not None
    least_s, told_s = map(float, said.groups())
    assert told_s == limit_s < least_s
    assert by(least_s).reason != "ObjectiveOutOfReach"


def test_a_budget_that_is_used_up_gives_the_best_balanced_layout_and_says_so() -> None:
    given = inputs(flexible(1, 1), traffic(60.0), budget=6)
    decision = decided(POLICY, given)
    assert decision.target[0].replicas == 6
    assert "clamps and budget leave" in decision.message
    after = decided(POLICY, carried_out(given, decision))
    assert (after.reason, after.target) == ("BudgetReached", decision.target)


def test_the_equilibrium_is_right_unless_another_candidate_surely_does_better_in_rehearsal() -> None:
    proposal = REHEARSED.propose(inputs(flexible(3, 2), traffic(20.0)))
    every = [Rehearsal(candidate=k, requests=200, met=199) for k in range(len(proposal.candidates))]
    assert len(every) > 2

    def chosen(*met: int) -> int | None:
        return REHEARSED.decide(proposal, [replace(each, met=m) for each, m in zip(every, met, strict=False)]).chosen

    assert chosen(199, 200, 200) == 0, "it reaches the objective"
    assert chosen(180, 185, 185) == 0, "within the interval"
    assert chosen(100, 150, 140) == 1, "none reaches the objective; it reached most"
    assert chosen(100, 196, 198) == 2, "both reach the objective at the same price; it reached more"
    dearer = tuple(replace(each, price=each.price + (k == 2)) for k, each in enumerate(proposal.candidates))
    proposal = replace(proposal, candidates=dearer)
    assert chosen(100, 196, 198) == 1, "both reach the objective, and it is cheaper"
    decision = REHEARSED.decide(proposal, [replace(every[0], met=100), every[1]])
    assert decision.predicted_attainment == pytest.approx(0.995)
    assert "surely better than the equilibrium's 50.0%" in decision.message


def test_a_rehearsal_is_worth_its_cost_where_something_would_change_or_a_class_misses_its_objective() -> None:
    given = inputs(flexible(3, 2), traffic(30.0))
    assert worth_rehearsing(REHEARSED, REHEARSED.propose(given))
    assert not worth_rehearsing(POLICY, POLICY.propose(given))
    settled = carried_out(given, decided(POLICY, given))
    assert not worth_rehearsing(REHEARSED, REHEARSED.propose(settled))
    missing = replace(settled.traffic, attained=(Attained(SLO.name, RequestCounts(within=50, outside=150)),))
    assert worth_rehearsing(REHEARSED, REHEARSED.propose(replace(settled, traffic=missing)))
    assert not worth_rehearsing(REHEARSED, REHEARSED.propose(replace(given, traffic=traffic(0.0))))


def test_what_was_tried_against_other_objectives_is_no_answer() -> None:
    given = inputs(flexible(3, 2), traffic(20.0))
    tried = REHEARSED.propose(given)
    rehearsals = [Rehearsal(candidate=0, requests=200, met=199)]
    assert carried_over(tried, rehearsals, REHEARSED.propose(given)) == tuple(rehearsals)
    tighter = REHEARSED.propose(replace(given, objectives=(replace(SLO, ttft_s=2.0),)))
    assert tighter.candidates[0].layout == tried.candidates[0].layout
    assert carried_over(tried, rehearsals, tighter) == ()


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
    for counts, reason in ((RequestCounts(340, 60), "Stabilising"), (RequestCounts(17, 3), "ScaledDown")):
        seen = Attained("default", counts)  # 85 % of 400 is below 95 % for certain, 85 % of 20 is not
        assert decided(POLICY, replace(later, traffic=replace(later.traffic, attained=(seen,)))).reason == reason


def test_a_pool_gives_its_gpus_to_one_that_needs_them_while_a_class_misses_its_objective() -> None:
    """Else the split that misses it would stay for ever. It gives no more than that."""
    given = inputs(split(6, 2), traffic(3.0, REASONING), budget=8)
    missed = replace(given, traffic=replace(given.traffic, attained=(Attained("default", RequestCounts(340, 60)),)))
    now, layouts = missed, []
    for _ in range(3):
        decision = decided(POLICY, now)
        layouts.append(tuple(counts.replicas for counts in decision.target))
        now = replace(carried_out(now, decision, after_s=301.0), traffic=missed.traffic)
    assert layouts == [(6, 2), (4, 2), (4, 4)]
    assert decision.proposal.candidates[0].layout == (Counts(1, 0), Counts(0, 4))


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


def test_a_pool_takes_back_what_drains_and_needs_no_gpus_for_it() -> None:
    given = inputs(split(1, 1), traffic(40.0), budget=8)
    prefill, decode = (
        replace(each, draining=3, returning=back) for each, back in zip(given.pools, (3, 1), strict=True)
    )
    decision = decided(POLICY, replace(given, pools=(prefill, decode)))
    assert (decision.target, decision.reason) == ((Counts(4, 0), Counts(0, 2)), "ScaledUp")


def test_gpus_that_a_window_keeps_from_others_are_no_change_under_way() -> None:
    given = inputs(split(6, 2), traffic(3.0, REASONING), budget=8)
    decision = decided(POLICY, given)
    assert (decision.target, decision.reason) == (given.wanted, "Stabilising")
    draining = replace(given.pools[0], draining=1)
    assert decided(POLICY, replace(given, pools=(draining, given.pools[1]))).reason == "ChangeUnderWay"


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


def test_every_shipped_scaling_policy_can_be_built_from_plain_values() -> None:
    for name in SCALING.types:
        assert build(SCALING, name).type == name
    assert build(SCALING, "ballast", {"down_s": 60.0}) == BallastScaling(down_s=60.0)


A100, H20 = SHIPPED_PROFILES["a100-qwen3-32b"], SHIPPED_PROFILES["h20-qwen3-32b"]
LONG = LengthStatistics(12_000.0, 300.0, 12_000.0**2 / 2, 12_150.0)
"""A prompt takes 2.6 s on an A100 pair and 8.8 s on an H20; the objective allows 5 s."""


def unlike(a100: float, h20: float) -> tuple[Pool, ...]:
    """A pool of each role on each hardware, at these prices of an instance and hour."""
    return tuple(
        replace(pool(role, least=0, name=f"{role}-{profile.name[:4]}"), profile=profile, cost_per_hour=price)
        for role in (Role.PREFILL, Role.DECODE)
        for profile, price in ((A100, a100), (H20, h20))
    )


@pytest.mark.parametrize(
    ("lengths", "a100", "h20", "chosen"),
    [
        (CHAT, 4.0, 1.5, ("a100", "h20-")),  # 3.4 times the prefill at 2.7 times the price; 2.3 times the decode
        (CHAT, 4.0, 3.0, ("a100", "a100")),
        (CHAT, 4.0, 1.0, ("h20-", "h20-")),
        (LONG, 4.0, 1.0, ("a100", "h20-")),  # an H20's prefill costs 15 % less, but no request is in time there
        (LONG, 40.0, 1.0, ("a100", "h20-")),
    ],
)
def test_the_cheapest_hardware_that_meets_the_objective_is_taken(
    lengths: LengthStatistics, a100: float, h20: float, chosen: tuple[str, str]
) -> None:
    """For each stage on its own: by what a request costs there, of those pools on which a request can be in time."""
    given = inputs(unlike(a100, h20), traffic(2.0, lengths))
    decision = decided(POLICY, given)
    used = [each.name for each, counts in zip(given.pools, decision.target, strict=True) if counts.replicas]
    assert used == [f"prefill-{chosen[0]}", f"decode-{chosen[1]}"]


def test_hardware_that_is_too_slow_is_used_only_where_it_must_be() -> None:
    """Its least number stays; all that is needed comes from the other one, and where that ends, so does the fleet."""
    pools = unlike(40.0, 1.0)
    pools = (replace(pools[0], most=3), replace(pools[1], least=2), *pools[2:])
    target = decided(POLICY, inputs(pools, traffic(4.0, LONG))).target
    assert (target[0].replicas, target[1].replicas) == (3, 2)
    alone = (replace(pools[0], most=0), *pools[1:])
    assert decided(POLICY, inputs(alone, traffic(4.0, LONG))).reason in REASONS
