"""Prometheus metrics of each endpoint as the gateway sees it and as it believes it to be, and of their balance.

Computed at each export from the arrays that decisions use; requests cost nothing for them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ballast_api.metric_making import counters, gauges
from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.model_error import ModelError
from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, Role, Stage
from ballast_core.model.effects import Effect, Migrate
from ballast_gateway.observe.fleet import Fleet, Member

MOST_ENDPOINTS: Final = 500
"""Endpoints with series of their own, the first ones by id: an export of more would hold up streams."""


class EndpointMetrics(Collector):
    """A listener of the driver's effects. Registers itself."""

    def __init__(self, fleet: Fleet, director: Director, registry: CollectorRegistry) -> None:
        self._fleet = fleet
        self._director = director
        self._moves: Counter[tuple[EndpointId, str]] = Counter()
        """Ordered moves, by endpoint and direction."""
        registry.register(self)

    def effect(self, effect: Effect, now_s: float) -> None:
        """Count a move."""
        if type(effect) is Migrate:
            self._moves[effect.source.id, "out"] += 1
            self._moves[effect.target.id, "in"] += 1

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        known = self._known()
        members, slots = [member for member, _ in known], np.array([slot for _, slot in known], np.int64)
        ledger, beliefs = self._director.ledger, self._director.beliefs
        prefills, decodes = ledger.requests[Stage.PREFILL].take(slots), ledger.requests[Stage.DECODE].take(slots)
        kv_tokens = np.maximum(beliefs.hardware.kv_tokens(slots), 1.0)
        held = ledger.decoding_tokens.take(slots) + ledger.tokens[Stage.PREFILL].take(slots)
        learned = Belief.STEP_TIMES in beliefs.kinds
        predict_s = beliefs.step_times.predict_s if learned else beliefs.hardware.decode_step_s
        step_s = predict_s(
            slots,
            (ledger.decoding_requests.take(slots) + ledger.foreign.take(slots)).astype(np.float64),
            ledger.decoding_tokens.take(slots).astype(np.float64),
        )
        requests, waiting = gauges("ballast_gateway_endpoint_requests"), _of_endpoints("waiting_requests")
        usage, uncached = gauges("ballast_gateway_endpoint_kv_usage_ratio"), _of_endpoints("uncached_tokens")
        steps, preemptions = _of_endpoints("step_seconds"), counters("ballast_gateway_endpoint_preemptions_total")
        moves = counters("ballast_gateway_endpoint_moves_total")
        columns = zip(
            members,
            np.maximum(prefills, decodes).tolist(),
            (held / kv_tokens).tolist(),
            ledger.uncached_tokens.take(slots).tolist(),
            step_s.tolist(),
            strict=True,
        )
        for number, (member, believed, kv_ratio, uncached_tokens, seconds) in enumerate(columns):
            if number == MOST_ENDPOINTS:
                break
            endpoint, seen = member.endpoint, member.observation
            labels = endpoint.id, endpoint.pool, str(endpoint.role)
            requests.add_metric((*labels, "believed"), believed)
            usage.add_metric((*labels, "believed"), kv_ratio)
            uncached.add_metric(labels, uncached_tokens)
            if endpoint.role is not Role.PREFILL:
                steps.add_metric(labels, seconds)
                for direction in ("in", "out"):
                    moves.add_metric((*labels, direction), self._moves[endpoint.id, direction])
            if seen is not None:
                requests.add_metric((*labels, "seen"), seen.running + seen.waiting)
                waiting.add_metric(labels, seen.waiting)
                usage.add_metric((*labels, "seen"), seen.kv_usage_ratio)
                preemptions.add_metric(labels, seen.preemptions)
        decoding = [each.endpoint.role is not Role.PREFILL and each.state == "ready" for each in members]
        balance = _balance(step_s[np.array(decoding, np.bool_)])
        return [requests, waiting, usage, uncached, steps, preemptions, moves, *balance, *self._errors(known)]

    def _known(self) -> list[tuple[Member, int]]:
        """Discovered endpoints that the Director knows, with their slots, by id."""
        slot_of = self._director.inventory.slot_of
        members = sorted(self._fleet.members.values(), key=lambda member: member.endpoint.id)
        for name in [gone for gone in self._moves if gone[0] not in self._fleet.members]:
            del self._moves[name]
        return [(member, slot) for member in members if (slot := slot_of(member.endpoint.id)) is not None]

    def _errors(self, known: Iterable[tuple[Member, int]]) -> Iterable[Metric]:
        beliefs = self._director.beliefs
        of: dict[str, Callable[[int], ModelError]] = {}
        if Belief.PREFILL_TIMES in beliefs.kinds:
            of["prefill"] = beliefs.prefill_times.error
        if Belief.STEP_TIMES in beliefs.kinds:
            of["step"] = lambda slot: beliefs.step_times.model(slot).error
        found: defaultdict[tuple[str, str, str], list[ModelError]] = defaultdict(list)
        for member, slot in known:
            for quantity, error_of in of.items():
                error = error_of(slot)
                if error.observations:
                    found[member.endpoint.pool, str(member.endpoint.role), quantity].append(error)
        sizes, biases = (
            gauges("ballast_gateway_prediction_error_ratio"),
            gauges("ballast_gateway_prediction_bias_ratio"),
        )
        for labels, errors in sorted(found.items()):
            sizes.add_metric(labels, sum(each.median_ratio for each in errors) / len(errors))
            biases.add_metric(labels, sum(each.bias_ratio for each in errors) / len(errors))
        return [sizes, biases]


def _of_endpoints(name: str) -> GaugeMetricFamily:
    return gauges(f"ballast_gateway_endpoint_{name}")


def _balance(step_s: FloatArray) -> Iterable[Metric]:
    """Of the step times of ready decode endpoints; nothing without any."""
    variance = gauges("ballast_gateway_decode_step_seconds_variance")
    largest = gauges("ballast_gateway_decode_step_max_to_mean_ratio")
    if len(step_s):
        mean_s = float(step_s.mean())
        variance.add_metric((), float(step_s.var()))
        largest.add_metric((), float(step_s.max()) / mean_s if mean_s > 0 else 1.0)
    return [variance, largest]
