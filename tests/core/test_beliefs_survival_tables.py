"""Lookups in survival tables: against closed forms, against sums over whole tokens, and beyond the table's end."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival_tables import Buckets, SurvivalTables

SMALL = Buckets(step_tokens=10, count=8)


def array(*values: float) -> FloatArray:
    return np.array(values, np.float64)


def geometric(mean: float, buckets: Buckets) -> FloatArray:
    """P(L > x) of a geometric length of this mean."""
    return np.asarray((1.0 - 1.0 / mean) ** buckets.boundaries)


@st.composite
def curves(draw: st.DrawFn) -> FloatArray:
    """Any non-increasing curve from 1 on SMALL, cliffs and zeros included."""
    ratios = draw(st.lists(st.sampled_from([0.0, 0.01, 0.5, 0.9, 1.0]), min_size=8, max_size=8))
    return np.concatenate([[1.0], np.cumprod(ratios)])


def plainly_remaining(tables: SurvivalTables, age: int, cap: int) -> float:
    """The sum over whole tokens of the chance that each is generated."""
    later = np.arange(age, cap, dtype=np.float64)
    return float(tables.conditional(np.full(len(later), float(age)), later).sum())


def test_survival_is_read_at_boundaries_and_in_between() -> None:
    tables = SurvivalTables(SMALL, array(1, 0.8, 0.6, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2))
    np.testing.assert_allclose(tables.survival(array(-5, 0, 10, 15, 35, 80)), [1, 1, 0.8, 0.7, 0.5, 0.2])


def test_conditional_survival_is_the_ratio_and_0_from_the_requests_own_cap_on() -> None:
    tables = SurvivalTables(SMALL, array(1, 0.8, 0.6, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2))
    now, later = array(10, 10, 10, 20), array(20, 10, 5, 80)
    np.testing.assert_allclose(tables.conditional(now, later), [0.75, 1, 1, 1 / 3])
    np.testing.assert_allclose(tables.conditional(now, later, 0, array(20, 20, 20, 81)), [0, 1, 1, 1 / 3])


def test_an_exponential_stays_one_beyond_the_table() -> None:
    """Mean 100 on a table that ends at 80: the tail's hazard is that of the whole."""
    tables = SurvivalTables(SMALL, np.exp(-SMALL.boundaries / 100))
    far = array(0, 50, 80, 300, 5000)
    np.testing.assert_allclose(tables.conditional(far, far + 100), math.exp(-1), rtol=2e-3)
    np.testing.assert_allclose(tables.expected_remaining(far), 100.5, rtol=2e-3)
    np.testing.assert_allclose(tables.quantile_remaining(0.5, far), 100 * math.log(2), rtol=2e-3)


def test_expected_remaining_of_a_geometric_length() -> None:
    """E[L - l | L > l] is its mean at every age; with a cap, mean (1 - q ** (cap - age))."""
    buckets = Buckets()
    tables = SurvivalTables(buckets, geometric(300.0, buckets))
    ages = array(0, 1, 31.5, 700, 1500)
    np.testing.assert_allclose(tables.expected_remaining(ages), 300, rtol=2e-3)
    capped = 300 * (1 - (1 - 1 / 300) ** 500)
    np.testing.assert_allclose(tables.expected_remaining(ages, 0, ages + 500), capped, rtol=2e-3)
    np.testing.assert_allclose(tables.expected_remaining(ages, 0, ages + 1), 1.0, atol=1e-3)


def test_when_every_output_has_100_tokens_the_rest_is_what_is_missing_to_100() -> None:
    """Within half a bucket: the curve falls from 1 to 0 between the boundaries 96 and 128."""
    buckets = Buckets()
    tables = SurvivalTables(buckets, (buckets.boundaries < 100).astype(np.float64))
    ages = array(0, 10, 50, 90)
    np.testing.assert_allclose(tables.expected_remaining(ages), 100 - ages, atol=17)
    assert tables.survival(array(200))[0] < 1e-4
    outlived = tables.expected_remaining(array(130, 1000, 1e7))
    assert ((outlived > 0) & (outlived < 100)).all()


def test_a_cap_that_is_reached_leaves_nothing() -> None:
    tables = SurvivalTables(SMALL, np.ones(9))
    np.testing.assert_array_equal(tables.expected_remaining(array(50, 70), 0, 50.0), [0, 0])
    np.testing.assert_array_equal(tables.quantile_remaining(0.9, array(50, 70), 0, 50.0), [0, 0])


def test_requests_without_a_cap_stand_beside_capped_ones() -> None:
    tables = SurvivalTables(SMALL, geometric(40.0, SMALL))
    mixed = tables.expected_remaining(array(10, 10), 0, array(30, np.inf))
    assert mixed[0] == pytest.approx(tables.expected_remaining(array(10), 0, 30.0)[0])
    assert mixed[1] == pytest.approx(tables.expected_remaining(array(10))[0])


def test_each_class_reads_its_own_row() -> None:
    rows = np.stack([geometric(20.0, SMALL), geometric(200.0, SMALL), (SMALL.boundaries < 30).astype(np.float64)])
    tables = SurvivalTables(SMALL, rows, np.arange(27.0).reshape(3, 9))
    slots = np.array([2, 0, 1, 2])
    ages = array(5, 15, 60, 500)
    for method in (tables.survival, tables.expected_remaining, tables.effective_samples):
        together = method(ages, slots)
        alone = [method(ages[k : k + 1], int(slots[k]))[0] for k in range(4)]
        np.testing.assert_allclose(together, alone)
    quantiles = tables.quantile_remaining(0.7, ages, slots)
    np.testing.assert_allclose(
        quantiles, [tables.quantile_remaining(0.7, ages[k : k + 1], int(slots[k]))[0] for k in range(4)]
    )
    np.testing.assert_array_equal(tables.effective_samples(array(0, 15, 1e9), np.array([0, 1, 2])), [0, 10, 26])


@given(curves(), curves(), st.lists(st.floats(0, 500), min_size=1, max_size=20), st.floats(0, 500))
@settings(max_examples=50, deadline=None)
def test_a_row_answers_beside_others_as_it_does_alone(
    first: FloatArray, second: FloatArray, ages: list[float], more: float
) -> None:
    """Beyond the table, too, where another row begins; one slot for all, or one for each age."""
    together, now = SurvivalTables(SMALL, np.stack([first, second])), array(*ages)
    for slot, curve in enumerate((first, second)):
        alone = SurvivalTables(SMALL, curve)
        for classes in (slot, np.full(len(now), slot)):
            np.testing.assert_array_equal(together.survival(now, classes), alone.survival(now))
            np.testing.assert_array_equal(together.survival_within(now, classes), alone.survival_within(now))
            np.testing.assert_array_equal(
                together.conditional(now, now + more, classes), alone.conditional(now, now + more)
            )
            np.testing.assert_array_equal(together.expected_remaining(now, classes), alone.expected_remaining(now))


def test_many_lookups_give_what_few_give_and_keep_the_shape() -> None:
    """Long arrays are worked on in pieces."""
    rng = np.random.default_rng(0)
    buckets = Buckets()
    tables = SurvivalTables(buckets, np.stack([geometric(300.0, buckets), geometric(900.0, buckets)]))
    ages, slots = rng.uniform(0, 40_000, 20_000), rng.integers(0, 2, 20_000)
    caps = ages + rng.uniform(0, 4000, 20_000)
    whole = tables.expected_remaining(ages, slots, caps)
    np.testing.assert_allclose(whole[:100], tables.expected_remaining(ages[:100], slots[:100], caps[:100]))
    np.testing.assert_allclose(whole[-100:], tables.expected_remaining(ages[-100:], slots[-100:], caps[-100:]))
    grid = tables.conditional(ages[:200, None], ages[:200, None] + np.arange(100.0))
    assert grid.shape == (200, 100)
    np.testing.assert_allclose(grid[7], tables.conditional(np.full(100, ages[7]), ages[7] + np.arange(100.0)))


@given(curves(), st.integers(0, 120), st.integers(0, 120))
@settings(deadline=None)
def test_expected_remaining_is_the_sum_over_tokens_still_to_come(curve: FloatArray, age: int, more: int) -> None:
    """Differential: exact for any curve, also across the table's end (to the exponential's step)."""
    tables = SurvivalTables(SMALL, curve)
    expected = plainly_remaining(tables, age, age + more)
    assert float(tables.expected_remaining(array(age), 0, float(age + more))[0]) == pytest.approx(
        expected, rel=0.02, abs=1e-6
    )


@given(curves(), st.lists(st.floats(0, 500), min_size=1, max_size=20), st.floats(0.01, 0.99))
@settings(max_examples=200, deadline=None)
def test_no_lookup_is_ever_infinite_negative_or_out_of_range(
    curve: FloatArray, ages: list[float], probability: float
) -> None:
    tables = SurvivalTables(SMALL, curve)
    at = np.sort(np.array(ages))
    survival = tables.survival(at)
    assert ((survival >= 0) & (survival <= 1)).all()
    assert (np.diff(survival) <= 1e-12).all()
    later = tables.conditional(at, at + 25.0)
    assert ((later >= 0) & (later <= 1 + 1e-12)).all()
    remaining = tables.expected_remaining(at)
    assert (np.isfinite(remaining) & (remaining > 0)).all()
    quantile = tables.quantile_remaining(probability, at)
    assert (np.isfinite(quantile) & (quantile >= 0)).all()
    assert (tables.expected_remaining(at, 0, at + 7.0) <= 7.0 + 1e-9).all()
    assert (tables.quantile_remaining(probability, at, 0, at + 7.0) <= 7.0 + 1e-9).all()


@given(curves(), st.integers(0, 12), st.floats(0.05, 0.95))
@settings(deadline=None)
def test_a_quantile_is_exceeded_with_its_probability(curve: FloatArray, boundary: int, probability: float) -> None:
    """At boundaries: P(more than q to come) <= 1 - p <= P(a little less than q to come)."""
    tables = SurvivalTables(SMALL, curve)
    age = array(boundary * 10.0)
    quantile = tables.quantile_remaining(probability, age)
    assert tables.conditional(age, age + quantile)[0] <= 1 - probability + 1e-9
    assert tables.conditional(age, age + np.maximum(quantile - 1e-6, 0))[0] >= 1 - probability - 1e-6


def test_impossible_questions_are_refused() -> None:
    tables = SurvivalTables(SMALL, np.ones(9))
    with pytest.raises(ValueError, match="probability: must be above 0 and below 1"):
        tables.quantile_remaining(1.0, array(0))
    with pytest.raises(ValueError, match="survival: must have 9 boundaries"):
        SurvivalTables(SMALL, np.ones(5))
    with pytest.raises(ValueError, match="NaN"):
        SurvivalTables(SMALL, np.full(9, np.nan))
    with pytest.raises(ValueError, match="step_tokens"):
        Buckets(step_tokens=0)
