"""Prometheus metrics of requests and of what the gateway does for them. `ballast_api.metrics` declares them all."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ballast_api.metric_making import gauge, gauges
from ballast_core.directing.director import Director
from ballast_core.model import Endpoint, Fault, RejectReason, ShedCause, Stage
from ballast_core.model.effects import Dispatch, Effect, Handoff, Leave, PulseChanged, Reject
from ballast_core.model.life_signs import Pulse
from ballast_core.state.health import EJECTED_BY, Health, HealthChange, HealthState
from ballast_gateway.observe.fleet import Fleet, Member
from ballast_gateway.records import MoveOutcome, RequestRecord
from ballast_gateway.tallies import Spreads, Tallies
from ballast_gateway.view.fleet_view import FleetView

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_GAPS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
_DECISIONS = (0.00002, 0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.05)


class Metrics:
    """Listens to the driver's effects, to ended requests and to scrapes. One per process and registry."""

    def __init__(self, registry: CollectorRegistry, *, in_flight: Callable[[], int]) -> None:
        self.registry = registry
        self._requests = Tallies("ballast_gateway_requests_total", registry)
        self._ttft = Spreads("ballast_gateway_time_to_first_token_seconds", registry, _SECONDS)
        parts = Spreads("ballast_gateway_time_to_first_token_part_seconds", registry, _SECONDS)
        self._wait, self._prefill, self._decode = (parts.labels(part) for part in ("wait", "prefill", "decode"))
        self._tpot = Spreads("ballast_gateway_time_per_output_token_seconds", registry, _GAPS)
        self._e2e = Spreads("ballast_gateway_request_duration_seconds", registry, _SECONDS)
        self._prompt = Tallies("ballast_gateway_prompt_tokens_total", registry)
        self._output = Tallies("ballast_gateway_output_tokens_total", registry)
        self._decisions = Spreads("ballast_gateway_decision_seconds", registry, _DECISIONS)
        self._dispatches = Tallies("ballast_gateway_dispatches_total", registry)
        self._handoffs = Tallies("ballast_gateway_handoffs_total", registry)
        self._retries = Tallies("ballast_gateway_retries_total", registry)
        self._failed_legs = Tallies("ballast_gateway_failed_legs_total", registry)
        self._ejections = Tallies("ballast_gateway_ejections_total", registry)
        self._migrations = Tallies("ballast_gateway_migrations_total", registry)
        self._pauses = Spreads("ballast_gateway_migration_pause_seconds", registry, _GAPS)
        self._rescues = Tallies("ballast_gateway_rescues_total", registry)
        self._cuts = Tallies("ballast_gateway_cuts_total", registry)
        self._rejections = Tallies("ballast_gateway_rejections_total", registry)
        self._shed = Tallies("ballast_gateway_shed_total", registry)
        self._pulses = Tallies("ballast_gateway_watch_changes_total", registry)
        self._left = Tallies("ballast_gateway_legs_left_total", registry)
        self._scrape_failures = Tallies("ballast_gateway_scrape_failures_total", registry)
        known: tuple[tuple[Tallies, Iterable[str]], ...] = (
            (self._failed_legs, Fault),
            (self._ejections, EJECTED_BY),
            (self._migrations, MoveOutcome),
            (self._cuts, ("planned", "used")),
            (self._rejections, set(RejectReason) - {RejectReason.UPSTREAM_REFUSED}),
            (self._shed, ShedCause),
            (self._pulses, Pulse),
        )
        for each, values in known:  # a series must exist, at zero, before an alert can count its increase
            for value in values:
                each.labels(str(value))
        gauge("ballast_gateway_requests_in_flight", registry, in_flight)
        gauge("ballast_gateway_build_info", registry).labels(version("ballast")).set(1)
        ProcessCollector(registry=registry)

    def effect(self, effect: Effect, now_s: float) -> None:
        """An effect listener of the driver."""
        match effect:
            case Dispatch(prefill=prefill, decode=decode, segments=segments):
                if segments:
                    self._cuts.labels("planned").inc()
                if prefill is not None:
                    self._dispatched(Stage.PREFILL, prefill)
                self._dispatched(Stage.DECODE, decode)
            case Handoff():
                self._handoffs.inc()
            case Reject(reason=RejectReason.UPSTREAM_REFUSED):
                pass  # the client's fault: its request counts as invalid
            case Reject(reason=reason, cause=cause):
                self._rejections.labels(str(reason)).inc()
                if cause is not None:
                    self._shed.labels(str(cause)).inc()
            case Leave():
                self._left.inc()
            case PulseChanged(pulse=pulse):
                self._pulses.labels(str(pulse)).inc()
            case _:
                pass

    def decision(self, seconds: float) -> None:
        """Record the Director's wall time, in seconds, for an event that had effects."""
        self._decisions.observe(seconds)

    def request(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        model = record.model
        self._requests.labels(model, record.outcome, record.reason).inc()
        if record.retries:
            self._retries.inc(record.retries)
        for fault in record.faults:
            self._failed_legs.labels(str(fault)).inc()
        for move in record.moves:
            self._migrations.labels(str(move.outcome)).inc()
            if move.pause_s is not None:
                self._pauses.observe(move.pause_s)
        if record.rescues:
            self._rescues.inc(record.rescues)
        if record.cut_tokens:
            self._cuts.labels("used").inc()
        if not record.dispatches:
            return
        self._prompt.labels(model).inc(record.prompt_tokens)
        self._output.labels(model).inc(record.output_tokens)
        ttft, tpot, e2e = self._ttft.labels(model), self._tpot.labels(model), self._e2e.labels(model)
        if record.ttft_s is not None:
            ttft.observe(record.ttft_s)
            self._taken_apart(record)
        if record.outcome == "completed":
            e2e.observe(record.e2e_s)
            if record.tpot_s is not None:
                tpot.observe(record.tpot_s)

    def _taken_apart(self, record: RequestRecord) -> None:
        """The parts of its time to first token."""
        dispatched_s, first_token_s = record.dispatched_s, record.first_token_s
        if dispatched_s is None or first_token_s is None:
            return
        self._wait.observe(dispatched_s - record.arrived_s)
        decodes_from_s = dispatched_s
        if record.prefilled_s is not None and record.prefilled_s <= first_token_s:
            self._prefill.observe(record.prefilled_s - dispatched_s)
            decodes_from_s = record.prefilled_s
        self._decode.observe(first_token_s - decodes_from_s)

    def scrape_failed(self, member: Member) -> None:
        """Count a failed scrape."""
        self._scrape_failures.labels(member.endpoint.pool, str(member.endpoint.role)).inc()

    def watch_fleet(self, fleet: Fleet, now_s: Callable[[], float]) -> None:
        """Export the state of the fleet, read anew at each export."""
        self.registry.register(_FleetCollector(fleet, now_s))

    def health_changed(self, change: HealthChange) -> None:
        """Count an ejection."""
        if change.state is HealthState.EJECTED:
            self._ejections.labels(change.cause).inc()

    def watch_queue(self, director: Director) -> None:
        """Export what waits, and what others have in flight, read anew at each export."""
        gauge("ballast_gateway_requests_followed", self.registry, lambda: director.ledger.adopted)
        gauge("ballast_gateway_requests_waiting", self.registry, lambda: len(director.queue))
        gauge("ballast_gateway_expected_wait_seconds", self.registry, lambda: director.expected_wait_s)

    def watch_health(self, director: Director, now_s: Callable[[], float]) -> None:
        """Export the health of endpoints and the retry budget, read anew at each export."""
        self.registry.register(_HealthCollector(director.health))
        gauge("ballast_gateway_retry_budget", self.registry, lambda: director.outcomes.retries_left(now_s()))

    def watch_view(self, view: FleetView) -> None:
        """Export what this gateway sees of its fleet, read anew at each export."""
        reads: dict[str, Callable[[], float]] = {
            "leads": lambda: float(view.leads),
            "agents": lambda: float(view.connected()[0]),
            "peers": lambda: float(view.connected()[1]),
            "oldest_source_seconds": view.oldest_s,
        }
        for name, read in reads.items():
            gauge(f"ballast_gateway_view_{name}", self.registry, read)

    def _dispatched(self, stage: Stage, endpoint: Endpoint) -> None:
        self._dispatches.labels(str(stage), str(endpoint.role), endpoint.pool).inc()


class _HealthCollector(Collector):
    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterable[Metric]:
        counts = Tally(self._health.states())
        found = gauges("ballast_gateway_endpoint_health")
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
        endpoints = gauges("ballast_gateway_endpoints")
        for labels, count in sorted(counts.items()):
            endpoints.add_metric(labels, count)
        now_s = self._now_s()
        oldest: dict[tuple[str, str], float] = {}
        for member in members:
            if member.observation is not None:
                key = (member.endpoint.pool, str(member.endpoint.role))
                oldest[key] = max(oldest.get(key, 0.0), now_s - member.observation.observed_at_s)
        ages = gauges("ballast_gateway_observation_age_seconds")
        for labels_, age_s in sorted(oldest.items()):
            ages.add_metric(labels_, age_s)
        return [endpoints, ages]
