"""Algorithm 2's budget: what the table says, what it learns, and that a larger SLO never allows fewer tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.policies.partition.batch_budget import StepTimeTable
from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B, HardwareProfile

profiles = st.sampled_from([A100_QWEN3_32B, H20_QWEN3_32B])
steps = st.tuples(st.integers(0, 8192), st.floats(0, 20_000), st.integers(0, 256), st.floats(1e-4, 2.0))
contexts, decodes, slos = st.floats(0, 20_000), st.integers(0, 256), st.floats(1e-3, 1.0)


@st.composite
def tables(draw: st.DrawFn) -> StepTimeTable:
    """A table that has seen anything at all."""
    table = StepTimeTable(draw(profiles), granule_tokens=draw(st.sampled_from([1, 16, 100])))
    for prefill, context, count, measured_s in draw(st.lists(steps, max_size=30)):
        table.observe(prefill, context, count, measured_s)
    return table


@given(profiles, st.integers(0, 8192), contexts, decodes)
def test_before_any_measurement_it_is_the_law(
    profile: HardwareProfile, prefill: int, context: float, count: int
) -> None:
    """For a prompt from its beginning."""
    expected = profile.step_s(prefill + count, context * count, prefill * prefill / 2, count)
    assert StepTimeTable(profile).predict_s(prefill, context, count) == pytest.approx(expected)


@given(tables(), contexts, decodes, st.tuples(slos, slos), st.integers(0, 10_000))
def test_a_larger_slo_never_allows_fewer_tokens(
    table: StepTimeTable, context: float, count: int, both: tuple[float, float], cap: int
) -> None:
    """Whatever was measured."""
    low, high = sorted(both)
    allowed = [table.max_prefill_tokens(context, count, slo, cap) for slo in (low, high)]
    assert 0 <= allowed[0] <= allowed[1] <= cap


@given(tables(), contexts, st.integers(0, 256), slos, st.integers(1, 10_000))
def test_the_budget_is_the_largest_that_keeps_the_slo(
    table: StepTimeTable, context: float, count: int, slo_s: float, cap: int
) -> None:
    """One granule more would not, unless it is the cap; an engine without decodes gets on in any case."""
    granule = table.granule_tokens
    allowed = table.max_prefill_tokens(context, count, slo_s, cap)
    assert allowed == cap or allowed % granule == 0
    if table.predict_s(min(granule, cap), context, count) > slo_s:
        assert allowed == (0 if count else min(granule, cap))
    else:
        assert table.predict_s(allowed, context, count) <= slo_s
        if allowed < cap:
            assert table.predict_s(min(allowed + granule, cap), context, count) > slo_s


@given(tables(), st.integers(0, 8000), st.integers(0, 8000), contexts, decodes)
def test_more_prompt_tokens_never_take_less_time(
    table: StepTimeTable, one: int, other: int, context: float, count: int
) -> None:
    """Whatever was measured in which order."""
    low, high = sorted((one, other))
    assert table.predict_s(low, context, count) <= table.predict_s(high, context, count)


@given(profiles, st.integers(0, 8192), contexts, st.integers(1, 256), st.floats(0.25, 4.0))
def test_a_measurement_moves_its_cell_towards_it(
    profile: HardwareProfile, prefill: int, context: float, count: int, ratio: float
) -> None:
    """And again and again, until it is believed; a longer one never lengthens budgets."""
    table = StepTimeTable(profile)
    before = table.predict_s(prefill, context, count)
    budget = table.max_prefill_tokens(context, count, before)
    table.observe(prefill, context, count, ratio * before)
    after = table.predict_s(prefill, context, count)
    if ratio >= 1:
        assert before <= after <= ratio * before * (1 + 1e-9)
        assert table.max_prefill_tokens(context, count, before) <= budget
    else:
        assert after <= before
        assert table._scale < 1 or ratio == 1
    for _ in range(100):
        table.observe(prefill, context, count, ratio * before)
    if ratio >= 1:
        assert table.predict_s(prefill, context, count) == pytest.approx(ratio * before, rel=1e-3)


def test_the_worked_example() -> None:
    """An A100 pair with 32 decodes of 1,000 tokens and 100 ms: what is left after them, by the law."""
    table = StepTimeTable(A100_QWEN3_32B)
    allowed = table.max_prefill_tokens(1000, 32, 0.1)
    assert allowed == 528
    step_s = A100_QWEN3_32B.step_s
    assert step_s(528 + 32, 32_000, 528 * 264, 32) <= 0.1 < step_s(544 + 32, 32_000, 544 * 272, 32)
    later = table.max_prefill_tokens(1000, 32, 0.1, prefill_context_tokens=7000)
    assert later == 384
    assert step_s(later + 32, 32_000, later * (7000 + later / 2), 32) <= 0.1
    assert step_s(later + 48, 32_000, (later + 16) * (7000 + (later + 16) / 2), 32) > 0.1
    assert table.max_prefill_tokens(1000, 32, 0.01) == 0
    assert table.max_prefill_tokens(0, 0, 0.01) == 16


def test_numbers_that_cannot_be_are_refused() -> None:
    """The message names the field; times that are none are left out."""
    with pytest.raises(ValueError, match="granule_tokens: must be 1 or more, not 0"):
        StepTimeTable(A100_QWEN3_32B, granule_tokens=0)
    with pytest.raises(ValueError, match=r"cell_weight: must be 0 to 0\.5, not 2"):
        StepTimeTable(A100_QWEN3_32B, cell_weight=2)
    table = StepTimeTable(A100_QWEN3_32B)
    before = table.predict_s(100, 0, 0)
    for measured in (0.0, -1.0, float("inf"), float("nan")):
        table.observe(100, 0, 0, measured)
    assert table.predict_s(100, 0, 0) == before
