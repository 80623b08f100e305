"""Figures of an experiment's runs, and measurements made of them: with 95 % intervals over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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

    @classmethod
    def of(cls, values: Iterable[float]) -> Measured | None:
        """Student's t on values, for three or more; None for none."""
        known = list(values)
        if not known:
            return None
        middle = statistics.fmean(known)
        reach = reach_95(known) if len(known) >= FEWEST else 0.0
        return cls(middle, middle - reach, middle + reach, len(known))

    def times(self, factor: float) -> Measured:
        """In another unit."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Measured(self.value * factor, low, high, self.count)


@dataclass(frozen=True, slots=True)
class Results:
    """By run, seed and name of the figure. Figures of missing runs are None."""

    figures: Mapping[str, Mapping[int, Mapping[str, float]]] = field(default_factory=dict)

    def values(self, run: str, figure: str) -> dict[int, float]:
        """By seed; without the seeds in which the figure does not exist."""
        by_seed = self.figures.get(run, {})
        return {seed: known[figure] for seed, known in sorted(by_seed.items()) if figure in known}

    def mean(self, run: str, figure: str, factor: float = 1.0) -> Measured | None:
        """The mean over seeds, times `factor`."""
        found = Measured.of(self.values(run, figure).values())
        return None if found is None else found.times(factor)

    def share(self, run: str, figure: str, of: str) -> Measured | None:
        """One figure in percent of another one of the same run, over seeds."""
        parts, wholes = self.values(run, figure), self.values(run, of)
        return Measured.of(100 * parts[seed] / wholes[seed] for seed in parts if wholes.get(seed))

    def ratio(self, run: str, against: str, figure: str) -> Measured | None:
        """Geometric mean of ratios seed by seed: runs of one seed have the same requests.

        None where no seed has both, or where a figure is 0.
        """
        ours, theirs = self.values(run, figure), self.values(against, figure)
        pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
        if not pairs or any(above <= 0 or below <= 0 for above, below in pairs):
            return None
        found = interval([above / below for above, below in pairs])
        if found.count < FEWEST:
            return Measured(found.ratio, found.ratio, found.ratio, found.count)
        return Measured(found.ratio, found.low, found.high, found.count)

    def change(self, run: str, against: str, figure: str) -> Measured | None:
        """The same in percent: -25 where a figure is a quarter less than in `against`."""
        found = self.ratio(run, against, figure)
        if found is None:
            return None
        return Measured(100 * (found.value - 1), 100 * (found.low - 1), 100 * (found.high - 1), found.count)


def measured(value: Measured | None, unit: str) -> str:
    """A mean with its interval: `-3.9 % (-6.1 to -1.7, n = 5)`."""
    if value is None:
        return ""
    if value.count < FEWEST:
        return f"{number(value.value, unit)} (n = {value.count})"
    low, high = (number(bound, unit, bare=True) for bound in (value.low, value.high))
    return f"{number(value.value, unit)} ({low} to {high}, n = {value.count})"


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
