"""Counters and histograms for the byte path, exported as `prometheus_client` exports its own.

Everything runs on one event loop, so they need no lock; and a label set is looked up by its values alone.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Count:
    """One series of a counter."""

    __slots__ = ("created_s", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created_s = time.time()

    def inc(self, amount: float = 1.0) -> None:
        """Add, nothing below zero."""
        self.value += amount


class Counts(Collector):
    """A counter by labels. One without labels has its only series from the beginning."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str, ...], Count] = {} if labels else {(): Count()}
        registry.register(self)

    def of(self, *labels: str) -> Count:
        """The series of these values, from now on exported."""
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = Count()
        return found

    def collect(self) -> Iterable[Metric]:
        """For the registry."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, series in self._series.items():
            family.add_metric(labels, series.value, created=series.created_s)
        return [family]


class Spread:
    """One series of a histogram. `bounds`: upper bounds of its buckets but the last, which has none."""

    __slots__ = ("_bounds", "counts", "created_s", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.created_s = time.time()

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound it does not exceed."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Spreads(Collector):
    """A histogram by labels. One without labels has its only series from the beginning."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        labels: tuple[str, ...] = (),
        *,
        bounds: tuple[float, ...],
    ) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._series: dict[tuple[str, ...], Spread] = {} if labels else {(): Spread(bounds)}
        registry.register(self)

    def of(self, *labels: str) -> Spread:
        """The series of these values, from now on exported."""
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = Spread(self._bounds)
        return found

    def collect(self) -> Iterable[Metric]:
        """For the registry."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        ends = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        for labels, series in self._series.items():
            buckets = zip(ends, (float(count) for count in accumulate(series.counts)), strict=True)
            family.add_metric(labels, list(buckets), series.total)
            named = dict(zip(self._labels, labels, strict=True))
            family.add_sample(f"{self._name}_created", named, series.created_s)
        return [family]
