"""What holds of every scaling policy, whatever it is asked:

1. what is asked for keeps to bounds, ratio and GPU budget, draining instances included;
2. constant inputs come to rest;
3. more of the same traffic never gets fewer instances;
4. the same inputs get the same answer.
"""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ballast_core.model import Role
from ballast_core.policies.scaling.ballast import BallastScaling
from ballast_core.policies.scaling.baselines import FixedScaling, MeansScaling, UtilisationScaling
from ballast_core.policies.scaling.fitting import gpus, within
from ballast_core.policies.scaling.protocol import Clamps, Counts, Inputs, Pool, Rehearsal, Scaling, Traffic
from ballast_core.policies.scaling.sleeping import may_sleep
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.profiles.capacity import LengthStatistics
from tests.support.scaling import SLO, carried_out, decided

pytestmark = pytest.mark.rotating(4, each=True)

POLICIES: tuple[Scaling, ...] = (BallastScaling(), FixedScaling(), MeansScaling(interval_s=30.0), UtilisationScaling())
PROFILES = [SHIPPED_PROFILES[name] for name in ("h200-qwen3-32b", "a100-qwen3-32b", "h20-qwen3-32b")]


@st.composite
def pools(draw: st.DrawFn, role: Role) -> Pool:
    least = draw(st.integers(0, 4))
    most = draw(st.integers(least, 12))
    replicas = draw(st.integers(least, most))
    prefill = {Role.PREFILL: replicas, Role.DECODE: 0}.get(role)
    if prefill is None:
        prefill = draw(st.integers(0, replicas))
    wanted = Counts(prefill, replicas - prefill)
    starting = draw(st.integers(0, replicas))
    profile = draw(st.sampled_from(PROFILES))
    draining = draw(st.integers(0, 2))
    return Pool(
        name=role.value,
        role=role,
        profile=profile,
        least=least,
        most=most,
        gpus=profile.gpus,
        cost_per_hour=draw(st.sampled_from([0.0, 1.5, 4.0])),
        by_others=draw(st.booleans()),
        wanted=wanted,
        ready=Counts(max(0, wanted.prefill - starting), wanted.decode),
        starting=starting,
        draining=draining,
        returning=draw(st.integers(0, draining)),
        running=draw(st.integers(0, 400)),
        waiting=draw(st.integers(0, 400)),
        kv_usage_ratio=draw(st.floats(0, 1)),
    )


@st.composite
def moments(draw: st.DrawFn) -> LengthStatistics:
    prompt, output = draw(st.floats(16, 20_000)), draw(st.floats(1, 5_000))
    return LengthStatistics(prompt, output, prompt**2 / 2 * draw(st.floats(1, 4)), prompt + output / 2)


@st.composite
def asked(draw: st.DrawFn) -> Inputs:
    roles = draw(
        st.sampled_from([(Role.PREFILL, Role.DECODE), (Role.FLEXIBLE,), (Role.PREFILL, Role.DECODE, Role.FLEXIBLE)])
    )
    found = tuple(draw(pools(role)) for role in roles)
    low = draw(st.none() | st.floats(0.1, 2))
    high = draw(st.none() | st.floats(0.1, 8))
    return Inputs(
        now_s=0.0,
        pools=found,
        traffic=Traffic(
            bin_s=15.0,
            arrivals=tuple(draw(st.lists(st.integers(0, 900), max_size=12))),
            lengths=draw(st.none() | moments()),
            prefix_hit_ratio=draw(st.floats(0, 1)),
            backlog_tokens=draw(st.floats(0, 1e7)),
            decoding=draw(st.integers(0, 5000)),
            decoding_tokens=draw(st.floats(0, 1e7)),
            idle_s=draw(st.sampled_from([0.0, 5.0, 900.0])),
        ),
        objectives=(SLO,),
        clamps=Clamps(min_ratio=low, max_ratio=high, gpu_budget=draw(st.none() | st.integers(0, 40))),
        startup_s=draw(st.floats(0, 600)),
        zero_after_s=draw(st.none() | st.just(600.0)),
    )


@pytest.mark.rotating(2)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.type)
@settings(max_examples=150, deadline=None)
@given(first=asked(), waits=st.lists(st.floats(1, 400), min_size=1, max_size=4), data=st.data())
def test_clamps_and_budget_hold_after_every_round(
    policy: Scaling, first: Inputs, waits: list[float], data: st.DataObject
) -> None:
    now = first
    for wait in waits:
        proposal = policy.propose(now)
        tried = [
            Rehearsal(candidate=k, requests=100, met=data.draw(st.integers(0, 100)))
            for k in range(len(proposal.candidates))
        ]
        decision = policy.decide(proposal, tried if data.draw(st.booleans()) else ())
        _check(now, decision.target)
        now = replace(carried_out(now, decision, after_s=wait), traffic=data.draw(asked()).traffic)


def _check(now: Inputs, target: tuple[Counts, ...]) -> None:
    if target == now.wanted:
        return
    for pool, counts in zip(now.pools, target, strict=True):
        assert min(counts.prefill, counts.decode) >= 0
        assert counts.replicas <= max(pool.most, pool.wanted.replicas)
        assert pool.role is not Role.PREFILL or not counts.decode
        assert pool.role is not Role.DECODE or not counts.prefill
    leaving = sum(
        pool.gpus * (pool.draining + max(-pool.returning, pool.wanted.replicas - counts.replicas))
        for pool, counts in zip(now.pools, target, strict=True)
    )
    grows = any(counts.replicas > pool.wanted.replicas for pool, counts in zip(now.pools, target, strict=True))
    if grows and now.clamps.gpu_budget is not None:
        assert gpus(now.pools, target) + leaving <= now.clamps.gpu_budget
    asleep = may_sleep(now) and not any(counts.replicas for counts in target)
    if within(now.pools, now.wanted, now.clamps) and not asleep:
        assert within(now.pools, target, now.clamps)


@pytest.mark.parametrize(
    "policy", [BallastScaling(), FixedScaling(), MeansScaling(interval_s=15.0)], ids=lambda p: p.type
)
@settings(max_examples=100, deadline=None)
@given(first=asked())
def test_constant_inputs_come_to_rest(policy: Scaling, first: Inputs) -> None:
    """Within the longest window and a round for each instance; and then nothing ever changes."""
    now, layouts = first, []
    for _ in range(60):
        decision = decided(policy, now)
        now = carried_out(now, decision)
        layouts.append(decision.target)
    assert len(set(layouts[40:])) == 1


@settings(max_examples=200, deadline=None)
@given(first=asked(), more=st.floats(1, 8))
def test_more_of_the_same_traffic_never_gets_fewer_instances(first: Inputs, more: float) -> None:
    """By equilibrium: rate, backlog and running requests grow alike."""
    policy = BallastScaling()
    busy = replace(
        first.traffic,
        bin_s=first.traffic.bin_s / more,
        backlog_tokens=first.traffic.backlog_tokens * more,
        decoding_tokens=first.traffic.decoding_tokens * more,
    )
    even = replace(first, startup_s=0.0)
    less, most = policy.propose(even), policy.propose(replace(even, traffic=busy))
    if less.refusal or most.refusal:
        return
    before, after = (sum(counts.replicas for counts in each.candidates[0].layout) for each in (less, most))
    assert after >= before


@settings(max_examples=50, deadline=None)
@given(first=asked())
def test_the_same_inputs_get_the_same_answer(first: Inputs) -> None:
    for policy in POLICIES:
        assert decided(policy, first) == decided(policy, first)
