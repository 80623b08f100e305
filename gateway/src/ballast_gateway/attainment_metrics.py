"""Prometheus metrics of attainment, read anew at each export: nothing is done for them while requests pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ballast_gateway.attainment import Attainment

_RESULTS: Final = ("within", "outside", "unknown")


class AttainmentMetrics(Collector):
    """Counters of each objective: at most 16, with twelve series each."""

    def __init__(self, attainment: Attainment, registry: CollectorRegistry) -> None:
        self._attainment = attainment
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        requests = CounterMetricFamily(
            "ballast_gateway_objective_requests",
            "Requests that have ended, by what they were against the objective of their class.",
            labels=("objective", "threshold", "result"),
        )
        targets = GaugeMetricFamily(
            "ballast_gateway_objective_target_ratio",
            "Share of requests that must meet every threshold.",
            labels=("objective",),
        )
        for objective, totals in self._attainment.totals():
            targets.add_metric((objective.name,), objective.target)
            for threshold in objective.thresholds:
                for number, result in enumerate(_RESULTS):
                    labels = (objective.name, threshold.name.lower(), result)
                    requests.add_metric(labels, totals[3 * threshold + number])
        return [requests, targets]
