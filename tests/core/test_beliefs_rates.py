"""Service rates: ratios of sums, forgotten with time, leaning on the pool and on a default."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.rates import PREFILL_RATES, RateSettings, ServiceRates, request_tokens_per_s


def rate(rates: ServiceRates, slot: int, now_s: float) -> float:
    return float(rates.tokens_per_s(np.array([slot]), now_s)[0])


def test_before_anything_is_seen_the_default_holds() -> None:
    rates = ServiceRates()
    assert rates.pool_tokens_per_s(0.0) == pytest.approx(30)
    assert rate(rates, 5, 0.0) == pytest.approx(30)
    assert ServiceRates(PREFILL_RATES).pool_tokens_per_s(0.0) == pytest.approx(5000)


def test_one_endpoint_by_hand() -> None:
    """40 tokens in 1 s and 200 in 9 s, one half-life apart; priors of 2 s."""
    rates = ServiceRates(RateSettings(default_tokens_per_s=30, half_life_s=10, prior_s=2))
    assert rates.observe(0, 40, 1, now_s=0.0)
    assert rates.observe(0, 200, 9, now_s=10.0)
    pool = (20 + 200 + 60) / (0.5 + 9 + 2)
    assert rates.pool_tokens_per_s(10.0) == pytest.approx(pool)
    assert rate(rates, 0, 10.0) == pytest.approx((220 + 2 * pool) / (9.5 + 2))


def test_endpoints_keep_their_own_rates_and_the_pool_the_rate_of_all() -> None:
    rates = ServiceRates()
    for second in range(200):
        rates.observe(0, 20 * 10, 10, now_s=float(second))
        rates.observe(3, 60 * 10, 10, now_s=float(second))
    found = rates.tokens_per_s(np.array([3, 0, 1]), 200.0)
    np.testing.assert_allclose(found, [60, 20, 40], rtol=0.01)
    assert rates.pool_tokens_per_s(200.0) == pytest.approx(40, rel=0.01)


def test_a_rate_is_weighted_by_seconds_not_by_observations() -> None:
    """Ten bursts of 1 s at 100 tokens/s and one stretch of 90 s at 10: 19 tokens/s, not 92."""
    rates = ServiceRates(RateSettings(half_life_s=1e9, prior_s=1e-6))
    for _ in range(10):
        rates.observe(0, 100, 1, now_s=0.0)
    rates.observe(0, 900, 90, now_s=0.0)
    assert rate(rates, 0, 0.0) == pytest.approx(19)


def test_a_silent_endpoint_drifts_to_the_pool() -> None:
    rates = ServiceRates()
    rates.observe(0, 10_000, 100, now_s=0.0)
    for second in range(600):
        rates.observe(1, 200, 10, now_s=float(second))
    assert rate(rates, 0, 1.0) > 60
    assert rate(rates, 0, 600.0) == pytest.approx(20, rel=0.05)


def test_a_lost_endpoint_is_forgotten() -> None:
    rates = ServiceRates()
    rates.observe(0, 10_000, 100, now_s=0.0)
    rates.forget(0)
    rates.forget(77)
    assert rate(rates, 0, 0.0) == pytest.approx(rates.pool_tokens_per_s(0.0))


@pytest.mark.parametrize(("tokens", "seconds"), [(-1, 1), (1, 0), (1, -1), (float("nan"), 1), (1, float("inf"))])
def test_what_cannot_be_is_not_used(tokens: float, seconds: float) -> None:
    rates = ServiceRates()
    assert not rates.observe(0, tokens, seconds, now_s=0.0)
    assert not rates.observe(-1, 1, 1, now_s=0.0)
    assert rate(rates, 0, 0.0) == pytest.approx(30)


def transcribed(seen: list[tuple[float, float, float]], settings: RateSettings, now_s: float) -> float:
    """The pool's rate with every observation weighted on its own."""
    weights = [math.exp2((at - now_s) / settings.half_life_s) for _, _, at in seen]
    tokens = sum(weight * count for weight, (count, _, _) in zip(weights, seen, strict=True))
    seconds = sum(weight * length for weight, (_, length, _) in zip(weights, seen, strict=True))
    return (tokens + settings.prior_s * settings.default_tokens_per_s) / (seconds + settings.prior_s)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0.01, 100), st.floats(0, 100)), max_size=20))
@settings(deadline=None)
def test_recursion_is_the_weighted_sum(seen: list[tuple[float, float, float]]) -> None:
    """Differential: the recursive sums against one sum over all observations."""
    seen = sorted(seen, key=lambda entry: entry[2])
    rates = ServiceRates()
    for tokens, seconds, at_s in seen:
        rates.observe(0, tokens, seconds, now_s=at_s)
    assert rates.pool_tokens_per_s(120.0) == pytest.approx(transcribed(seen, rates.settings, 120.0))


def test_a_requests_own_rate_begins_at_the_pools_and_becomes_its_own() -> None:
    """SIBYL appendix D: no jump when a pending request starts to run."""
    generated, seconds = np.array([0.0, 40.0, 40_000.0]), np.array([0.0, 1.0, 1000.0])
    np.testing.assert_allclose(request_tokens_per_s(generated, seconds, 20.0), [20, 30, 40], rtol=1e-3)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="half_life_s: must be finite and above 0"):
        RateSettings(half_life_s=0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 99), st.floats(-1, 100), st.floats(0, 100)), max_size=30))
@settings(deadline=None)
def test_many_observations_are_one_after_the_other(gaps: list[tuple[int, int, float, float]]) -> None:
    """To the last bit, times that go back and gaps without a time included."""
    one_by_one, at_once = ServiceRates(), ServiceRates()
    for slot, tokens, seconds, now_s in gaps:
        one_by_one.observe(slot, tokens, seconds, now_s)
    at_once.observe_all(gaps)
    slots = np.arange(4)
    assert one_by_one.pool_tokens_per_s(100.0) == at_once.pool_tokens_per_s(100.0)
    assert one_by_one.tokens_per_s(slots, 100.0).tolist() == at_once.tokens_per_s(slots, 100.0).tolist()
