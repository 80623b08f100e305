"""Prometheus metrics of what tenants use; they exist where keys are checked."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ballast_api.metric_making import counters
from ballast_gateway.keys import KeyRing


class KeyMetrics(Collector):
    """Registers itself. Each gateway counts what it let in itself, so sums over gateways are the fleet's."""

    def __init__(self, keys: KeyRing, registry: CollectorRegistry) -> None:
        self._keys = keys
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        requests = counters("ballast_gateway_tenant_requests_total")
        prompts = counters("ballast_gateway_tenant_prompt_tokens_total")
        outputs = counters("ballast_gateway_tenant_output_tokens_total")
        refused = counters("ballast_gateway_tenant_refused_total")
        for name, used in self._keys.usage().items():
            requests.add_metric((name,), used.requests)
            prompts.add_metric((name,), used.prompt_tokens)
            outputs.add_metric((name,), used.output_tokens)
            refused.add_metric((name, "in-flight"), used.too_many)
            refused.add_metric((name, "tokens"), used.overdrawn)
        yield from (requests, prompts, outputs, refused)
