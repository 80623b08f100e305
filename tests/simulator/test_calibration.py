"""Beliefs scored on what was held back: survival curves by themselves, the rest through a simulated fleet."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ballast_core.beliefs.survival import heavy_tailed_prior
from ballast_core.beliefs.survival_tables import Buckets, SurvivalTables
from ballast_sim.calibration import (
    FleetPredictions,
    LengthScore,
    LengthSettings,
    predict_and_measure,
    score_lengths,
    workload_in_order,
)
from ballast_sim.calibration.scores import BINS, score_curves
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import SourceError, WorkloadSource
from ballast_sim.simulation.policies.choice import parse_policies
from ballast_sim.workloads import WorkloadRequest, generate

ZETA = generate("zeta", duration_s=1e9, limit=6000, seed=3)


def by_condition(found: list[LengthScore]) -> dict[tuple[str, bool, bool], LengthScore]:
    return {(one.estimator, one.limited, one.by_class): one for one in found}


# --- scores -----------------------------------------------------------------------------------------------------------


def test_scores_by_hand() -> None:
    """Lengths 1 to 64 are uniform: S(x) = 1 - x / 64, and the curve says so."""
    lengths = np.arange(1.0, 65.0)
    buckets = Buckets(step_tokens=1, count=128)
    honest = SurvivalTables(buckets, np.clip(1 - buckets.boundaries / 64, 0, 1))
    score = score_curves(honest, {0: lengths})
    assert score.surface_max == pytest.approx(0.0, abs=0.02)
    assert score.brier == pytest.approx(score.brier_best, abs=1e-3)
    assert score.calibration_error < 0.01
    assert score.coverage[0.5] == pytest.approx(0.5, abs=0.03)
    for place, one in enumerate(score.bins):
        if one.predicted is not None and one.observed is not None:
            assert place / BINS <= one.predicted <= (place + 1) / BINS
            assert one.observed == pytest.approx(one.predicted, abs=0.05)


def test_a_wrong_curve_scores_worse_than_the_best_possible() -> None:
    buckets = Buckets()
    wrong = SurvivalTables(buckets, heavy_tailed_prior(buckets, 100.0, 3.0))
    score = score_curves(wrong, {0: np.array([float(request.output_tokens) for request in ZETA])})
    assert score.brier > score.brier_best + 0.1
    assert score.calibration_error > 0.2
    assert score.surface_max > 0.5


def test_what_lies_beyond_the_longest_length_is_no_merit() -> None:
    """Cells whose target nobody can reach are left out of the surface."""
    score = score_curves(
        SurvivalTables(Buckets(), heavy_tailed_prior(Buckets(), 512.0, 2.0)), {0: np.full(100, 1000.0)}
    )
    ages, later = np.nonzero(np.isfinite(score.surface))
    assert (score.ages[ages] + score.horizons[later]).max() <= 1000.0 + 1e-6
    assert len(ages) > 0


# --- learning ---------------------------------------------------------------------------------------------------------


def test_both_estimators_are_calibrated_where_nothing_is_cut() -> None:
    """SIBYL's section 5.2: Zeta below 9 %."""
    found = by_condition(score_lengths(ZETA))
    assert set(found) == {(name, limited, False) for name in ("ema", "censoring-aware") for limited in (False, True)}
    for name in ("ema", "censoring-aware"):
        assert found[name, False, False].score.surface_max < 0.09
        assert found[name, False, False].cut == 0


def test_only_the_censoring_aware_curve_sees_through_max_tokens() -> None:
    found = by_condition(score_lengths(ZETA))
    fooled, aware = found["ema", True, False], found["censoring-aware", True, False]
    assert aware.cut > 100
    assert aware.score.surface_mean < fooled.score.surface_mean / 3
    assert aware.score.brier - aware.score.brier_best < (fooled.score.brier - fooled.score.brier_best) / 3


def test_clients_with_lengths_of_their_own_are_told_apart() -> None:
    """One writes 40 tokens, one 2,000: the pooled curve cannot know whose request it is."""
    rng = random.Random(1)
    requests = [
        WorkloadRequest(
            arrival_s=float(at),
            input_tokens=10,
            output_tokens=rng.randint(20, 60) if at % 2 else rng.randint(1500, 2500),
            client=at % 2,
        )
        for at in range(2000)
    ]
    found = by_condition(score_lengths(requests))
    apart, pooled = found["censoring-aware", False, True], found["censoring-aware", False, False]
    assert apart.score.brier < pooled.score.brier
    assert [one.client for one in apart.classes] == [0, 1]
    assert all(one.brier < one.brier_pooled for one in apart.classes)
    assert pooled.classes == ()


def test_learning_stops_when_the_held_back_part_begins() -> None:
    """What runs then has not ended: of 100 requests, one a second, each 10 s long, 40 of the first 50 have."""
    requests = [WorkloadRequest(arrival_s=float(at), input_tokens=1, output_tokens=300) for at in range(100)]
    found = score_lengths(requests, LengthSettings(tokens_per_s=30.0))
    assert {(one.learned_ends, one.held_back) for one in found if not one.limited} == {(41, 50)}


def test_a_file_of_lengths_is_taken_row_by_row(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("input_tokens,output_tokens\n5,50\n6,60\n7,70\n")
    rows = workload_in_order(WorkloadSource(trace=file, rate_rps=2.0, limit=2), 0)
    assert [(row.arrival_s, row.output_tokens) for row in rows] == [(0.0, 50), (0.5, 60)]
    with pytest.raises(SourceError, match="rate_rps"):
        workload_in_order(WorkloadSource(trace=file, rate_rps=0.0), 0)


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.5, float("nan")])
def test_a_split_that_leaves_nothing_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="held_back_ratio: must be above 0 and below 1"):
        LengthSettings(held_back_ratio=ratio)


# --- predictions ------------------------------------------------------------------------------------------------------


def predictions(
    workload: str, shape: str, limit: int, *, rate_scale: float = 1.0, known: bool = True
) -> FleetPredictions:
    return predict_and_measure(
        parse_shape(shape),
        WorkloadSource(workload=workload, limit=limit).load(0, rate_scale),
        parse_policies("ballast")[0],
        profiles_known=known,
    )


def test_known_hardware_is_predicted_closely_and_unknown_hardware_learned() -> None:
    known = predictions("chat", "2P@a100-qwen3-32b,1D@h20-qwen3-32b", 150)
    unknown = predictions("chat", "2P@a100-qwen3-32b,1D@h20-qwen3-32b", 150, known=False)
    assert known.step_time.predictions > 10
    assert known.prefill_time.predictions == 150
    assert known.step_time.p50_ratio is not None
    assert known.step_time.p50_ratio < 0.05
    assert known.prefill_time.p50_ratio is not None
    assert known.prefill_time.p50_ratio < 0.05
    assert unknown.step_time.p50_ratio is not None
    assert known.step_time.p50_ratio < unknown.step_time.p50_ratio < 0.5
    assert known.prefixes is None


def test_the_prefix_index_is_held_against_the_engines_own_hits() -> None:
    found = predictions("multi-turn", "2C@h20-qwen3-32b", 150).prefixes
    assert found is not None
    assert found.actual_ratio > 0.3
    assert found.predicted_ratio == pytest.approx(found.actual_ratio, abs=0.05)
    assert found.actual_ratio - found.predicted_ratio == pytest.approx(found.missed_ratio - found.imagined_ratio)


def test_projected_load_is_wrong_by_little_in_a_second_and_by_more_in_a_minute() -> None:
    found = predictions("libra-reasoning", "1P@a100-qwen3-32b,1D@h20-qwen3-32b", 120, rate_scale=0.5).projections
    assert {one.look_ahead_s for one in found} == {1.0, 5.0, 20.0, 60.0}
    near = [one for one in found if one.look_ahead_s == 1.0]
    assert all(one.error_ratio < 0.1 for one in near)
    assert all(one.error_ratio == abs(one.bias_ratio) <= 1.0 for one in found)
    assert sum(one.requests for one in near) > 50


def test_the_same_seed_gives_the_same_predictions() -> None:
    shape = "1P@a100-qwen3-32b,1D@h20-qwen3-32b"
    assert predictions("chat", shape, 60) == predictions("chat", shape, 60)
    assert replace(predictions("chat", shape, 60), profiles_known=False) != predictions("chat", shape, 60, known=False)
