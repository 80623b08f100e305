"""Prometheus metrics of the gateway's own certificates; they exist where TLS may be spoken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ballast_api.metric_making import counters, gauges
from ballast_gateway.tls.certificates import Tls


class TlsMetrics(Collector):
    """Registers itself. `faces`: what each speaks."""

    def __init__(self, faces: Mapping[str, Tls], registry: CollectorRegistry) -> None:
        self._faces = faces
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        reloads = counters("ballast_gateway_tls_reloads_total")
        refused = counters("ballast_gateway_tls_refused_total")
        expiry = gauges("ballast_gateway_tls_certificate_expiry_timestamp_seconds")
        for face, tls in self._faces.items():
            shown = tls.certificates
            for outcome, count in shown.reloads.items():
                reloads.add_metric((face, outcome), count)
            for reason, count in shown.refused.items():
                refused.add_metric((face, reason), count)
            if shown.expires_unix_s is not None:
                expiry.add_metric((face,), shown.expires_unix_s)
        yield from (reloads, refused, expiry)
