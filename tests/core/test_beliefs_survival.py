"""Survival curves learned from ends: worked examples, the paper's errata, and plain transcriptions.

Invariants, for every estimator and any history:
1. S(0) = 1, S never increases, S is never negative.
2. What the paper's formula gives, this gives (differential test against a transcription).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival import (
    CensoringAwareSurvival,
    EmaSurvival,
    SurvivalEstimator,
    heavy_tailed_prior,
)
from ballast_core.beliefs.survival_tables import Buckets, SurvivalTables

GRID = Buckets(step_tokens=50, count=10)
PRIOR = heavy_tailed_prior(GRID, 512.0, 2.0)
Make = Callable[[], SurvivalEstimator]
ESTIMATORS: dict[str, Make] = {
    "ema": lambda: EmaSurvival(GRID, alpha=0.9),
    "censoring-aware": lambda: CensoringAwareSurvival(GRID, alpha=0.9),
}

History = list[tuple[int, bool]]
HISTORIES = st.lists(st.tuples(st.integers(0, 900), st.booleans()), max_size=60)


def fed(estimator: SurvivalEstimator, history: Sequence[tuple[float, bool]]) -> SurvivalEstimator:
    """The estimator after these (output tokens, censored) ends, one a second."""
    for at, (tokens, censored) in enumerate(history):
        estimator.ended(tokens, censored=censored, now_s=float(at))
    return estimator


def at(curve: FloatArray, tokens: int) -> float:
    """The curve's value at a boundary."""
    assert tokens % GRID.step_tokens == 0
    return float(curve[tokens // GRID.step_tokens])


# --- SIBYL, section 4.2, and its errata -----------------------------------------------------------------------------


def test_when_every_output_has_100_tokens_survival_to_200_tends_to_0() -> None:
    """The paper's update touches only l <= L, where it can only climb to 1; it must fall beyond L."""
    curve = fed(EmaSurvival(GRID, alpha=0.9), [(100, False)] * 400).survival(PRIOR)
    assert at(curve, 200) < 1e-12
    assert at(curve, 50) == pytest.approx(1.0)


@pytest.mark.parametrize("ends", [100, 1000, 10_000])
def test_the_censoring_aware_curve_beyond_the_only_length_falls_as_one_in_ends(ends: int) -> None:
    """All L = 100: what is left of S(200) is the two requests of the prior."""
    estimator = CensoringAwareSurvival(GRID, alpha=1.0, half_life_s=np.inf, prior_requests=2.0)
    curve = fed(estimator, [(100, False)] * ends).survival(PRIOR)
    assert 0 < at(curve, 200) < 2 / (ends + 2)
    assert at(curve, 50) > ends / (ends + 2)


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
def test_survival_is_strictly_beyond_so_an_end_at_a_boundary_does_not_exceed_it(make: Make) -> None:
    """S(x) = P(L > x) as in Eq. 3: with all L = 100, S(100) goes to 0; Eq. 4's >= would say 1."""
    assert at(fed(make(), [(100, False)] * 400).survival(PRIOR), 100) < 0.2
    assert at(fed(make(), [(101, False)] * 400).survival(PRIOR), 100) > 0.9


def test_one_ema_update_by_hand() -> None:
    """alpha weighs the old value: 0.9 S + 0.1 where exceeded, 0.9 S elsewhere."""
    curve = fed(EmaSurvival(GRID, alpha=0.9), [(120, False)]).survival(PRIOR)
    assert at(curve, 0) == 1.0
    assert at(curve, 100) == pytest.approx(0.9 * at(PRIOR, 100) + 0.1)
    assert at(curve, 150) == pytest.approx(0.9 * at(PRIOR, 150))


def transcribed_eq_4(history: History, alpha: float, start: FloatArray) -> list[float]:
    """Eq. 4 for every boundary, in plain Python, with > for >=."""
    curve = [float(value) for value in start]
    for final_length, _ in history:
        for index in range(len(curve)):
            exceeded = 1.0 if final_length > index * GRID.step_tokens else 0.0
            curve[index] = alpha * curve[index] + (1 - alpha) * exceeded
    curve[0] = 1.0
    return curve


@given(HISTORIES, st.floats(0.5, 0.999))
@settings(deadline=None)
def test_the_ema_is_the_papers_formula(history: History, alpha: float) -> None:
    """Invariant 2."""
    curve = fed(EmaSurvival(GRID, alpha), history).survival(PRIOR)
    np.testing.assert_allclose(curve, transcribed_eq_4(history, alpha, PRIOR), rtol=1e-9, atol=1e-12)


# --- Kaplan-Meier ---------------------------------------------------------------------------------------------------


def test_kaplan_meier_by_hand() -> None:
    """Four requests: ends at 40 and 180, cut at 100 and 250. S(50) = 3/4; one of two at risk ends in (150, 200]."""
    history = [(40, False), (100, True), (180, False), (250, True)]
    curve = fed(CensoringAwareSurvival(GRID, alpha=1.0, half_life_s=np.inf, prior_requests=0.0), history).survival(
        PRIOR
    )
    assert at(curve, 50) == pytest.approx(3 / 4)
    assert at(curve, 100) == pytest.approx(3 / 4)
    assert at(curve, 150) == pytest.approx(3 / 4)
    assert at(curve, 200) == pytest.approx(3 / 4 * 1 / 2)
    assert at(curve, 250) == pytest.approx(3 / 8)


def test_a_cut_at_a_boundary_is_at_risk_up_to_it_and_not_beyond() -> None:
    """Cut at 100 exactly: counts fully in (50, 100], not at all in (100, 150]."""
    estimator = fed(CensoringAwareSurvival(GRID, alpha=1.0, half_life_s=np.inf), [(100, True)])
    np.testing.assert_allclose(estimator.effective_samples()[:4], [1, 1, 0, 0])


def transcribed_kaplan_meier(history: History, prior: float, parent: FloatArray) -> list[float]:
    """Product limit on buckets, request by request, in plain Python; a cut request counts for its share."""
    step, count = GRID.step_tokens, GRID.count
    curve = [1.0]
    for bucket in range(count):
        left, right = bucket * step, (bucket + 1) * step
        deaths = at_risk = 0.0
        for length, censored in history:
            ends_here = not censored and (left < length <= right or (length == 0 and bucket == 0))
            deaths += ends_here
            at_risk += 1.0 if ends_here else min(max((length - left) / step, 0.0), 1.0)
        parent_hazard = 1.0 - float(parent[bucket + 1] / parent[bucket])
        hazard = (deaths + prior * parent_hazard) / (at_risk + prior)
        curve.append(curve[-1] * (1.0 - hazard))
    return curve


@given(HISTORIES, st.floats(0.1, 20.0))
@settings(deadline=None)
def test_the_censoring_aware_estimator_is_the_product_limit(history: History, prior: float) -> None:
    """Invariant 2, without forgetting."""
    estimator = CensoringAwareSurvival(GRID, alpha=1.0, half_life_s=np.inf, prior_requests=prior)
    curve = fed(estimator, history).survival(PRIOR)
    np.testing.assert_allclose(curve, transcribed_kaplan_meier(history, prior, PRIOR), rtol=1e-9, atol=1e-12)


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 400), st.booleans()), min_size=1, max_size=20))
@settings(deadline=None)
def test_life_told_in_pieces_counts_as_much_as_life_told_at_the_end(lives: list[tuple[int, int, bool]]) -> None:
    """`aged` first and `ended` with `counted_tokens` later: the same as `ended` alone, if nothing is forgotten."""
    whole = CensoringAwareSurvival(GRID, alpha=1.0, half_life_s=np.inf)
    pieces = CensoringAwareSurvival(GRID, alpha=1.0, half_life_s=np.inf)
    lives = [(length, min(told, length), censored) for length, told, censored in lives]
    pieces.aged(np.zeros(len(lives)), np.array([float(told) for _, told, _ in lives]), 0.0)
    for length, told, censored in lives:
        whole.ended(length, censored=censored, now_s=1.0)
        pieces.ended(length, censored=censored, now_s=1.0, counted_tokens=float(told))
    np.testing.assert_allclose(pieces.survival(PRIOR), whole.survival(PRIOR), atol=1e-9)
    np.testing.assert_allclose(pieces.effective_samples(), whole.effective_samples(), atol=1e-9)


def test_without_data_the_parent_stands_in_and_with_data_it_fades() -> None:
    estimator = CensoringAwareSurvival(GRID, alpha=1.0, half_life_s=np.inf)
    np.testing.assert_allclose(estimator.survival(PRIOR), PRIOR)
    curve = fed(estimator, [(400, False)] * 1000).survival(PRIOR)
    assert at(curve, 350) > 0.99
    assert at(curve, 400) < 0.01


def test_the_past_is_forgotten_by_ends_and_by_time() -> None:
    """Traffic turns from long to short; the curve follows."""
    by_ends = fed(CensoringAwareSurvival(GRID, alpha=0.98), [(400, False)] * 200 + [(60, False)] * 400)
    assert at(by_ends.survival(PRIOR), 200) < 0.05
    by_time = CensoringAwareSurvival(GRID, alpha=1.0, half_life_s=60.0)
    for _ in range(100):
        by_time.ended(400, censored=False, now_s=0.0)
    before = by_time.effective_samples()[0]
    by_time.ended(60, censored=False, now_s=600.0)
    assert by_time.effective_samples()[0] == pytest.approx(before / 1024 + 1)


def test_time_that_goes_backwards_changes_nothing_in_what_is_remembered() -> None:
    estimator = CensoringAwareSurvival(GRID, alpha=1.0, half_life_s=10.0)
    estimator.ended(100, censored=False, now_s=1000.0)
    estimator.ended(100, censored=False, now_s=0.0)
    estimator.ended(100, censored=False, now_s=1000.0)
    assert estimator.effective_samples()[0] == pytest.approx(3.0)


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
@given(history=HISTORIES)
@settings(max_examples=60, deadline=None)
def test_a_curve_starts_at_1_and_never_rises_or_turns_negative(make: Make, history: History) -> None:
    """Invariant 1."""
    curve = fed(make(), history).survival(PRIOR)
    assert curve[0] == 1.0
    assert (np.diff(curve) <= 0).all()
    assert (curve >= 0).all()


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("tokens", [-1.0, float("nan"), float("inf")])
def test_an_impossible_length_is_refused(make: Make, tokens: float) -> None:
    with pytest.raises(ValueError, match="output_tokens: must be finite and 0 or more"):
        make().ended(tokens, censored=False, now_s=0.0)


@pytest.mark.parametrize("alpha", [0.0, 1.5, float("nan")])
def test_an_impossible_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        EmaSurvival(GRID, alpha)
    with pytest.raises(ValueError, match="alpha"):
        CensoringAwareSurvival(GRID, alpha)


# --- statistics, seeded ---------------------------------------------------------------------------------------------


def geometric_lengths(rng: np.random.Generator, mean: float, size: int) -> FloatArray:
    return rng.geometric(1.0 / mean, size).astype(np.float64)


def test_censoring_does_not_bias_the_censoring_aware_estimator_but_does_the_ema() -> None:
    """Lengths geometric with mean 800; half of the requests carry max_tokens 300. True S(600) = 0.472.

    The EMA sees the 34 % of all that are cut at 300 as ends: its S(600) is 0.5 * 0.472. Averaged over 20 seeds, so
    that what remains is bias: standard errors are about 0.006 (EMA) and 0.005.
    """
    grid = Buckets(step_tokens=32, count=128)
    prior = heavy_tailed_prior(grid, 512.0, 2.0)
    truth = (1 - 1 / 800) ** 608
    averages = {"ema": 0.0, "aware": 0.0}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        natural = geometric_lengths(rng, 800.0, 3000)
        caps = np.where(rng.random(3000) < 0.5, 300.0, np.inf)
        ema, aware = EmaSurvival(grid, 0.995), CensoringAwareSurvival(grid)
        for number, (length, cap) in enumerate(zip(natural, caps, strict=True)):
            for estimator in (ema, aware):
                estimator.ended(min(length, cap), censored=bool(length > cap), now_s=number * 0.1)
        averages["ema"] += ema.survival(prior)[19] / 20
        averages["aware"] += aware.survival(prior)[19] / 20
    assert averages["aware"] == pytest.approx(truth, abs=0.025)
    assert averages["ema"] == pytest.approx(truth / 2, abs=0.04)


def test_progress_of_requests_in_flight_removes_the_bias_of_the_first_minutes() -> None:
    """All arrive within 400 s, one token a step of 25 ms, mean 800 tokens = 20 s; the look is taken after 15 s.

    Ends alone hold only requests shorter than 600 tokens. With progress told once a second the curve is right.
    """
    grid = Buckets(step_tokens=32, count=128)
    prior = heavy_tailed_prior(grid, 512.0, 2.0)
    rng = np.random.default_rng(3)
    rate, look_s = 40.0, 15.0
    starts = np.sort(rng.uniform(0.0, look_s, 4000))
    lengths = geometric_lengths(rng, 800.0, 4000)
    blind = CensoringAwareSurvival(grid, alpha=1.0)
    sighted = CensoringAwareSurvival(grid, alpha=1.0)
    told = np.zeros(4000)
    for second in range(1, int(look_s) + 1):
        ages = np.clip((second - starts) * rate, 0.0, lengths)
        over = (ages >= lengths) & (told < lengths)
        for index in np.flatnonzero(over):
            blind.ended(lengths[index], censored=False, now_s=float(second))
            sighted.ended(lengths[index], censored=False, now_s=float(second), counted_tokens=told[index])
            told[index] = lengths[index]
        running = (ages > told) & (ages < lengths)
        sighted.aged(told[running], ages[running], float(second))
        told[running] = ages[running]
    boundary = 10  # 320 tokens
    truth = (1 - 1 / 800) ** 320
    assert sighted.survival(prior)[boundary] == pytest.approx(truth, abs=0.04)
    assert blind.survival(prior)[boundary] < truth - 0.15


def test_remaining_length_is_calibrated_on_data_not_seen() -> None:
    """Log-normal lengths, half of them capped: predicted mean remaining within 6 % of the mean of a second sample."""
    grid = Buckets()
    rng = np.random.default_rng(11)
    estimator = CensoringAwareSurvival(grid, alpha=1.0, half_life_s=np.inf)
    train = np.ceil(rng.lognormal(6.0, 0.9, 8000))
    caps = np.where(rng.random(8000) < 0.5, 500.0, np.inf)
    for length, cap in zip(train, caps, strict=True):
        estimator.ended(min(length, cap), censored=bool(length > cap), now_s=0.0)
    tables = SurvivalTables(grid, estimator.survival(heavy_tailed_prior(grid, 512.0, 2.0)))
    test = np.ceil(rng.lognormal(6.0, 0.9, 40_000))
    for age in (0.0, 100.0, 500.0, 1000.0):
        for cap in (1200.0, 4096.0):
            actual = (np.minimum(test[test > age], cap) - age).mean()
            predicted = float(tables.expected_remaining(np.array([age]), 0, cap)[0])
            assert predicted == pytest.approx(actual, rel=0.06), (age, cap)
