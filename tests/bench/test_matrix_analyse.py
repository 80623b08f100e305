"""Who is the best baseline, and how far ours is from it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.common.intervals import interval
from bench.matrix.analyse import (
    HEADLINES,
    METRICS,
    OURS,
    Standing,
    Tally,
    against_best,
    best_baseline,
    both_tails,
    compare,
    contenders,
)
from bench.matrix.cells import COMPARISON_SEEDS, SELECTION_SEEDS
from bench.matrix.measure import ORACLE
from bench.matrix.results import Figures, worse_ratio

TPOT, TTFT = HEADLINES
GOODPUT = METRICS[-1]


def figures(tpot_s: float = 0.03, ttft_s: float = 1.0, goodput_rps: float = 5.0) -> Figures:
    return Figures(tpot_s, ttft_s, tpot_s / 2, ttft_s / 2, goodput_rps, 0, 100, 0, 1.0)


def test_an_interval_is_students() -> None:
    found = interval([1.0, 1.1, 1.21])  # logarithms 0, l, 2l: mean l, deviation l
    step = math.log(1.1)
    assert found.ratio == pytest.approx(1.1)
    assert math.log(found.high) == pytest.approx(step + 4.303 * step / math.sqrt(3))
    assert math.log(found.low) == pytest.approx(step - 4.303 * step / math.sqrt(3))
    assert found.count == 3


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=12), st.floats(0.1, 10))
def test_an_interval_scales_with_its_ratios_and_holds_their_mean(ratios: list[float], factor: float) -> None:
    plain, scaled = interval(ratios), interval([ratio * factor for ratio in ratios])
    assert plain.low <= plain.ratio * (1 + 1e-9)
    assert plain.ratio <= plain.high * (1 + 1e-9)
    assert scaled.low == pytest.approx(plain.low * factor)
    assert scaled.high == pytest.approx(plain.high * factor)


def test_one_ratio_and_an_infinite_one_say_nothing_sure() -> None:
    assert interval([1.3]).high == math.inf
    assert interval([1.0, math.inf, 1.2]).high == math.inf
    with pytest.raises(ValueError, match="one at least"):
        interval([])


@given(st.floats(0, 10), st.floats(0, 10), st.booleans())
def test_worse_one_way_is_better_the_other(one: float, other: float, more_is_better: bool) -> None:
    there = worse_ratio(one, other, more_is_better=more_is_better)
    back = worse_ratio(other, one, more_is_better=more_is_better)
    assert (there > 1) == (back < 1) or there == back == 1


def test_the_best_is_chosen_on_the_selection_seeds_whatever_the_others_say() -> None:
    runs = {("lucky", seed): figures(tpot_s=0.01) for seed in COMPARISON_SEEDS}
    runs |= {("lucky", seed): figures(tpot_s=0.05) for seed in SELECTION_SEEDS}
    runs |= {("steady", seed): figures(tpot_s=0.04) for seed in SELECTION_SEEDS + COMPARISON_SEEDS}
    runs |= {(OURS, seed): figures(tpot_s=0.044) for seed in COMPARISON_SEEDS}
    assert best_baseline(runs, TPOT) == "steady"
    standing = against_best("cell", runs, TPOT)
    assert standing is not None
    assert standing.other == "steady"
    assert standing.interval.ratio == pytest.approx(1.1)


def test_more_goodput_is_better() -> None:
    runs = {("much", seed): figures(goodput_rps=9) for seed in SELECTION_SEEDS + COMPARISON_SEEDS}
    runs |= {("little", seed): figures(goodput_rps=0) for seed in SELECTION_SEEDS + COMPARISON_SEEDS}
    runs |= {(OURS, seed): figures(goodput_rps=6) for seed in COMPARISON_SEEDS}
    standing = against_best("cell", runs, GOODPUT)
    assert standing is not None
    assert standing.other == "much"
    assert standing.interval.ratio == pytest.approx(1.5)


def test_ours_and_the_oracle_are_no_baselines() -> None:
    runs = {(name, seed): figures(0.01) for name in (OURS, ORACLE) for seed in SELECTION_SEEDS}
    assert best_baseline(runs, TPOT) is None


def test_a_comparison_waits_for_all_its_seeds() -> None:
    runs = {("other", seed): figures() for seed in SELECTION_SEEDS + COMPARISON_SEEDS}
    runs |= {(OURS, seed): figures() for seed in COMPARISON_SEEDS[:-1]}
    assert against_best("cell", runs, TPOT) is None
    partly = compare("cell", runs, TPOT, "other", COMPARISON_SEEDS)
    assert partly is not None
    assert partly.interval.count == len(COMPARISON_SEEDS) - 1


def test_contenders_are_the_best_of_each_headline_on_one_seed() -> None:
    screening = SELECTION_SEEDS[0]
    names = [f"p{number}" for number in range(9)]
    runs = {(name, screening): figures(tpot_s=1 + n, ttft_s=9 - n) for n, name in enumerate(names)}
    assert set(contenders(runs, names)) == {"p0", "p1", "p2", "p3", "p5", "p6", "p7", "p8"}


def test_a_tally_counts_what_is_far_behind() -> None:
    def standing(*ratios: float) -> Standing:
        return Standing("cell", TPOT, "other", 1.0, 1.0, interval(ratios))

    tally = Tally.of(
        [standing(1.0, 1.0), standing(1.03, 1.03), standing(1.2, 1.2), standing(0.9, 0.9), standing(0.5, 2)]
    )
    assert (tally.count, tally.within_2_percent, tally.beyond_5_percent) == (5, 3, 1)
    assert (tally.surely_worse, tally.better) == (2, 1)
    assert tally.worst_ratio == pytest.approx(1.2)


def test_both_tails_are_as_good_as_the_worse_of_them() -> None:
    """One that is the best in one tail and twice the best in the other is 2 from the best; all must have run."""
    runs = {
        ("quick-tokens", 7): figures(tpot_s=0.02, ttft_s=2.0),
        ("quick-start", 7): figures(tpot_s=0.06, ttft_s=1.0),
        ("between", 7): figures(tpot_s=0.022, ttft_s=1.05),
    }
    found = both_tails(runs, ["quick-tokens", "quick-start", "between"], 7)
    assert found == pytest.approx({"quick-tokens": 2.0, "quick-start": 3.0, "between": 1.1})
    assert both_tails(runs, ["quick-tokens", "absent"], 7) == {}
