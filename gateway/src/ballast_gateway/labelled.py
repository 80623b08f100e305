"""A registry whose series have labels that say whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector


class Labelled(Collector):
    """The metrics of another registry, each series with these labels besides its own."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = dict(labels)

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            yield labelled(metric, self._labels)


def labelled(metric: Metric, labels: Mapping[str, str]) -> Metric:
    """The same metric, each series with these labels besides its own."""
    made = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    made.samples = [sample._replace(labels={**sample.labels, **labels}) for sample in metric.samples]
    return made
