"""Prometheus metrics of the gateway. docs/gateway.md explains what it means when each of them moves."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ballast_core.directing.director import Director
from ballast_core.model import Endpoint, Fault, RejectReason, ShedCause, Stage
from ballast_core.model.effects import Dispatch, Effect, Handoff, Leave, PulseChanged, Reject
from ballast_core.model.life_signs import Pulse
from ballast_core.state.health import EJECTED_BY, Health, HealthChange, HealthState
from ballast_gateway.observe.fleet import Fleet, Member
from ballast_gateway.records import MoveOutcome, RequestRecord
from ballast_gateway.view.fleet_view import FleetView

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_GAPS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
_DECISIONS = (0.00002, 0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.05)


class Metrics:
    """Listens to the driver's effects, to ended requests and to scrapes. One per process and registry."""

    def __init__(self, registry: CollectorRegistry, *, in_flight: Callable[[], int]) -> None:
        self.registry = registry
        self._requests = Counter(
            "ballast_gateway_requests", "Requests that have ended.", ("model", "outcome", "reason"), registry=registry
        )
        self._ttft = _histogram(registry, "time_to_first_token", "Arrival to first token of streams.", _SECONDS)
        self._tpot = _histogram(
            registry, "time_per_output_token", "Mean gap between tokens after the first, by stream.", _GAPS
        )
        self._e2e = _histogram(registry, "request_duration", "Arrival to end of completed requests.", _SECONDS)
        self._prompt = Counter(
            "ballast_gateway_prompt_tokens", "Prompt tokens, estimated for text.", ("model",), registry=registry
        )
        self._output = Counter("ballast_gateway_output_tokens", "Output tokens.", ("model",), registry=registry)
        self._decisions = Histogram(
            "ballast_gateway_decision_seconds",
            "Wall time of the Director for an event that had effects.",
            buckets=_DECISIONS,
            registry=registry,
        )
        self._dispatches = Counter(
            "ballast_gateway_dispatches", "Legs placed on an endpoint.", ("stage", "role", "pool"), registry=registry
        )
        self._handoffs = Counter(
            "ballast_gateway_handoffs",
            "Second looks at the decode endpoint when prefill had ended (late binding).",
            registry=registry,
        )
        self._retries = Counter(
            "ballast_gateway_retries", "Requests sent to another endpoint after a leg failed.", registry=registry
        )
        self._failed_legs = Counter(
            "ballast_gateway_failed_legs", "Legs that failed, by what the engine did.", ("fault",), registry=registry
        )
        for fault in Fault:
            self._failed_legs.labels(str(fault))
        self._ejections = Counter(
            "ballast_gateway_ejections",
            "Endpoints that were ejected, by what showed it.",
            ("cause",),
            registry=registry,
        )
        for cause in EJECTED_BY:
            self._ejections.labels(cause)
        self._migrations = Counter(
            "ballast_gateway_migrations",
            "Orders to move a running decode, by outcome.",
            ("outcome",),
            registry=registry,
        )
        for outcome in MoveOutcome:
            self._migrations.labels(str(outcome))
        self._pauses = Histogram(
            "ballast_gateway_migration_pause_seconds",
            "From the cut of a stream to the target's first token.",
            buckets=_GAPS,
            registry=registry,
        )
        self._rescues = Counter(
            "ballast_gateway_rescues",
            "Streams that went on at another endpoint after theirs failed.",
            registry=registry,
        )
        self._rejections = Counter(
            "ballast_gateway_rejections", "Requests that got no endpoint.", ("reason",), registry=registry
        )
        for reason in set(RejectReason) - {RejectReason.UPSTREAM_REFUSED}:
            self._rejections.labels(str(reason))  # a series must exist, at zero, before an alert can count its increase
        self._shed = Counter(
            "ballast_gateway_shed",
            "Requests rejected as saturated, by what made them one too many.",
            ("cause",),
            registry=registry,
        )
        for cause in ShedCause:
            self._shed.labels(str(cause))
        self._pulses = Counter(
            "ballast_gateway_watch_changes",
            "Endpoints that the progress watch began to think otherwise of.",
            ("pulse",),
            registry=registry,
        )
        for pulse in Pulse:
            self._pulses.labels(str(pulse))
        self._left = Counter(
            "ballast_gateway_legs_left", "Legs that were left because their engine was silent.", registry=registry
        )
        self._scrape_failures = Counter(
            "ballast_gateway_scrape_failures", "Failed scrapes of endpoints.", ("pool", "role"), registry=registry
        )
        Gauge("ballast_gateway_requests_in_flight", "Requests in the ledger.", registry=registry).set_function(
            in_flight
        )
        Gauge("ballast_gateway_build_info", "Always 1.", ("version",), registry=registry).labels(
            version("ballast")
        ).set(1)
        ProcessCollector(registry=registry)
        self._children: dict[tuple[str, ...], Counter] = {}
        self._by_model: dict[str, tuple[Histogram, Histogram, Histogram, Counter, Counter]] = {}

    def effect(self, effect: Effect, now_s: float) -> None:
        """An effect listener of the driver."""
        match effect:
            case Dispatch(prefill=prefill, decode=decode):
                if prefill is not None:
                    self._dispatched(Stage.PREFILL, prefill)
                self._dispatched(Stage.DECODE, decode)
            case Handoff():
                self._handoffs.inc()
            case Reject(reason=RejectReason.UPSTREAM_REFUSED):
                pass  # the client's fault: its request counts as invalid
            case Reject(reason=reason, cause=cause):
                self._child(self._rejections, str(reason)).inc()
                if cause is not None:
                    self._child(self._shed, str(cause)).inc()
            case Leave():
                self._left.inc()
            case PulseChanged(pulse=pulse):
                self._child(self._pulses, str(pulse)).inc()
            case _:
                pass

    def decision(self, seconds: float) -> None:
        """Record the Director's wall time, in seconds, for an event that had effects."""
        self._decisions.observe(seconds)

    def request(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        model = record.model
        self._child(self._requests, model, record.outcome, record.reason).inc()
        if record.retries:
            self._retries.inc(record.retries)
        for fault in record.faults:
            self._child(self._failed_legs, str(fault)).inc()
        for move in record.moves:
            self._child(self._migrations, str(move.outcome)).inc()
            if move.pause_s is not None:
                self._pauses.observe(move.pause_s)
        if record.rescues:
            self._rescues.inc(record.rescues)
        if not record.dispatches:
            return
        ttft, tpot, e2e, prompt, output = self._of_model(model)
        prompt.inc(record.prompt_tokens)
        output.inc(record.output_tokens)
        if record.ttft_s is not None:
            ttft.observe(record.ttft_s)
        if record.outcome == "completed":
            e2e.observe(record.e2e_s)
            if record.tpot_s is not None:
                tpot.observe(record.tpot_s)

    def scrape_failed(self, member: Member) -> None:
        """Count a failed scrape."""
        self._child(self._scrape_failures, member.endpoint.pool, str(member.endpoint.role)).inc()

    def watch_fleet(self, fleet: Fleet, now_s: Callable[[], float]) -> None:
        """Export the state of the fleet, read anew at each export."""
        self.registry.register(_FleetCollector(fleet, now_s))

    def health_changed(self, change: HealthChange) -> None:
        """Count an ejection."""
        if change.state is HealthState.EJECTED:
            self._child(self._ejections, change.cause).inc()

    def watch_queue(self, director: Director) -> None:
        """Export what waits, read anew at each export."""
        Gauge(
            "ballast_gateway_requests_waiting", "Requests that wait for capacity.", registry=self.registry
        ).set_function(lambda: len(director.queue))
        Gauge(
            "ballast_gateway_expected_wait_seconds",
            "Expected time until what waits now has been dispatched.",
            registry=self.registry,
        ).set_function(lambda: director.expected_wait_s)

    def watch_health(self, director: Director, now_s: Callable[[], float]) -> None:
        """Export the health of endpoints and the retry budget, read anew at each export."""
        self.registry.register(_HealthCollector(director.health))
        Gauge(
            "ballast_gateway_retry_budget", "Retries that are allowed at the moment.", registry=self.registry
        ).set_function(lambda: director.outcomes.retries_left(now_s()))

    def watch_view(self, view: FleetView) -> None:
        """Export what this gateway sees of its fleet, read anew at each export."""
        gauges = {
            "leads": ("Whether this gateway runs the rounds of moves of its fleet.", lambda: float(view.leads)),
            "agents": ("Agents of pods that are heard.", lambda: float(view.connected()[0])),
            "peers": ("Other gateways that are heard.", lambda: float(view.connected()[1])),
            "oldest_source_seconds": ("Age of what the most silent source said last.", view.oldest_s),
        }
        for name, (text, read) in gauges.items():
            Gauge(f"ballast_gateway_view_{name}", text, registry=self.registry).set_function(read)

    def _dispatched(self, stage: Stage, endpoint: Endpoint) -> None:
        self._child(self._dispatches, str(stage), str(endpoint.role), endpoint.pool).inc()

    def _child(self, counter: Counter, *labels: str) -> Counter:
        """A cache: `labels()` validates on each call, and the byte path uses the same few labels again and again."""
        key = (counter._name, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = counter.labels(*labels)
        return child

    def _of_model(self, model: str) -> tuple[Histogram, Histogram, Histogram, Counter, Counter]:
        found = self._by_model.get(model)
        if found is None:
            found = self._by_model[model] = (
                self._ttft.labels(model),
                self._tpot.labels(model),
                self._e2e.labels(model),
                self._prompt.labels(model),
                self._output.labels(model),
            )
        return found


class _HealthCollector(Collector):
    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterable[Metric]:
        counts = Tally(self._health.states())
        found = GaugeMetricFamily(
            "ballast_gateway_endpoint_health",
            "Ready endpoints by the outcomes of their legs.",
            labels=("role", "state"),
        )
        for (role, state), count in sorted(counts.items()):
            found.add_metric((str(role), str(state)), count)
        return [found]


class _FleetCollector(Collector):
    def __init__(self, fleet: Fleet, now_s: Callable[[], float]) -> None:
        self._fleet = fleet
        self._now_s = now_s

    def collect(self) -> Iterable[Metric]:
        members = list(self._fleet.members.values())
        counts = Tally((m.endpoint.pool, str(m.endpoint.role), m.state) for m in members)
        endpoints = GaugeMetricFamily(
            "ballast_gateway_endpoints", "Endpoints that discovery knows.", labels=("pool", "role", "state")
        )
        for labels, count in sorted(counts.items()):
            endpoints.add_metric(labels, count)
        now_s = self._now_s()
        oldest: dict[tuple[str, str], float] = {}
        for member in members:
            if member.observation is not None:
                key = (member.endpoint.pool, str(member.endpoint.role))
                oldest[key] = max(oldest.get(key, 0.0), now_s - member.observation.observed_at_s)
        ages = GaugeMetricFamily(
            "ballast_gateway_observation_age_seconds",
            "Age of the oldest last observation.",
            labels=("pool", "role"),
        )
        for labels_, age_s in sorted(oldest.items()):
            ages.add_metric(labels_, age_s)
        return [endpoints, ages]


def _histogram(registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"ballast_gateway_{name}_seconds", text, ("model",), buckets=buckets, registry=registry)
