"""Calibration on public traces: learn from the first half, in order of arrival, and judge by the second."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.calibration import error_surface, remaining_calibration
from ballast_core.beliefs.survival import CensoringAwareSurvival, EmaSurvival, SurvivalEstimator, heavy_tailed_prior
from ballast_core.beliefs.survival_tables import Buckets, SurvivalTables

pytestmark = pytest.mark.rotating(4, each=True)

TRACES = Path(__file__).parents[3] / "shared" / "traces"
GRID = Buckets()


def output_tokens(path: Path) -> FloatArray:
    with gzip.open(path, "rt") as rows:
        return np.array([float(row["output_tokens"]) for row in csv.DictReader(rows)])


@pytest.mark.shared
@pytest.mark.skipif(not TRACES.exists(), reason=f"{TRACES} is absent")
@pytest.mark.parametrize("make", [EmaSurvival, CensoringAwareSurvival], ids=["ema", "censoring-aware"])
@pytest.mark.parametrize(
    ("name", "mean_error", "share_below_5_percent"),
    [
        ("azure23_conv_w1.csv.gz", 0.07, 0.6),
        ("servegen_r1_w1.csv.gz", 0.05, 0.7),
        ("servegen_large_w1.csv.gz", 0.025, 0.9),
        ("lengths_sharegpt10k_llama2.csv.gz", 0.025, 0.9),
        ("lengths_arxiv_summarization_llama2.csv.gz", 0.04, 0.75),
    ],
)
def test_the_curve_learned_from_half_a_trace_is_calibrated_on_the_other_half(
    make: type[EmaSurvival] | type[CensoringAwareSurvival], name: str, mean_error: float, share_below_5_percent: float
) -> None:
    """Ages and horizons up to the 99th percentile, ages that 30 requests reached: docs/beliefs/output-length.md."""
    lengths = output_tokens(TRACES / name)
    half = len(lengths) // 2
    estimator: SurvivalEstimator = make(GRID)
    for at, length in enumerate(lengths[:half]):
        estimator.ended(float(length), censored=False, now_s=at * 0.1)
    tables = SurvivalTables(GRID, estimator.survival(heavy_tailed_prior(GRID, 512.0, 2.0)))
    longest = float(np.quantile(lengths[half:], 0.99))
    ages, horizons = np.linspace(0.0, longest, 40), np.linspace(longest / 40, longest, 40)
    surface = error_surface(tables, lengths[half:], ages, horizons)
    remaining = remaining_calibration(tables, lengths[half:], ages)
    print(
        f"{name} mean {surface.mean_absolute_error:.3f} max {surface.largest_error:.3f} "
        f"below 5 %: {surface.share_below(0.05):.2f} remaining {remaining.mean_error_ratio:.3f} "
        f"90 % quantile covers {np.nanmean(remaining.coverage_ratio):.3f}"
    )
    assert surface.mean_absolute_error < mean_error
    assert surface.share_below(0.05) > share_below_5_percent
