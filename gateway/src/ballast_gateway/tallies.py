"""Declared counters and histograms that the event loop counts: plain numbers, made into metrics at each export.

prometheus_client's own take a lock and two checks for each count, and a histogram looks through its bounds one by one.
A request has ten of them. The export is the library's still, and `tests/gateway/test_tallies.py` holds both together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ballast_api.metric_making import counters, histograms
from ballast_api.metrics import METRICS


class Tally:
    """The counter of one series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """So many more."""
        self.value += amount


class Spread:
    """The histogram of one series."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """By bucket, not cumulated; the last one has no bound."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose upper bound is not below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class Tallies(Collector):
    """A declared counter: a `Tally` for each set of label values. Registers itself."""

    def __init__(self, name: str, registry: CollectorRegistry) -> None:
        """Raises `KeyError` for a name that is not declared, `ValueError` for one that is no counter."""
        counters(name)
        self._name = name
        self._of: dict[tuple[str, ...], Tally] = {}
        if not METRICS[name].labels:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Tally:
        """That of these values, in the order of the declaration; from now on it is exported."""
        found = self._of.get(values)
        if found is None:
            found = self._of[_checked(self._name, values)] = Tally()
        return found

    def inc(self, amount: float = 1) -> None:
        """So many more, of a counter without labels."""
        self._of[()].inc(amount)

    def collect(self) -> Iterable[Metric]:
        """All series."""
        family = counters(self._name)
        for values, tally in list(self._of.items()):
            family.add_metric(values, tally.value)
        return [family]


class Spreads(Collector):
    """A declared histogram: a `Spread` for each set of label values. Registers itself."""

    def __init__(self, name: str, registry: CollectorRegistry, bounds: Sequence[float]) -> None:
        """`bounds`: upper ones, ascending, without the last that has none. Raises as `Tallies` does."""
        histograms(name)
        self._name = name
        self._bounds = tuple(map(float, bounds))
        self._of: dict[tuple[str, ...], Spread] = {}
        if not METRICS[name].labels:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Spread:
        """That of these values, in the order of the declaration; from now on it is exported."""
        found = self._of.get(values)
        if found is None:
            found = self._of[_checked(self._name, values)] = Spread(self._bounds)
        return found

    def observe(self, value: float) -> None:
        """Count a value, of a histogram without labels."""
        self._of[()].observe(value)

    def collect(self) -> Iterable[Metric]:
        """All series."""
        family = histograms(self._name)
        names = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        for values, spread in list(self._of.items()):
            family.add_metric(values, list(zip(names, accumulate(spread.counts), strict=True)), spread.sum)
        return [family]


def _checked(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    if len(values) != len(METRICS[name].labels):
        raise ValueError(f"{name} has the labels {METRICS[name].labels}, not {len(values)} of them")
    return values
