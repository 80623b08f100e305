"""Which runs are asked for, in which order, and that it ends."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.matrix.analyse import METRICS, OURS, against_best
from bench.matrix.cells import COMPARISON_SEEDS, SEEDS, SELECTION_SEEDS
from bench.matrix.measure import ORACLE
from bench.matrix.plan import FIRST, SCREENING_SEED, expected_left, need
from bench.matrix.results import Figures

OTHERS = ("ils", "random", "vllm-jsq", "power-of-two")
PLACEMENTS = (*FIRST, *OTHERS, ORACLE)

Table = dict[tuple[str, int], Figures]

values = st.floats(0.01, 100)
tables = st.fixed_dictionaries(
    {
        (policy, seed): st.builds(
            Figures, values, values, values, values, values, st.just(0), st.just(9), st.just(0), st.just(1.0)
        )
        for policy in PLACEMENTS
        for seed in SEEDS
    }
)


@settings(max_examples=30)
@given(tables)
def test_every_need_is_new_tiers_rise_and_in_the_end_all_metrics_are_compared(table: Table) -> None:
    runs: Table = {}
    tiers = []
    while (wanted := need(runs, PLACEMENTS)) is not None:
        assert wanted.runs
        assert not set(wanted.runs) & set(runs)
        tiers.append(wanted.tier)
        assert expected_left(runs, PLACEMENTS) >= 0
        runs |= {run: table[run] for run in wanted.runs}
    assert tiers == sorted(tiers)
    assert all((policy, SCREENING_SEED) in runs for policy in PLACEMENTS)
    assert all((policy, seed) in runs for policy in (OURS, ORACLE) for seed in COMPARISON_SEEDS)
    assert all(against_best("cell", runs, metric) is not None for metric in METRICS)
    assert expected_left(runs, PLACEMENTS) == 0


@settings(max_examples=20)
@given(tables, st.randoms(use_true_random=False))
def test_the_outcome_does_not_depend_on_the_order_in_which_runs_end(table: Table, rng: random.Random) -> None:
    def finish(*, shuffled: bool) -> set[tuple[str, int]]:
        runs: Table = {}
        while (wanted := need(runs, PLACEMENTS)) is not None:
            run = rng.choice(wanted.runs) if shuffled else wanted.runs[0]
            runs[run] = table[run]
        return set(runs)

    assert finish(shuffled=True) == finish(shuffled=False)


def test_the_common_placements_are_compared_before_the_rest_is_looked_at() -> None:
    runs: Table = {}
    while (wanted := need(runs, PLACEMENTS)) is not None and wanted.tier < 3:
        runs |= {run: Figures(0.03, 1.0, 0.02, 0.5, 5.0, 0, 100, 0, 1.0) for run in wanted.runs}
    assert {policy for policy, _ in runs} == set(FIRST)
    assert all((OURS, seed) in runs for seed in COMPARISON_SEEDS)
    assert {policy for policy, seed in runs if seed == SELECTION_SEEDS[1]} <= set(FIRST) - {OURS}
