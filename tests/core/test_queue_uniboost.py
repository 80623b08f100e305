"""UniBoost against a plain transcription of the paper, its bounds, and what it learns."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ballast_core.policies.queue.gamma import GammaEstimator, GammaSettings, tail_slope_per_s
from ballast_core.policies.queue.protocol import Service, Work
from ballast_core.policies.queue.uniboost import UniBoost, boost_s, most_priority_changes, quantised_tokens

quick = settings(max_examples=150, deadline=None)
rates = st.floats(10.0, 1e5)
services = st.builds(Service, rates, rates, st.floats(0.01, 100))
works = st.builds(
    Work,
    arrived_s=st.floats(0, 1e4),
    prompt_tokens=st.integers(1, 200_000),
    cached_tokens=st.integers(0, 1000),
    prefilled_tokens=st.integers(0, 200_000),
    generated_tokens=st.integers(0, 30_000),
)
orders = st.builds(UniBoost, unified=st.booleans(), quantise=st.booleans(), bin_tokens=st.integers(1, 999))


def quantise(s: int, k: int) -> float:
    """QUANTIZE of appendix A.1 as printed."""
    return k * 2.0 ** math.floor(math.log2(max(1, s / k)))


def transcribed(work: Work, v_p: float, v_d: float, gamma: float, k: int) -> float:
    """Section 3.2 with A.5's effective work; tokens become seconds as `UniBoost` documents."""
    w = max(work.prefilled_tokens + work.generated_tokens, work.prompt_tokens - work.cached_tokens)
    w_hat = quantise(w, k)
    at_prefill = max(work.prompt_tokens - work.cached_tokens, k)
    seconds = min(w_hat, at_prefill) / v_p + max(w_hat - at_prefill, 0) / v_d
    return work.arrived_s - 1 / gamma * math.log(1 / (1 - math.exp(-gamma * seconds)))


@quick
@given(work=works, v_p=rates, v_d=rates, gamma=st.floats(0.01, 1.0), k=st.sampled_from([1, 64, 256, 300]))
def test_the_key_is_the_papers(work: Work, v_p: float, v_d: float, gamma: float, k: int) -> None:
    """Where the printed formula has digits left."""
    key = UniBoost(bin_tokens=k).key(work, Service(v_p, v_d, gamma))
    seconds = max(work.prompt_tokens, work.prefilled_tokens + work.generated_tokens) / min(v_p, v_d)
    assume(gamma * seconds < 20)
    assert key == pytest.approx(transcribed(work, v_p, v_d, gamma, k), rel=1e-9, abs=1e-6)


@quick
@given(tokens=st.integers(0, 2**40), k=st.integers(1, 5000))
def test_rounding_down_at_most_halves(tokens: int, k: int) -> None:
    """A.2's worst case is the boost at half of the attained service."""
    rounded = quantised_tokens(tokens, k)
    assert rounded == k or rounded <= tokens < 2 * rounded
    assert (rounded // k).bit_count() == 1
    assert rounded % k == 0


def test_worked_examples() -> None:
    """Section 3.3: a decode of 10k tokens with k = 256 has at most 6 opportunities."""
    assert most_priority_changes(10_000, 256) == 6
    assert 1 + math.floor(math.log2(10_000 / 256)) == 6
    assert [quantised_tokens(n, 256) for n in (0, 255, 511, 512, 10_000)] == [256, 256, 256, 512, 8192]
    assert boost_s(math.log(2), 1.0) == pytest.approx(math.log(2))
    service = Service(10_000.0, 50.0, 1.0)
    order = UniBoost()
    assert -order.key(Work(0.0, 256), service) == pytest.approx(3.68, abs=0.005)
    assert -order.key(Work(0.0, 16_384), service) == pytest.approx(0.217, abs=0.005)


@quick
@given(
    prompt=st.integers(1, 30_000),
    output=st.integers(0, 20_000),
    steps=st.lists(st.integers(1, 4000), max_size=60),
    service=services,
)
def test_priority_falls_a_few_times_only(prompt: int, output: int, steps: list[int], service: Service) -> None:
    """1 + floor(log2(S / k)) values in a whole life, and as often may one give way, once per dispatch."""
    order, work = UniBoost(), Work(0.0, prompt)
    keys, evictions, dispatched_at = [order.key(work, service)], 0, 0
    for step in [*steps, prompt + output]:
        prefill = min(step, prompt - work.prefilled_tokens)
        work.prefilled_tokens += prefill
        work.generated_tokens += min(step - prefill, output - work.generated_tokens)
        keys.append(order.key(work, service))
        if order.may_evict(work, dispatched_at):
            evictions += 1
            dispatched_at = work.attained_tokens
    bound = 1 + math.floor(math.log2(max(prompt + output, 256) / 256))
    assert bound == most_priority_changes(prompt + output, 256)
    assert keys == sorted(keys)
    assert len(set(keys)) <= bound
    assert evictions < bound


@quick
@given(work=works, other=works, service=services, order=orders)
def test_nobody_is_overtaken_by_one_who_comes_later_than_the_bound(
    work: Work, other: Work, service: Service, order: UniBoost
) -> None:
    """No starvation: after most_boost_s every newcomer stands behind, whatever it is."""
    bound = order.most_boost_s(service)
    assert 0 <= bound < math.inf
    late = replace(other, arrived_s=work.arrived_s + bound * (1 + 1e-9) + 1e-6)
    assert order.key(late, service) >= order.key(work, service)
    small = replace(work, prompt_tokens=1, cached_tokens=0, prefilled_tokens=0, generated_tokens=0)
    assert small.arrived_s - order.key(small, service) == pytest.approx(bound, rel=1e-9, abs=1e-6)


def test_high_gamma_is_first_come_first_served_and_low_gamma_least_attained() -> None:
    """Figure 3's two ends."""
    early_long = Work(0.0, 100_000, prefilled_tokens=100_000, generated_tokens=5_000)
    late_short = Work(30.0, 300)
    order, service = UniBoost(adaptive=False, gamma_per_s=100.0), Service(10_000.0, 50.0)
    assert order.key(early_long, service) < order.key(late_short, service)
    order = UniBoost(adaptive=False, gamma_per_s=0.01)
    assert order.key(early_long, service) > order.key(late_short, service)


@pytest.mark.parametrize(
    ("parameters", "same"),
    [({}, False), ({"unified": False}, True), ({"adaptive": False}, False)],
)
def test_the_phases_are_parameters(parameters: dict[str, bool], same: bool) -> None:
    """Without phase 2 decoding costs no priority; without phase 4 a learned gamma is not used."""
    order = UniBoost(**parameters)  # type: ignore[arg-type]
    fresh, old = Work(0.0, 100, prefilled_tokens=100), Work(0.0, 100, prefilled_tokens=100, generated_tokens=9000)
    service = Service(10_000.0, 50.0)
    assert (order.key(fresh, service) == order.key(old, service)) is same
    learned = replace(service, gamma_per_s=0.1)
    assert (order.key(fresh, learned) == order.key(fresh, service)) is not order.adaptive


def test_memguard_off_follows_every_token() -> None:
    """k = 1 without powers: phase 2's vanilla boost."""
    service = Service(10_000.0, 50.0)
    works_ = [Work(0.0, 10, prefilled_tokens=10, generated_tokens=n) for n in range(1, 50)]
    vanilla = UniBoost(quantise=False)
    keys = [vanilla.key(work, service) for work in works_]
    assert keys == sorted(set(keys))
    assert len({UniBoost().key(work, service) for work in works_}) == 1


def test_gamma_of_an_exponential_tail_is_its_rate() -> None:
    """ln P(T > t) falls by gamma a second everywhere; the quantiles of the samples say so within 5 %."""
    samples = np.random.default_rng(1).exponential(1 / 0.4, 200_000)
    assert tail_slope_per_s(samples) == pytest.approx(0.4, rel=0.05)
    assert tail_slope_per_s([1.0] * 100) == math.inf


def test_gamma_follows_the_tail_and_stays_in_its_bounds() -> None:
    """Nothing from fewer than 100; the first replaces the guess, then smoothing; a tail without width is the bound."""
    estimator = GammaEstimator(1.0)
    samples = np.random.default_rng(2).exponential(5.0, 20_000)
    changed = [estimator.completed(float(sample)) for sample in samples[:100]]
    assert changed == [False] * 99 + [True]
    first = tail_slope_per_s(samples[:100])
    assert estimator.gamma_per_s == pytest.approx(first)
    for sample in samples[100:200]:
        estimator.completed(float(sample))
    assert estimator.gamma_per_s == pytest.approx(0.8 * first + 0.2 * tail_slope_per_s(samples[:200]))
    for sample in samples[200:]:
        estimator.completed(float(sample))
    assert estimator.updates == 200
    assert estimator.gamma_per_s == pytest.approx(0.2, rel=0.3)
    narrow = GammaEstimator(1.0, GammaSettings(gamma_max_per_s=3.0, gamma_smoothing=1.0))
    for _ in range(100):
        narrow.completed(2.0)
    assert narrow.gamma_per_s == 3.0
    wide = GammaEstimator(1.0, GammaSettings(gamma_min_per_s=0.5, gamma_smoothing=1.0))
    for number in range(100):
        wide.completed(1000.0 * number)
    assert wide.gamma_per_s == 0.5


def test_times_that_are_none_do_not_count() -> None:
    """A clock that jumped is no tail."""
    estimator = GammaEstimator(1.0)
    assert not any(estimator.completed(bad) for bad in [math.nan, math.inf, -1.0] * 100)
    assert estimator.updates == 0
