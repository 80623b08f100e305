"""Prompt tokens a pass, from gaps between tokens and from prompts that ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.beliefs.recent_batches import RecentBatches
from ballast_core.profiles import A100_QWEN3_32B as LAW


def made_of(prompt: int, decodes: int, context: int, slower: float) -> RecentBatches:
    """What is seen of an engine with so many prompt tokens in each pass, over 20 prompts of 2,048."""
    prompts, length = 20, 2048
    batches = RecentBatches()
    pass_s = slower * LAW.step_s(prompt + decodes, context, prompt * length / 2, decodes)
    passes = length / prompt
    for _ in range(prompts):
        batches.prefilled(0, passes * pass_s, length, 0)
        batches.passed(0, passes * decodes, passes * decodes * pass_s, decodes, context)
    return batches


@given(st.integers(32, 2000), st.integers(2, 200), st.integers(0, 150_000), st.floats(0.5, 3.0))
def test_the_composition_is_found(prompt: int, decodes: int, context: int, slower: float) -> None:
    """Whatever the engine batches by, and however its speed differs from the profile."""
    found = made_of(prompt, decodes, context, slower).composition(0, LAW)
    assert found is not None
    assert found.prompt_tokens == pytest.approx(prompt, abs=1)
    assert found.factor == pytest.approx(slower, rel=0.05)


def test_passes_short_of_prompts_do_not_say_what_fits() -> None:
    """Prompts that are all but cached: a prompt of 100,000 tokens is not predicted to take as many passes."""
    batches = RecentBatches()
    for _ in range(100):
        batches.prefilled(0, 0.02, 1, 4000)
        batches.passed(0, 8, 0.16, 8, 10_000)
    found = batches.composition(0, LAW)
    assert found is not None
    assert found.prompt_tokens == LAW.max_num_batched_tokens // 256


def test_the_recent_past_counts() -> None:
    """After passes of 2,000 tokens come ones of 100: soon nothing is left of the former."""
    batches = made_of(2000, 8, 10_000, 1.0)
    pass_s = LAW.step_s(108, 10_000, 100 * 1024, 8)
    for _ in range(60):
        batches.prefilled(0, 20 * pass_s, 2000, 0)
        batches.passed(0, 160, 160 * pass_s, 8, 10_000)
    found = batches.composition(0, LAW)
    assert found is not None
    assert found.prompt_tokens == pytest.approx(100, rel=0.05)


def test_nothing_is_said_of_what_was_not_seen() -> None:
    """No gap, no prompt, another slot, a slot that is free again; times that cannot be are not counted."""
    batches = RecentBatches()
    batches.prefilled(0, 1.0, 1000, 0)
    assert batches.composition(0, LAW) is None
    batches.passed(1, 100, 2.0, 4, 1000)
    assert batches.composition(1, LAW) is None
    batches.prefilled(1, -1.0, 100, 0)
    batches.passed(0, 100, 0.0, 4, 1000)
    assert batches.composition(0, LAW) is None
    batches.prefilled(1, 1.0, 1000, 0)
    assert batches.composition(1, LAW) is not None
    batches.forget(1)
    assert batches.composition(1, LAW) is None
