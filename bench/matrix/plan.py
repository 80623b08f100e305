"""Which runs a cell still needs: all placements on one selection seed, the best few on the others, then comparison.

The placements that matter most go through all of that first, so that a matrix cut short is of use: six common ones
(tiers 0 to 2), then everything (3 to 5), then the best baselines of the metrics that are no headline (6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.matrix.analyse import HEADLINES, METRICS, OURS, Metric, Runs, best_baseline, contenders
from bench.matrix.cells import COMPARISON_SEEDS, SELECTION_SEEDS
from bench.matrix.measure import ORACLE

FIRST = (OURS, "least-requests", "least-tokens", "sibyl", "lmetric", "round-robin")
SCREENING_SEED, FURTHER_SEEDS = SELECTION_SEEDS[0], SELECTION_SEEDS[1:]

Wanted = tuple[str, int]
"""A placement and a seed."""


@dataclass(frozen=True, slots=True)
class Need:
    """Runs that a cell lacks; none of them depends on another's outcome. Lower tiers come first."""

    tier: int
    runs: tuple[Wanted, ...]


def need(runs: Runs, placements: Sequence[str]) -> Need | None:
    """What comes next for a cell; None when it is complete."""
    for tier, field in ((0, [name for name in FIRST if name in placements]), (3, list(placements))):
        for step, wanted in enumerate(_steps(runs, field)):
            missing = tuple(run for run in wanted if run not in runs)
            if missing:
                return Need(tier + step, missing)
    last = [run for run in _comparison(runs, placements, METRICS) if run not in runs]
    return Need(6, tuple(last)) if last else None


def _steps(runs: Runs, field: Sequence[str]) -> Iterable[list[Wanted]]:
    """Each step is to be complete before the next is asked for."""
    yield [(policy, SCREENING_SEED) for policy in field]
    others = [policy for policy in field if policy not in (OURS, ORACLE)]
    yield [(policy, seed) for seed in FURTHER_SEEDS for policy in contenders(runs, others)]
    yield _comparison(runs, field, HEADLINES)


def _comparison(runs: Runs, field: Sequence[str], metrics: Sequence[Metric]) -> list[Wanted]:
    others = [policy for policy in field if policy not in (OURS, ORACLE)]
    best = [best_baseline(runs, metric, others) for metric in metrics]
    compared = [OURS, *best, *(policy for policy in field if policy == ORACLE)]
    return [(policy, seed) for policy in dict.fromkeys(compared) if policy is not None for seed in COMPARISON_SEEDS]


def expected_left(runs: Runs, placements: Sequence[str]) -> float:
    """About how many runs a cell still needs: what is not known yet is taken to be as it usually is."""
    screening = sum((policy, SCREENING_SEED) not in runs for policy in placements)
    further = max(0.0, 5.5 * len(FURTHER_SEEDS) - sum(seed in FURTHER_SEEDS for _, seed in runs))
    compared = 3.5 + (ORACLE in placements)
    comparison = max(0.0, compared * len(COMPARISON_SEEDS) - sum(seed in COMPARISON_SEEDS for _, seed in runs))
    return screening + further + comparison if need(runs, placements) is not None else 0.0
