"""SIBYL's error surface and the calibration of remaining lengths, on lengths that were not learned from."""

from __future__ import annotations

import numpy as np
import pytest

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.calibration import error_surface, remaining_calibration
from ballast_core.beliefs.survival import CensoringAwareSurvival, EmaSurvival, SurvivalEstimator, heavy_tailed_prior
from ballast_core.beliefs.survival_tables import Buckets, SurvivalTables

GRID = Buckets()
AGES = np.arange(0.0, 8000.0, 400.0)
HORIZONS = np.array([50.0, 200.0, 500.0, 1000.0, 2000.0])


def sharegpt_like(rng: np.random.Generator, size: int) -> tuple[FloatArray, FloatArray]:
    """Natural lengths in the shape of SIBYL's ShareGPT (six in ten reach the cap of 8,192), and as they ended."""
    natural = np.where(rng.random(size) < 0.6, rng.uniform(8192, 20_000, size), rng.lognormal(7.0942, 1.0, size))
    natural = np.ceil(natural)
    return natural, np.minimum(natural, 8192)


def learned(estimator: SurvivalEstimator, natural: FloatArray, ended: FloatArray) -> SurvivalTables:
    for length, end in zip(natural, ended, strict=True):
        estimator.ended(float(end), censored=bool(length > end), now_s=0.0)
    return SurvivalTables(GRID, estimator.survival(heavy_tailed_prior(GRID, 512.0, 2.0)))


def test_a_surface_by_hand() -> None:
    """Lengths 10, 20, 30, 40 against a curve that falls by 1/8 every 10 tokens."""
    buckets = Buckets(step_tokens=10, count=8)
    tables = SurvivalTables(buckets, 1 - buckets.boundaries / 80)
    surface = error_surface(
        tables, np.array([40.0, 10.0, 30.0, 20.0]), np.array([0.0, 20.0]), np.array([10.0, 20.0]), min_survivors=1
    )
    np.testing.assert_allclose(surface.survivors, [4, 2])
    np.testing.assert_allclose(surface.actual, [[3 / 4, 2 / 4], [1 / 2, 0]])
    np.testing.assert_allclose(surface.predicted, [[7 / 8, 6 / 8], [5 / 6, 4 / 6]])
    assert surface.largest_error == pytest.approx(4 / 6)
    assert surface.mean_absolute_error == pytest.approx((1 / 8 + 1 / 4 + 1 / 3 + 2 / 3) / 4)
    assert surface.share_below(0.3) == 0.5


def test_ages_that_too_few_reached_are_unknown_and_do_not_count() -> None:
    buckets = Buckets(step_tokens=10, count=8)
    tables = SurvivalTables(buckets, 1 - buckets.boundaries / 80)
    lengths = np.array([10.0, 20.0, 30.0])
    some = error_surface(tables, lengths, np.array([0.0, 25.0]), np.array([10.0]), min_survivors=2)
    assert np.isnan(some.actual).tolist() == [[False], [True]]
    assert np.isfinite(some.mean_absolute_error)
    none = error_surface(tables, lengths, np.array([25.0]), np.array([10.0]), min_survivors=2)
    assert np.isnan(none.mean_absolute_error)
    assert np.isnan(none.largest_error)
    assert np.isnan(none.share_below(0.1))


@pytest.mark.parametrize("censoring_aware", [False, True], ids=["ema", "censoring-aware"])
def test_both_estimators_reach_the_papers_calibration_on_its_own_shape(censoring_aware: bool) -> None:
    """Paper, figure 7, ShareGPT: errors below 14 %, mostly below 5 %.

    The EMA speaks of lengths as they ended; the censoring-aware curve needs the cap to do so.
    """
    rng = np.random.default_rng(7)
    estimator = CensoringAwareSurvival(GRID) if censoring_aware else EmaSurvival(GRID, alpha=0.998)
    tables = learned(estimator, *sharegpt_like(rng, 6000))
    _, test = sharegpt_like(rng, 20_000)
    surface = error_surface(tables, test, AGES, HORIZONS, cap_tokens=8192 if censoring_aware else None)
    assert surface.largest_error < 0.14
    assert surface.share_below(0.05) > 0.8
    assert surface.mean_absolute_error < 0.03


def test_a_wrong_curve_is_found_out() -> None:
    rng = np.random.default_rng(7)
    _, test = sharegpt_like(rng, 5000)
    tables = SurvivalTables(GRID, heavy_tailed_prior(GRID, 512.0, 2.0))
    surface = error_surface(tables, test, AGES, HORIZONS)
    assert surface.largest_error > 0.4
    assert surface.share_below(0.05) < 0.3


def test_remaining_length_and_its_quantile_are_calibrated_by_age() -> None:
    """Mean within 5 % on average, and nine in ten remaining lengths within the predicted 90 % quantile."""
    rng = np.random.default_rng(3)
    natural = np.ceil(rng.lognormal(6.0, 1.0, 6000))
    tables = learned(CensoringAwareSurvival(GRID), natural, natural)
    found = remaining_calibration(tables, np.ceil(rng.lognormal(6.0, 1.0, 40_000)), np.arange(0.0, 1500.0, 100.0))
    assert found.mean_error_ratio < 0.08
    np.testing.assert_allclose(found.coverage_ratio, 0.9, atol=0.05)
    assert (np.diff(found.survivors) < 0).all()


def test_bad_input_is_refused_by_name() -> None:
    tables = SurvivalTables(GRID, heavy_tailed_prior(GRID, 512.0, 2.0))
    with pytest.raises(ValueError, match="test_lengths: must be a flat array of finite numbers"):
        error_surface(tables, np.array([np.nan]), AGES, HORIZONS)
    with pytest.raises(ValueError, match="horizons"):
        error_surface(tables, np.ones(3), AGES, np.array([-1.0]))
    with pytest.raises(ValueError, match="ages"):
        remaining_calibration(tables, np.ones(3), np.array([np.inf]))
