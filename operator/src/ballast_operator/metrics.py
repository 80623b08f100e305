"""The operator's own metrics: looks by result and time, and of each ServingPool its conditions and instances."""

from __future__ import annotations

import threading

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from ballast_operator.kinds import Manifest

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_INSTANCES = {"wanted": "replicas", "ready": "readyReplicas", "updated": "updatedReplicas"}


class OperatorMetrics:
    """Those of one process. Its methods are called from several threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._looks = Counter(
            "ballast_operator_looks_total",
            "Looks by kind and result: done, refused (an object could not be written), failed (tried again as a whole)",
            ["kind", "result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "ballast_operator_look_seconds", "Time of one look", ["kind"], buckets=_SECONDS, registry=self.registry
        )
        self._conditions = Gauge(
            "ballast_operator_condition",
            "1 for the status that a condition of a ServingPool has",
            ["namespace", "serving_pool", "type", "status", "reason"],
            registry=self.registry,
        )
        self._instances = Gauge(
            "ballast_operator_instances",
            "Instances of a pool: wanted, ready, and updated to the newest revision",
            ["namespace", "serving_pool", "pool", "count"],
            registry=self.registry,
        )
        self._lock = threading.Lock()
        self._shown: dict[tuple[str, str], tuple[set[tuple[str, ...]], set[tuple[str, ...]]]] = {}
        """Labels of conditions and instances that a ServingPool has."""

    def serve(self, port: int) -> None:
        """Answer `/metrics` on this port, in a thread, as long as the process lives."""
        start_http_server(port, registry=self.registry)

    def looked(self, kind: str, result: str, seconds: float) -> None:
        """A look is over."""
        self._looks.labels(kind, result).inc()
        self._seconds.labels(kind).observe(seconds)

    def said(self, namespace: str, name: str, status: Manifest | None) -> None:
        """The status of a ServingPool after a look; None when it is gone."""
        conditions = {
            (namespace, name, each["type"], each["status"], each.get("reason", "")): 1.0
            for each in (status or {}).get("conditions") or ()
        }
        instances = {
            (namespace, name, pool["name"], count): float(pool.get(field, 0))
            for pool in (status or {}).get("pools") or ()
            for count, field in _INSTANCES.items()
        }
        with self._lock:
            before = self._shown.pop((namespace, name), (set(), set()))
            if status is not None:
                self._shown[namespace, name] = (set(conditions), set(instances))
            for gauge, now, old in ((self._conditions, conditions, before[0]), (self._instances, instances, before[1])):
                for labels in old - now.keys():
                    gauge.remove(*labels)
                for labels, value in now.items():
                    gauge.labels(*labels).set(value)
