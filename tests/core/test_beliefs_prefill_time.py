"""Prefill time: the profile's chunks, the queue ahead, and one factor per endpoint learned from completions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.prefill_time import PrefillTimes, PrefillTimeSettings
from ballast_core.beliefs.stacked_profiles import StackedProfiles
from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B, HardwareProfile
from ballast_core.state.ledger import PrefillPlan

ONE = np.array([0])


def times(*profiles: HardwareProfile | None) -> PrefillTimes:
    made = PrefillTimes()
    for slot, profile in enumerate(profiles):
        made.add(slot, profile)
    return made


def plain_work_s(profile: HardwareProfile, tokens: int, cached: int) -> float:
    """Chunk by chunk, as an engine with nothing else to do would compute it."""
    seconds, done = 0.0, 0
    while done < tokens:
        chunk = min(tokens - done, profile.max_num_batched_tokens)
        seconds += profile.step_s(chunk, 0.0, chunk * (cached + done + chunk / 2), 0)
        done += chunk
    return seconds


@given(st.integers(1, 60_000), st.integers(0, 60_000))
@settings(deadline=None)
def test_the_work_of_a_prompt_is_the_sum_of_its_chunks(tokens: int, cached: int) -> None:
    """Differential, against a loop over `HardwareProfile.step_s`."""
    work = times(A100_QWEN3_32B).work_s(ONE, float(tokens), float(cached))
    assert work[0] == pytest.approx(plain_work_s(A100_QWEN3_32B, tokens, cached), rel=1e-9)


@given(st.integers(0, 60_000), st.integers(0, 60_000), st.sampled_from([A100_QWEN3_32B, None]))
@settings(deadline=None)
def test_the_work_of_one_prompt_is_the_same_for_one_slot_and_for_many(
    tokens: int, cached: int, hardware: HardwareProfile | None
) -> None:
    """To the last bit: what is learned from a completion is what was predicted for it."""
    stacked = StackedProfiles()
    if hardware is not None:
        stacked.put(0, hardware)
    many = times(hardware).work_s(ONE, float(tokens), float(cached))
    assert stacked.prefill_alone_s(0, tokens, cached) == many[0]
    assert stacked.one_chunk_s(0) == stacked.chunk_s(ONE)[0]


def test_one_duration_by_hand() -> None:
    """A100: 2,000 tokens alone 1 + (16^4 + 334^4)^(1/4) + 8.4e-6 x 2,000 x 1,000 ms, behind 8,192 queued tokens."""
    alone_ms = 1 + (16**4 + 334**4) ** 0.25 + 8.4e-6 * 2000 * 1000
    queue_ms = 1 + (16**4 + (0.167 * 8192) ** 4) ** 0.25
    made = times(A100_QWEN3_32B)
    assert made.duration_s(ONE, 2000.0)[0] * 1e3 == pytest.approx(alone_ms)
    assert made.duration_s(ONE, 2000.0, 8192.0)[0] * 1e3 == pytest.approx(alone_ms + queue_ms)


def test_long_prompts_in_the_queue_take_their_attention_with_them() -> None:
    """A100: one of 8,192 tokens has 8,192^2 / 2 pairs, sixteen of 512 have a sixteenth of these: 8.4e-6 ms each."""
    made = times(A100_QWEN3_32B)
    linear_s = made.wait_s(ONE, 8192.0)[0]
    one, sixteen = PrefillPlan(tokens=8192), PrefillPlan(tokens=512)
    pairs_s = 8.4e-9 * 8192 * 8192 / 2
    assert made.wait_s(ONE, 8192.0, queued_pairs=one.uncached_pairs)[0] == pytest.approx(linear_s + pairs_s)
    assert made.wait_s(ONE, 8192.0, queued_pairs=16 * sixteen.uncached_pairs)[0] == pytest.approx(
        linear_s + pairs_s / 16
    )


def test_pairs_of_a_prompt_that_is_partly_cached() -> None:
    """1,000 tokens after 3,000 cached ones attend to these and to half of themselves."""
    assert PrefillPlan(tokens=4000, cached_tokens=3000).uncached_pairs == 1000 * (3000 + 500)


def test_a_prompt_that_is_all_cached_still_takes_a_step() -> None:
    assert times(A100_QWEN3_32B).duration_s(ONE, 0.0, cached_tokens=4096.0)[0] >= 0.017


def test_time_in_service_shortens_the_wait_but_never_below_0() -> None:
    made = times(A100_QWEN3_32B)
    wait = made.wait_s(ONE, 8192.0)[0]
    assert made.wait_s(ONE, 8192.0, 0.5)[0] == pytest.approx(wait - 0.5)
    assert made.wait_s(ONE, 8192.0, 60.0)[0] == 0


def serve(
    made: PrefillTimes, slowdown: float, *, prompts: int = 200, seed: int = 0, gap_s: float = 0.3, straggle: float = 0.0
) -> None:
    """Poisson arrivals at one endpoint that serves in order, `slowdown` times slower than its profile."""
    rng = np.random.default_rng(seed)
    now_s = free_s = 0.0
    for _ in range(prompts):
        now_s += rng.exponential(gap_s)
        tokens = float(rng.integers(100, 4000))
        service_s = slowdown * float(made.work_s(ONE, tokens)[0]) * rng.lognormal(0, 0.1)
        if rng.random() < straggle:
            service_s += 60.0
        free_s = max(free_s, now_s) + service_s
        made.completed(0, dispatched_s=now_s, uncached_tokens=tokens, now_s=free_s)


@pytest.mark.parametrize("slowdown", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("gap_s", [0.2, 2.0], ids=["always queueing", "mostly idle"])
def test_the_service_rate_is_learned_with_and_without_a_queue(slowdown: float, gap_s: float) -> None:
    made = times(A100_QWEN3_32B)
    serve(made, slowdown, gap_s=gap_s)
    assert made.factor(0) == pytest.approx(slowdown, rel=0.12)
    learned = made.tokens_per_s(ONE)[0]
    assert learned == pytest.approx(times(A100_QWEN3_32B).tokens_per_s(ONE)[0] / made.factor(0))


def test_unknown_hardware_is_learned_from_nothing() -> None:
    """An H20 takes about 5.6 times as long as the guess for a long prompt."""
    made = times(None)
    truth = times(H20_QWEN3_32B)
    now_s = 0.0
    for tokens in np.random.default_rng(1).integers(500, 4000, 150).astype(float):
        done_s = now_s + float(truth.work_s(ONE, tokens)[0])
        made.completed(0, dispatched_s=now_s, uncached_tokens=tokens, now_s=done_s)
        now_s = done_s + 1.0
    assert made.duration_s(ONE, 2000.0)[0] == pytest.approx(truth.duration_s(ONE, 2000.0)[0], rel=0.1)


def test_a_few_that_hang_do_not_ruin_the_rate() -> None:
    """Four in a hundred hang for a minute, about 150 times their service: they count as two full chunks at most."""
    made = times(A100_QWEN3_32B)
    serve(made, 1.0, gap_s=3.0, straggle=0.04)
    assert made.factor(0) < 2.0


def test_prompts_that_end_in_one_step_are_counted_together() -> None:
    """Ten prompts of 800 tokens share one step of 8,000: the factor is that step over ten steps alone."""
    made = times(A100_QWEN3_32B)
    step_s = A100_QWEN3_32B.step_s(8000, 0.0, 10 * 800 * 400.0, 0)
    for batch in range(300):
        for _ in range(10):
            made.completed(0, dispatched_s=batch * 10.0, uncached_tokens=800.0, now_s=batch * 10.0 + step_s)
    together = step_s / (10 * plain_work_s(A100_QWEN3_32B, 800, 0))
    assert made.factor(0) == pytest.approx(together, rel=0.03)


def test_each_endpoint_has_its_own_profile_and_factor() -> None:
    made = times(A100_QWEN3_32B, H20_QWEN3_32B, A100_QWEN3_32B)
    for number in range(200):
        made.completed(2, dispatched_s=number * 10.0, uncached_tokens=2000.0, now_s=number * 10.0 + 1.0)
    uncached: FloatArray = np.array([2000.0, 2000.0, 2000.0, 0.0])
    durations = made.duration_s(np.array([0, 1, 2, 0]), uncached, cached_tokens=2000.0 - uncached)
    assert durations[3] < durations[0] < durations[2] < durations[1]
    assert made.factor(0) == 1.0


def test_the_error_of_predicted_durations_is_kept() -> None:
    made = times(A100_QWEN3_32B)
    made.completed(0, dispatched_s=0.0, uncached_tokens=1000.0, now_s=0.3, predicted_s=0.2)
    assert made.error(0).observations == 1
    assert made.error(0).bias_ratio == pytest.approx(0.5)
    with pytest.raises(LookupError, match="slot 9 has no endpoint"):
        made.error(9)


def test_what_cannot_be_is_not_used() -> None:
    made = times(A100_QWEN3_32B)
    assert not made.completed(7, dispatched_s=0.0, uncached_tokens=10.0, now_s=1.0)
    assert not made.completed(0, dispatched_s=2.0, uncached_tokens=10.0, now_s=1.0)
    assert not made.completed(0, dispatched_s=0.0, uncached_tokens=-1.0, now_s=1.0)
    assert not made.completed(0, dispatched_s=0.0, uncached_tokens=float("nan"), now_s=1.0)
    assert made.factor(0) == 1.0


def test_a_slot_that_is_taken_again_begins_anew() -> None:
    made = times(A100_QWEN3_32B)
    serve(made, 3.0)
    made.remove(0)
    assert made.factor(0) == 1.0
    made.add(0, H20_QWEN3_32B)
    assert made.duration_s(ONE, 1000.0)[0] == pytest.approx(plain_work_s(H20_QWEN3_32B, 1000, 0))


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e5), st.floats(0, 1e6)), max_size=30))
@settings(deadline=None)
def test_factors_stay_bounded_and_durations_finite(seen: list[tuple[float, float, float]]) -> None:
    made = times(A100_QWEN3_32B)
    for dispatched_s, took_s, tokens in seen:
        made.completed(0, dispatched_s=dispatched_s, uncached_tokens=tokens, now_s=dispatched_s + took_s)
    assert 1 / 50 <= made.factor(0) <= 50
    durations = made.duration_s(np.zeros(3, np.int64), np.array([0.0, 10.0, 1e5]), 100.0)
    assert np.isfinite(durations).all()
    assert (np.diff(durations) >= 0).all()


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="memory_work_s: must be above 0"):
        PrefillTimeSettings(memory_work_s=0)
    with pytest.raises(ValueError, match="straggler_ratio: must be finite and above 1"):
        PrefillTimeSettings(straggler_ratio=float("inf"))
