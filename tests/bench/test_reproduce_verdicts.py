"""The rule of verdicts: what holds, what is contradicted, and that nothing contradicts which cannot."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.common.store import Code
from bench.reproduce.form import Experiment, Finding, Run
from bench.reproduce.record import Done, Record, RecordedRun
from bench.reproduce.results import Measured, Results
from bench.reproduce.tasks import Called, simulated
from bench.reproduce.verdicts import (
    LIFETIMES,
    Verdict,
    judge_change,
    judge_direction,
    judge_level,
    judge_limit,
    together,
    valid,
)


def between(low: float, high: float, *, count: int = 5, lifetimes: float | None = 10.0) -> Measured:
    return Measured((low + high) / 2, low, high, count, lifetimes)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-30, -20, Verdict.HOLDS),
        (-60, -50, Verdict.HOLDS),
        (-14, -11, Verdict.HOLDS),
        (-13, -11, Verdict.IN_PART),
        (-4, -3, Verdict.IN_PART),
        (-2.4, -0.1, Verdict.CONTRADICTED),
        (1, 90, Verdict.CONTRADICTED),
        (-3, -1, Verdict.INCONCLUSIVE),
        (-40, -1, Verdict.INCONCLUSIVE),
        (-60, 0, Verdict.INCONCLUSIVE),
        (-1, 1, Verdict.INCONCLUSIVE),
        (0, 0, Verdict.INCONCLUSIVE),
    ],
)
def test_a_change_is_judged_by_its_whole_interval(low: float, high: float, verdict: Verdict) -> None:
    assert judge_change(between(low, high), -24.5) is verdict
    assert judge_change(between(-high, -low), 24.5) is verdict
    assert judge_change(None, -24.5) is Verdict.OPEN


def test_libra_against_disaggregation_holds() -> None:
    assert judge_change(Measured(62.8, 19.0, 122.8, 3, None), 37.0) is Verdict.HOLDS


@given(
    st.floats(-90, 200),
    st.floats(0, 50),
    st.integers(1, 5),
    st.one_of(st.none(), st.floats(0, 10)),
    st.sampled_from([-40.0, 60.0]),
)
def test_nothing_contradicts_that_cannot(
    value: float, reach: float, count: int, lifetimes: float | None, paper: float
) -> None:
    ours = Measured(value, value - reach, value + reach, count, lifetimes)
    for verdict in (judge_change(ours, paper), judge_direction(ours, paper)):
        if count < 3 or ours.low <= 0 <= ours.high:
            assert verdict is Verdict.INCONCLUSIVE
        if verdict is Verdict.CONTRADICTED:
            assert lifetimes is not None
            assert lifetimes >= LIFETIMES
        if verdict in (Verdict.HOLDS, Verdict.IN_PART):
            assert value * paper > 0
    assert judge_level(ours, paper) is not Verdict.CONTRADICTED or valid(ours)


@pytest.mark.parametrize("lifetimes", [None, 0.5, 2.9])
def test_a_run_that_is_too_short_contradicts_nothing_but_may_support(lifetimes: float | None) -> None:
    assert judge_change(between(10, 20, lifetimes=lifetimes), -24.5) is Verdict.INCONCLUSIVE
    assert judge_direction(between(10, 20, lifetimes=lifetimes), -1.0) is Verdict.INCONCLUSIVE
    assert judge_level(between(10, 20, lifetimes=lifetimes), 80.0) is Verdict.INCONCLUSIVE
    assert judge_limit(between(10, 20, lifetimes=lifetimes), 5.0) is Verdict.INCONCLUSIVE
    assert judge_change(between(-30, -20, lifetimes=lifetimes), -24.5) is Verdict.HOLDS


def test_a_change_of_nothing_has_no_direction() -> None:
    with pytest.raises(ValueError, match="judge a level"):
        judge_change(between(1, 2), 0.0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (75, 85, Verdict.HOLDS),
        (60, 106, Verdict.HOLDS),
        (60, 70, Verdict.IN_PART),
        (40, 70, Verdict.INCONCLUSIVE),
        (75, 120, Verdict.INCONCLUSIVE),
        (3, 50, Verdict.CONTRADICTED),
        (110, 120, Verdict.CONTRADICTED),
    ],
)
def test_levels_use_their_intervals(low: float, high: float, verdict: Verdict) -> None:
    assert judge_level(between(low, high), 80.0) is verdict
    assert judge_level(between(low, high, count=2), 80.0) is Verdict.INCONCLUSIVE
    assert judge_level(None, 80.0) is Verdict.OPEN


def test_limits_and_directions() -> None:
    assert judge_limit(between(2, 5), 5.0) is Verdict.HOLDS
    assert judge_limit(between(2, 6), 5.0) is Verdict.INCONCLUSIVE
    assert judge_limit(between(6, 7), 5.0) is Verdict.CONTRADICTED
    assert judge_direction(between(-5, -0.1), -1.0) is Verdict.HOLDS
    assert judge_direction(between(0.1, 5), -1.0) is Verdict.CONTRADICTED
    assert judge_direction(between(-5, 1), -1.0) is Verdict.INCONCLUSIVE


@settings(max_examples=50)
@given(st.lists(st.sampled_from([each for each in Verdict if each is not Verdict.NOT_COMPARABLE])))
def test_rows_together_hold_only_if_all_do_and_contradict_only_if_none_does(verdicts: list[Verdict]) -> None:
    found = together(verdicts)
    known = [each for each in verdicts if each is not Verdict.OPEN]
    assert (found is Verdict.OPEN) == (not known)
    assert (found is Verdict.HOLDS) == (set(known) == {Verdict.HOLDS})
    if found is Verdict.CONTRADICTED:
        assert Verdict.HOLDS not in known
        assert Verdict.IN_PART not in known
        assert 2 * known.count(Verdict.CONTRADICTED) >= len(known)


def test_averages_are_means_of_ratios_seed_by_seed() -> None:
    def by_seed(*values: float) -> dict[int, dict[str, float]]:
        return {seed: {"rps": value} for seed, value in enumerate(values)}

    results = Results(
        {"a": by_seed(2, 4, 6), "b": by_seed(1, 1, 1), "c": by_seed(4, 4, 4), "d": by_seed(1, 2, 4)},
        {"a": 4.0, "b": 9.0, "c": 5.0, "d": 3.5},
    )
    found = results.mean_ratio([("a", "b"), ("c", "d")], "rps")  # (2 + 4) / 2, (4 + 2) / 2, (6 + 1) / 2
    assert found is not None
    assert found.value == pytest.approx((3 * 3 * 3.5) ** (1 / 3))
    assert found.lifetimes == 3.5
    assert results.mean_ratio([("a", "b"), ("c", "missing")], "rps") is None


def told(seed: int, requests: int, rate_rps: float) -> dict[str, float]:
    return {"e2e_p99_s": 10.0}


def test_lifetimes_come_from_the_run_or_from_what_was_asked() -> None:
    made = simulated("1C@a100-llama3-8b", "round-robin", workload="chat", rate_rps=2.0, limit=100, duration_s=40.0)
    assert made.arrivals_s == 40.0
    task = Called(told, {"requests": 200, "rate_rps": 4.0})
    assert task.arrivals_s == 50.0
    runs = [Run("asked", task), Run("told", task), Run("unknown", Called(told, {}))]
    each = Experiment(name="x/y", title="", text="", runs=runs, analyse=lambda results: Finding(rows=[]))
    code = Code("a", "b")
    record = Record({}, "", "")
    record.experiments["x/y"] = {
        "asked": RecordedRun("1", {0: Done(code, 1, {"e2e_p99_s": 10.0}), 1: Done(code, 1, {"e2e_p99_s": 25.0})}),
        "told": RecordedRun("1", {0: Done(code, 1, {"e2e_p99_s": 10.0, "arrivals_s": 30.0})}),
        "unknown": RecordedRun("1", {0: Done(code, 1, {"e2e_p99_s": 10.0})}),
    }
    assert record.results(each).lasting == {"asked": 2.0, "told": 3.0}
    mean = record.results(each).mean("told", "e2e_p99_s")
    assert mean is not None
    assert mean.lifetimes == 3.0
