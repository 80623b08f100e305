"""Makes prometheus_client's objects of declared metrics: a name that is not declared is a `KeyError`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ballast_api.metric_declaring import Kind, Metric
from ballast_api.metrics import METRICS


def counter(name: str, registry: CollectorRegistry) -> Counter:
    """A counter in this registry."""
    metric = _of_kind(name, "counter")
    return Counter(_base(metric), metric.about, metric.labels, registry=registry)


def gauge(name: str, registry: CollectorRegistry, read: Callable[[], float] | None = None) -> Gauge:
    """A gauge in this registry; with `read`, read anew at each export."""
    metric = _of_kind(name, "gauge")
    made = Gauge(metric.name, metric.about, metric.labels, registry=registry)
    if read is not None:
        made.set_function(read)
    return made


def histogram(name: str, registry: CollectorRegistry, buckets: Sequence[float]) -> Histogram:
    """A histogram in this registry, with these upper bounds."""
    metric = _of_kind(name, "histogram")
    return Histogram(metric.name, metric.about, metric.labels, buckets=buckets, registry=registry)


def counters(name: str) -> CounterMetricFamily:
    """An empty family of counters, for a collector to fill at an export."""
    metric = _of_kind(name, "counter")
    return CounterMetricFamily(_base(metric), metric.about, labels=metric.labels)


def gauges(name: str) -> GaugeMetricFamily:
    """An empty family of gauges, for a collector to fill at an export."""
    metric = _of_kind(name, "gauge")
    return GaugeMetricFamily(metric.name, metric.about, labels=metric.labels)


def histograms(name: str) -> HistogramMetricFamily:
    """An empty family of histograms, for a collector to fill at an export."""
    metric = _of_kind(name, "histogram")
    return HistogramMetricFamily(metric.name, metric.about, labels=metric.labels)


def _of_kind(name: str, kind: Kind) -> Metric:
    metric = METRICS[name]
    if metric.kind != kind:
        raise ValueError(f"{name} is declared as a {metric.kind}")
    return metric


def _base(metric: Metric) -> str:
    return metric.name.removesuffix("_total")
