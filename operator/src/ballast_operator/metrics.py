"""The operator's own metrics: looks by result and time, and of each ServingPool its conditions and instances."""

from __future__ import annotations

import threading

from prometheus_client import CollectorRegistry, Counter, start_http_server

from ballast_api.metric_making import counter, gauge, histogram
from ballast_core.policies.scaling.protocol import Decision
from ballast_operator.kinds import REFERRED, SERVING_POOL, Manifest
from ballast_operator.scaling.steered import Steered

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_INSTANCES = {"wanted": "replicas", "ready": "readyReplicas", "updated": "updatedReplicas"}


class OperatorMetrics:
    """Those of one process. Its methods are called from several threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._looks = counter("ballast_operator_looks_total", self.registry)
        self._seconds = histogram("ballast_operator_look_seconds", self.registry, _SECONDS)
        self._conditions = gauge("ballast_operator_condition", self.registry)
        self._instances = gauge("ballast_operator_instances", self.registry)
        self._asked = gauge("ballast_operator_scaling_instances", self.registry)
        self._decisions = counter("ballast_operator_scaling_decisions_total", self.registry)
        self._rehearsals = counter("ballast_operator_rehearsals_total", self.registry)
        self._rehearsal_seconds = histogram("ballast_operator_rehearsal_seconds", self.registry, _SECONDS)
        self._set_back = counter("ballast_operator_edits_reverted_total", self.registry)
        self._lock = threading.Lock()
        self._advised: dict[tuple[str, str], set[tuple[str, ...]]] = {}
        self._shown: dict[tuple[str, str], tuple[set[tuple[str, ...]], set[tuple[str, ...]]]] = {}
        """Labels of conditions and instances that a ServingPool has."""
        self._counted: dict[tuple[str, str], set[tuple[Counter, tuple[str, ...]]]] = {}
        """Counters of a ServingPool, with their labels; they go with it."""

    def serve(self, port: int) -> None:
        """Answer `/metrics` on this port, in a thread, as long as the process lives."""
        start_http_server(port, registry=self.registry)

    def begins(self) -> None:
        """This process works: its looks count from 0, so that one without a ServingPool is known from none."""
        for kind in (SERVING_POOL, *REFERRED):
            for result in ("done", "refused", "failed"):
                self._looks.labels(kind.kind, result)

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
            for shown, now, old in ((self._conditions, conditions, before[0]), (self._instances, instances, before[1])):
                for labels in old - now.keys():
                    shown.remove(*labels)
                for labels, value in now.items():
                    shown.labels(*labels).set(value)
            if status is None:
                self._uncount((namespace, name))

    def _count(self, count: Counter, name: tuple[str, str], label: str) -> None:
        """One more of a ServingPool."""
        with self._lock:
            count.labels(*name, label).inc()
            self._counted.setdefault(name, set()).add((count, (*name, label)))

    def _uncount(self, name: tuple[str, str]) -> None:
        """Its counters go. Called with the lock."""
        for count, labels in self._counted.pop(name, ()):
            count.remove(*labels)

    def set_back(self, namespace: str, name: str, kind: str) -> None:
        """A foreign edit of an object of a ServingPool was set back."""
        self._count(self._set_back, (namespace, name), kind)

    def rehearsed(self, name: tuple[str, str], outcome: str, seconds: float | None) -> None:
        """A rehearsal is over; without seconds: it was not begun."""
        self._count(self._rehearsals, name, outcome)
        if seconds is not None:
            self._rehearsal_seconds.observe(seconds)

    def decided(self, name: tuple[str, str], of: Steered | None, decision: Decision | None) -> None:
        """A round of scaling is over, without a decision where a gateway was silent. `of` is None when it is over for
        good."""
        if of is not None:
            self._count(self._decisions, name, "Waiting" if decision is None else decision.reason)
            if decision is None:
                return
        asked = {
            (*name, pool.name, stage): float(count)
            for pool, counts in (() if of is None or decision is None else zip(of.pools, decision.target, strict=True))
            for stage, count in (("prefill", counts.prefill), ("decode", counts.decode))
        }
        with self._lock:
            for labels in self._advised.pop(name, set()) - asked.keys():
                self._asked.remove(*labels)
            if of is not None:
                self._advised[name] = set(asked)
            elif name not in self._shown:
                self._uncount(name)  # this round may have been under way when the ServingPool went
            for labels, value in asked.items():
                self._asked.labels(*labels).set(value)
