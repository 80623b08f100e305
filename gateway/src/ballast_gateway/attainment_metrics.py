"""Prometheus metrics of attainment, read anew at each export: nothing is done for them while requests pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ballast_api.metric_making import counters, gauges
from ballast_gateway.attainment import Attainment

_RESULTS: Final = ("within", "outside", "unknown")


class AttainmentMetrics(Collector):
    """Counters of each objective: at most 16, with twelve series each."""

    def __init__(self, attainment: Attainment, registry: CollectorRegistry) -> None:
        self._attainment = attainment
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        requests = counters("ballast_gateway_objective_requests_total")
        targets = gauges("ballast_gateway_objective_target_ratio")
        for objective, totals in self._attainment.totals():
            targets.add_metric((objective.name,), objective.target)
            for threshold in objective.thresholds:
                for number, result in enumerate(_RESULTS):
                    labels = (objective.name, threshold.name.lower(), result)
                    requests.add_metric(labels, totals[3 * threshold + number])
        return [requests, targets]
