"""Where `ballast` stands: the best baseline chosen on one set of seeds, compared on another, with intervals.

A minimum over many noisy figures is too low by luck. So the best baseline of a cell and a metric is the one with the
least geometric mean over the selection seeds, and it is compared on other seeds. Runs of one seed have
the same requests at the same times, so ratios are formed seed by seed; the interval is Student's t on their
logarithms. (A bootstrap over requests would be too narrow: the requests of a tail share their cause.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.common.intervals import Interval, interval
from bench.matrix.cells import COMPARISON_SEEDS, SELECTION_SEEDS
from bench.matrix.measure import ORACLE
from bench.matrix.results import Figures, worse_ratio

OURS = "ballast"
CONTENDERS = 4
"""So many of each headline metric go from the first selection seed to the others."""
Runs = Mapping[tuple[str, int], Figures]
"""The figures of one cell by placement and seed."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that is compared."""

    field: str
    title: str
    more_is_better: bool = False

    def of(self, figures: Figures) -> float:
        """Its value."""
        return float(getattr(figures, self.field))

    def worse(self, figures: Figures, against: Figures) -> float:
        """By which factor it is worse in the first than in the second."""
        return worse_ratio(self.of(figures), self.of(against), more_is_better=self.more_is_better)


HEADLINES = (Metric("tpot_p99_s", "P99 TPOT"), Metric("ttft_p99_s", "P99 TTFT"))
"""What the goal is about."""
METRICS = (
    *HEADLINES,
    Metric("tpot_mean_s", "mean TPOT"),
    Metric("ttft_mean_s", "mean TTFT"),
    Metric("goodput_rps", "goodput", more_is_better=True),
)


def baselines(runs: Runs) -> list[str]:
    """Every placement that ran, but ours and the oracle."""
    return sorted({policy for policy, _ in runs} - {OURS, ORACLE})


def ranking(runs: Runs, metric: Metric, seeds: Sequence[int], among: Iterable[str]) -> list[str]:
    """Placements from the best to the worst by geometric mean over seeds; those without all seeds are left out."""
    scores = {
        policy: sum(_cost(metric, runs[policy, seed]) for seed in seeds)
        for policy in among
        if all((policy, seed) in runs for seed in seeds)
    }
    return sorted(scores, key=lambda policy: (scores[policy], policy))


def _cost(metric: Metric, figures: Figures) -> float:
    value = metric.of(figures)
    logarithm = math.log(value) if value > 0 else -math.inf
    return -logarithm if metric.more_is_better else logarithm


def contenders(runs: Runs, among: Iterable[str]) -> list[str]:
    """The best few of each headline metric on the first selection seed."""
    among = list(among)
    found: dict[str, None] = {}
    for metric in HEADLINES:
        found |= dict.fromkeys(ranking(runs, metric, SELECTION_SEEDS[:1], among)[:CONTENDERS])
    return list(found)


def best_baseline(runs: Runs, metric: Metric, among: Iterable[str] | None = None) -> str | None:
    """The one that the selection seeds choose; None where no baseline has them all."""
    ranked = ranking(runs, metric, SELECTION_SEEDS, baselines(runs) if among is None else among)
    return ranked[0] if ranked else None


@dataclass(frozen=True, slots=True)
class Standing:
    """Ours against another placement in one cell and metric: above 1 is worse. Values are means over the seeds."""

    cell: str
    metric: Metric
    other: str
    ours_value: float
    other_value: float
    interval: Interval


def compare(cell: str, runs: Runs, metric: Metric, other: str, seeds: Sequence[int]) -> Standing | None:
    """Ours against `other` on the seeds that both have; None where there are none."""
    shared = [seed for seed in seeds if (OURS, seed) in runs and (other, seed) in runs]
    if not shared:
        return None
    return Standing(
        cell=cell,
        metric=metric,
        other=other,
        ours_value=statistics.fmean(metric.of(runs[OURS, seed]) for seed in shared),
        other_value=statistics.fmean(metric.of(runs[other, seed]) for seed in shared),
        interval=interval([metric.worse(runs[OURS, seed], runs[other, seed]) for seed in shared]),
    )


def against_best(cell: str, runs: Runs, metric: Metric) -> Standing | None:
    """Ours against the best baseline on all comparison seeds; None while a run is missing."""
    best = best_baseline(runs, metric)
    if best is None:
        return None
    standing = compare(cell, runs, metric, best, COMPARISON_SEEDS)
    return standing if standing is not None and standing.interval.count == len(COMPARISON_SEEDS) else None


def both_tails(runs: Runs, policies: Sequence[str], seed: int) -> Mapping[str, float]:
    """How many times the best of all of them each placement is, in the worse of its two headline metrics, 1 or more.

    Empty if one of them has not run with this seed.
    """
    if not all((policy, seed) in runs for policy in policies):
        return {}
    found = dict.fromkeys(policies, 1.0)
    for metric in HEADLINES:
        best = runs[ranking(runs, metric, (seed,), policies)[0], seed]
        for policy in policies:
            found[policy] = max(found[policy], metric.worse(runs[policy, seed], best))
    return found


@dataclass(frozen=True, slots=True)
class Tally:
    """How many standings are how far behind."""

    count: int
    within_2_percent: int
    beyond_5_percent: int
    surely_worse: int
    """Interval wholly above 1.02."""
    better: int
    """Interval wholly below 1."""
    worst_ratio: float
    mean_ratio: float
    """Geometric."""

    @classmethod
    def of(cls, standings: Sequence[Standing]) -> Tally:
        """Raises ValueError for no standing."""
        intervals = [standing.interval for standing in standings]
        ratios = [found.ratio for found in intervals]
        return cls(
            count=len(ratios),
            within_2_percent=sum(ratio <= 1.02 for ratio in ratios),
            beyond_5_percent=sum(ratio > 1.05 for ratio in ratios),
            surely_worse=sum(found.low > 1.02 for found in intervals),
            better=sum(found.high < 1 for found in intervals),
            worst_ratio=max(ratios),
            mean_ratio=interval(ratios).ratio,
        )
