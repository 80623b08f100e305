"""Prometheus metrics of the engines' KV events; they exist where these are listened to."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ballast_api.metric_making import counters, gauges
from ballast_core.beliefs.reported_prefixes import ReportedPrefixes
from ballast_gateway.observe.fleet import Fleet
from ballast_gateway.observe.kv_counts import KvCounts


class KvMetrics(Collector):
    """Registers itself."""

    def __init__(self, counts: KvCounts, reported: ReportedPrefixes, fleet: Fleet, registry: CollectorRegistry) -> None:
        self._counts = counts
        self._reported = reported
        self._fleet = fleet
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        counts = self._counts
        yield _counter("ballast_gateway_kv_batches_total", counts.batches)
        yield _counter("ballast_gateway_kv_unreadable_total", counts.unreadable)
        gaps = counters("ballast_gateway_kv_gaps_total")
        gaps.add_metric(("filled",), counts.gaps_filled)
        gaps.add_metric(("unfilled",), counts.gaps_unfilled)
        yield gaps
        known = [self._reported.known(endpoint_id) for endpoint_id in self._fleet.members]
        caches = gauges("ballast_gateway_kv_endpoints")
        complete = sum(each is not None and each.complete for each in known)
        caches.add_metric(("complete",), complete)
        caches.add_metric(("partial",), len(known) - complete)
        yield caches
        blocks = gauges("ballast_gateway_kv_blocks")
        blocks.add_metric((), sum(each.blocks for each in known if each is not None))
        yield blocks


def _counter(name: str, value: int) -> Metric:
    made = counters(name)
    made.add_metric((), value)
    return made
