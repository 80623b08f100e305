"""Figures of an experiment's runs, and measurements made of them: with 95 % intervals over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.common.intervals import interval, reach_95

FEWEST = 3
"""Seeds below which there is no interval, and verdicts are provisional."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A mean over `count` seeds with its 95 % interval.

    The bounds are the value itself for one seed and for two, whose interval (t = 12.7) is too wide to be of use.
    """

    value: float
    low: float
    high: float
    count: int
    lifetimes: float | None = None
    """P99 lifetimes of a request for which requests arrived, the fewest of the runs behind it; None: not known."""

    @classmethod
    def of(cls, values: Iterable[float], lifetimes: float | None = None) -> Measured | None:
        """Student's t on values, for three or more; None for none."""
        known = list(values)
        if not known:
            return None
        middle = statistics.fmean(known)
        reach = reach_95(known) if len(known) >= FEWEST else 0.0
        return cls(middle, middle - reach, middle + reach, len(known), lifetimes)

    def times(self, factor: float) -> Measured:
        """In another unit."""
        low, high = sorted((self.low * factor, self.high * factor))
        return replace(self, value=self.value * factor, low=low, high=high)


@dataclass(frozen=True, slots=True)
class Results:
    """By run, seed and name of the figure. Figures of missing runs are None."""

    figures: Mapping[str, Mapping[int, Mapping[str, float]]] = field(default_factory=dict)
    lasting: Mapping[str, float] = field(default_factory=dict)
    """P99 lifetimes of a request for which requests arrived, by run, where known."""

    def lifetimes(self, *runs: str) -> float | None:
        """The fewest of these runs; None where one is not known."""
        known = [self.lasting[run] for run in runs if run in self.lasting]
        return min(known) if len(known) == len(runs) > 0 else None

    def values(self, run: str, figure: str) -> dict[int, float]:
        """By seed; without the seeds in which the figure does not exist."""
        by_seed = self.figures.get(run, {})
        return {seed: known[figure] for seed, known in sorted(by_seed.items()) if figure in known}

    def mean(self, run: str, figure: str, factor: float = 1.0) -> Measured | None:
        """The mean over seeds, times `factor`."""
        found = Measured.of(self.values(run, figure).values(), self.lifetimes(run))
        return None if found is None else found.times(factor)

    def share(self, run: str, figure: str, of: str) -> Measured | None:
        """One figure in percent of another one of the same run, over seeds."""
        parts, wholes = self.values(run, figure), self.values(run, of)
        shares = (100 * parts[seed] / wholes[seed] for seed in parts if wholes.get(seed))
        return Measured.of(shares, self.lifetimes(run))

    def ratio(self, run: str, against: str, figure: str) -> Measured | None:
        """Geometric mean of ratios seed by seed: runs of one seed have the same requests.

        None where no seed has both, or where a figure is 0.
        """
        return self.mean_ratio([(run, against)], figure)

    def mean_ratio(self, pairs: Sequence[tuple[str, str]], figure: str) -> Measured | None:
        """The mean of several pairs' ratios (run, against), as a paper's "on average": seed by seed, then over seeds.

        Only seeds that all pairs have count. None where there is none, or where a figure is 0.
        """
        by_seed: list[dict[int, float]] = []
        for run, against in pairs:
            ours, theirs = self.values(run, figure), self.values(against, figure)
            both = {seed: (ours[seed], theirs[seed]) for seed in ours if seed in theirs}
            if any(above <= 0 or below <= 0 for above, below in both.values()):
                return None
            by_seed.append({seed: above / below for seed, (above, below) in both.items()})
        seeds = set(by_seed[0]).intersection(*by_seed[1:]) if by_seed else set()
        if not seeds:
            return None
        found = interval([statistics.fmean(ratios[seed] for ratios in by_seed) for seed in sorted(seeds)])
        lasting = self.lifetimes(*(run for pair in pairs for run in pair))
        if found.count < FEWEST:
            return Measured(found.ratio, found.ratio, found.ratio, found.count, lasting)
        return Measured(found.ratio, found.low, found.high, found.count, lasting)

    def change(self, run: str, against: str, figure: str) -> Measured | None:
        """The same in percent: -25 where a figure is a quarter less than in `against`."""
        return self.mean_change([(run, against)], figure)

    def mean_change(self, pairs: Sequence[tuple[str, str]], figure: str) -> Measured | None:
        """`mean_ratio` in percent."""
        found = self.mean_ratio(pairs, figure)
        return None if found is None else in_percent(found)

    def best_change(self, run: str, against: str, figures: Sequence[str]) -> Measured | None:
        """The largest of these figures' changes by its mean: for a claim that does not say which figure it means."""
        known = [change for figure in figures if (change := self.change(run, against, figure)) is not None]
        return max(known, key=lambda change: change.value, default=None)


def in_percent(ratio: Measured) -> Measured:
    """A ratio as a change in percent: 25 of 1.25."""
    value, low, high = (100 * (each - 1) for each in (ratio.value, ratio.low, ratio.high))
    return replace(ratio, value=value, low=low, high=high)


def measured(value: Measured | None, unit: str, *, seeds: bool = True) -> str:
    """A mean with its interval: `-3.9 % (-6.1 to -1.7, n = 5)`; `seeds` says whether their number stands there."""
    if value is None:
        return ""
    count = f"n = {value.count}"
    if value.count < FEWEST:
        return f"{number(value.value, unit)} ({count})"
    low, high = (number(bound, unit, bare=True) for bound in (value.low, value.high))
    return f"{number(value.value, unit)} ({low} to {high}{', ' + count if seeds else ''})"


def number(value: float, unit: str, *, bare: bool = False) -> str:
    """Three digits that count. `% change` is signed."""
    signed = unit == "% change"
    text = f"{value:+.1f}" if signed or (unit == "%" and abs(value) < 1000) else f"{value:.3g}"
    if unit == "%":
        text = text.removeprefix("+")
    if abs(value) >= 1000:
        text = f"{value:+,.0f}" if signed else f"{value:,.0f}"
    shown = "%" if signed else unit
    return text if bare or not shown else f"{text} {shown}"


def known(*measurements: Measured | None) -> tuple[Measured, ...] | None:
    """All of them, for prose that needs each; None where one is missing."""
    found = tuple(each for each in measurements if each is not None)
    return found if len(found) == len(measurements) else None
