"""Step time learned online: right from the profile, right after recalibration, unmoved by what is no decode step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.stacked_profiles import StackedProfiles
from ballast_core.beliefs.step_time import StepTimeBook, StepTimeModel, StepTimeSettings
from ballast_core.profiles import (
    A100_QWEN3_32B,
    H20_QWEN3_32B,
    H200_LLAMA3_8B,
    SHIPPED_PROFILES,
    UNINFORMED_PROFILE,
    HardwareProfile,
)

LOADS = [(4.0, 8_000.0), (40.0, 60_000.0), (120.0, 180_000.0)]


def array(*values: float) -> FloatArray:
    return np.array(values, np.float64)


def truth_s(profile: HardwareProfile, decodes: float, context: float) -> float:
    return profile.step_s(round(decodes), context, 0.0, round(decodes))


def teach(
    model: StepTimeModel,
    truth: HardwareProfile,
    *,
    seed: int = 0,
    observations: int = 1500,
    noise: float = 0.1,
    stragglers: float = 0.0,
    loads: tuple[int, int] = (2, 120),
) -> None:
    """Noisy gaps under a wandering load; some are several times too long: interference that nobody told us of."""
    rng = np.random.default_rng(seed)
    for step in range(observations):
        decodes = float(rng.integers(*loads))
        context = decodes * rng.uniform(500, 2500)
        gap_s = truth_s(truth, decodes, context) * rng.lognormal(0.0, noise)
        if rng.random() < stragglers:
            gap_s *= rng.uniform(2, 6)
        assert model.observe(gap_s, decodes, context, now_s=step * 0.05)


@pytest.mark.parametrize("profile", SHIPPED_PROFILES.values(), ids=SHIPPED_PROFILES)
def test_before_any_observation_the_profile_speaks(profile: HardwareProfile) -> None:
    decodes, context = np.array(LOADS).T
    expected = [truth_s(profile, *load) for load in LOADS]
    np.testing.assert_allclose(StepTimeModel(profile).predict_s(decodes, context), expected, rtol=1e-12)


@given(
    tokens=st.lists(st.floats(0, 20_000), min_size=1, max_size=4),
    context=st.floats(0, 1e6),
    names=st.lists(st.sampled_from(sorted(SHIPPED_PROFILES)), min_size=1, max_size=4),
)
def test_the_law_is_the_same_for_one_profile_and_for_many(
    tokens: list[float], context: float, names: list[str]
) -> None:
    """Squares and square roots of arrays against the powers of the law's text; a slot never set is a guess."""
    stacked = StackedProfiles()
    profiles = [SHIPPED_PROFILES[name] for name in names]
    for slot, profile in enumerate(profiles):
        stacked.put(slot, profile)
    stacked.grow(len(names) + 1)
    slots, loads = np.arange(len(names) + 1), np.array(tokens)
    law = [[each.step_s(load, context, 0.0, load) for load in tokens] for each in [*profiles, UNINFORMED_PROFILE]]  # type: ignore[arg-type]
    np.testing.assert_allclose(stacked.decode_step_s(slots[:, None], loads, context), law, rtol=1e-12)
    law = [[each.step_s(load, 0.0, 0.0, 0) for load in tokens] for each in [*profiles, UNINFORMED_PROFILE]]  # type: ignore[arg-type]
    np.testing.assert_allclose(stacked.prefill_step_s(slots[:, None], loads), law, rtol=1e-12)
    full = [each.step_s(each.max_num_batched_tokens, 0.0, 0.0, 0) for each in [*profiles, UNINFORMED_PROFILE]]
    np.testing.assert_allclose(stacked.chunk_s(slots), full, rtol=1e-12)


def test_one_prediction_by_hand() -> None:
    """H20, 40 decodes, 60,000 tokens: 1 + (16^4 + 22.48^4)^(1/4) + 3.93 + 2 ms."""
    expected_ms = 1 + (16**4 + (0.562 * 40) ** 4) ** 0.25 + 6.55e-5 * 60_000 + 0.05 * 40
    predicted = StepTimeModel(H20_QWEN3_32B).predict_s(array(40), array(60_000))
    assert predicted[0] * 1e3 == pytest.approx(expected_ms)


@pytest.mark.parametrize(
    "truth",
    [
        replace(H20_QWEN3_32B, overhead_ms=4.0, a_ms=20.0),
        replace(H20_QWEN3_32B, k_ms_per_kv_token=1.6e-4),
        replace(
            H20_QWEN3_32B, overhead_ms=0.5, a_ms=8.0, d_ms_per_token=0.3, k_ms_per_kv_token=3e-5, b_ms_per_seq=0.02
        ),
    ],
    ids=["slower weights", "slower KV reads", "twice as fast"],
)
def test_a_wrong_profile_is_corrected_over_the_loads_seen(truth: HardwareProfile) -> None:
    model = StepTimeModel(H20_QWEN3_32B)
    before = [abs(model.predict_s(array(n), array(c))[0] / truth_s(truth, n, c) - 1) for n, c in LOADS]
    teach(model, truth)
    after = [abs(model.predict_s(array(n), array(c))[0] / truth_s(truth, n, c) - 1) for n, c in LOADS]
    assert max(before) > 0.15
    assert max(after) < 0.06
    assert model.error.median_ratio < 0.12


def test_unknown_hardware_is_learned_from_nothing() -> None:
    model = StepTimeModel(None)
    teach(model, A100_QWEN3_32B)
    for load in LOADS:
        assert model.predict_s(array(load[0]), array(load[1]))[0] == pytest.approx(
            truth_s(A100_QWEN3_32B, *load), rel=0.1
        )


@pytest.mark.parametrize("seed", range(6))
def test_a_third_of_stragglers_bends_the_model_by_a_few_percent_only(seed: int) -> None:
    """Every third gap 2 to 6 times too long: their mean is 100 % above the truth, the model stays within 8 %."""
    model = StepTimeModel(H20_QWEN3_32B)
    teach(model, H20_QWEN3_32B, stragglers=0.33, seed=seed)
    for load in LOADS:
        assert model.predict_s(array(load[0]), array(load[1]))[0] == pytest.approx(
            truth_s(H20_QWEN3_32B, *load), rel=0.08
        )
    assert model.error.mean_ratio > 0.2
    assert model.error.median_ratio < 0.2


def test_a_lasting_change_is_not_taken_for_stragglers() -> None:
    """The endpoint becomes three times slower for good (power cap, noisy neighbour): the model follows."""
    model = StepTimeModel(H20_QWEN3_32B)
    teach(model, H20_QWEN3_32B, observations=800)
    slow = replace(
        H20_QWEN3_32B, overhead_ms=3.0, a_ms=48.0, d_ms_per_token=1.686, k_ms_per_kv_token=1.965e-4, b_ms_per_seq=0.15
    )
    teach(model, slow, observations=1500, seed=1)
    for load in LOADS:
        assert model.predict_s(array(load[0]), array(load[1]))[0] == pytest.approx(truth_s(slow, *load), rel=0.1)


@pytest.mark.parametrize("slowdown", [0.2, 7.0])
def test_an_endpoint_several_times_off_its_profile_is_learned_as_well_as_any(slowdown: float) -> None:
    model = StepTimeModel(H20_QWEN3_32B)
    rng = np.random.default_rng(4)
    for step in range(1500):
        decodes = float(rng.integers(2, 120))
        context = decodes * rng.uniform(500, 2500)
        gap_s = slowdown * truth_s(H20_QWEN3_32B, decodes, context) * rng.lognormal(0, 0.1)
        model.observe(gap_s, decodes, context, now_s=step * 0.05)
    for load in LOADS:
        expected = slowdown * truth_s(H20_QWEN3_32B, *load)
        assert model.predict_s(array(load[0]), array(load[1]))[0] == pytest.approx(expected, rel=0.05)


def test_a_lasting_change_is_followed_also_where_steps_hardly_vary() -> None:
    """Gaps agree within 1 %, first on the profile, then on three times it: far off by their spread, no stragglers."""
    model = StepTimeModel(H20_QWEN3_32B)
    rng = np.random.default_rng(2)
    right_s = truth_s(H20_QWEN3_32B, 30, 40_000)
    for step in range(600):
        gap_s = right_s * (1 if step < 200 else 3) * rng.lognormal(0, 0.01)
        model.observe(gap_s, 30, 40_000, now_s=step * 0.1)
    assert model.predict_s(array(30), array(40_000))[0] == pytest.approx(3 * right_s, rel=0.05)


def test_what_one_load_cannot_tell_stays_at_the_profile() -> None:
    """Seen at one load only, where all is right: another load is still predicted by the profile."""
    model = StepTimeModel(H20_QWEN3_32B)
    rng = np.random.default_rng(5)
    for step in range(1000):
        model.observe(truth_s(H20_QWEN3_32B, 30, 40_000) * rng.lognormal(0, 0.1), 30, 40_000, now_s=step * 0.1)
    assert model.predict_s(array(100), array(180_000))[0] == pytest.approx(
        truth_s(H20_QWEN3_32B, 100, 180_000), rel=0.05
    )


def test_gaps_known_to_hold_a_prefill_and_impossible_ones_are_not_used() -> None:
    model = StepTimeModel(H20_QWEN3_32B)
    assert not model.observe(0.5, 10, 1000, now_s=0.0, prefill_tokens=512)
    for gap_s, decodes, context in [(0, 1, 1), (-1, 1, 1), (np.nan, 1, 1), (np.inf, 1, 1), (0.02, 0, 1)]:
        assert not model.observe(gap_s, decodes, context, now_s=0.0)
    assert not model.observe(0.02, 1, -1, now_s=0.0)
    assert model.error.observations == 0
    assert model.profile == H20_QWEN3_32B


def test_the_error_tells_size_and_direction() -> None:
    """The first gap is 30 % longer than predicted."""
    model = StepTimeModel(H20_QWEN3_32B)
    model.observe(1.3 * truth_s(H20_QWEN3_32B, 10, 10_000), 10, 10_000, now_s=0.0)
    assert model.error.observations == 1
    assert model.error.bias_ratio == pytest.approx(0.3)
    assert model.error.mean_ratio == pytest.approx(0.3)


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 1e300), st.integers(1, 1024), st.floats(0, 1e7), st.floats(0, 1e5)), max_size=30
    ),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_seen_factors_stay_bounded_and_more_load_never_takes_less_time(
    seen: list[tuple[float, int, float, float]], known: bool
) -> None:
    model = StepTimeModel(H200_LLAMA3_8B if known else None)
    for gap_s, decodes, context, now_s in seen:
        model.observe(gap_s, decodes, context, now_s=now_s)
    limit = 8.0 if known else 100.0
    assert all(1 / limit - 1e-9 <= factor <= limit + 1e-9 for factor in model.factors[1:])
    assert 0 <= model.factors[0] <= limit + 1e-9
    counts = np.arange(1.0, 200.0)
    by_decodes = model.predict_s(counts, np.full(199, 1e5))
    by_context = model.predict_s(np.full(199, 32.0), counts * 1000)
    assert (np.diff(by_decodes) >= 0).all()
    assert (np.diff(by_context) >= 0).all()
    assert np.isfinite(by_decodes).all()
    assert (by_decodes > 0).all()


def test_a_book_predicts_every_endpoint_with_its_own_model() -> None:
    book = StepTimeBook()
    book.add(0, H20_QWEN3_32B)
    book.add(3, H200_LLAMA3_8B)
    book.add(40)
    for step in range(50):
        assert book.observe(3, 0.05, 20, 20_000, now_s=float(step))
    slots = np.array([40, 0, 3, 7, 99])
    predicted = book.predict_s(slots, np.full(5, 20.0), np.full(5, 20_000.0))
    alone = [
        truth_s(UNINFORMED_PROFILE, 20, 20_000),
        truth_s(H20_QWEN3_32B, 20, 20_000),
        book.model(3).predict_s(array(20), array(20_000))[0],
        truth_s(UNINFORMED_PROFILE, 20, 20_000),
        truth_s(UNINFORMED_PROFILE, 20, 20_000),
    ]
    np.testing.assert_allclose(predicted, alone, rtol=1e-12)
    assert book.model(3).profile.a_ms > H200_LLAMA3_8B.a_ms


def test_a_slot_that_is_taken_again_begins_with_its_new_profile() -> None:
    book = StepTimeBook()
    book.add(0, H20_QWEN3_32B)
    for step in range(50):
        book.observe(0, 0.5, 20, 20_000, now_s=float(step))
    book.remove(0)
    assert not book.observe(0, 0.5, 20, 20_000, now_s=60.0)
    book.add(0, A100_QWEN3_32B)
    predicted = book.predict_s(np.array([0]), array(20), array(20_000))
    assert predicted[0] == pytest.approx(truth_s(A100_QWEN3_32B, 20, 20_000))
    with pytest.raises(LookupError, match="slot 5 has no endpoint"):
        book.model(5)


def test_a_profile_without_a_floor_keeps_a_step_that_takes_time() -> None:
    """All of the constant is overhead there, and such steps grow faster than the law: a line through them begins below
    0."""
    model = StepTimeModel(replace(H20_QWEN3_32B, overhead_ms=5.0, a_ms=0.0, d_ms_per_token=0.05))
    for step in range(100):
        decodes = 1 + step % 64
        assert model.observe((1 + 0.01 * decodes**2) / 1e3, decodes, 1_000 * decodes, now_s=2.0 * step)
        assert model.profile.overhead_ms >= 5.0 / model.settings.max_factor


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="prior_observations: must be above 0"):
        StepTimeSettings(prior_observations=0)
    with pytest.raises(ValueError, match="max_factor: must be finite and above 1"):
        StepTimeSettings(max_factor=1.0)
