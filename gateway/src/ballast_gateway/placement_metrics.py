"""Prometheus metrics of placements and of what waits for one: plain counts, made into metrics at each export."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ballast_api.metric_making import counters, gauges
from ballast_core.directing.director import Director
from ballast_core.model import Stage
from ballast_core.model.effects import Dispatch, Effect, Handoff


class PlacementMetrics(Collector):
    """A listener of the driver's effects. Registers itself."""

    def __init__(
        self,
        director: Director,
        registry: CollectorRegistry,
        *,
        now_s: Callable[[], float],
        objectives: Callable[[], Iterable[str]],
    ) -> None:
        """`objectives`: names of those in force; their series exist while nothing waits, too."""
        self._director = director
        self._objectives = objectives
        self._entry_of = director.ledger.get
        self._now_s = now_s
        self._placements: Counter[tuple[Stage, str]] = Counter()
        self._hit = self._missed = 0
        registry.register(self)

    def effect(self, effect: Effect, now_s: float) -> None:
        """Count a placement."""
        if type(effect) is Dispatch:
            entry = self._entry_of(effect.request_id)
            if entry is not None:
                plan = entry.prefill
                self._hit += plan.cached_tokens
                self._missed += plan.uncached_tokens
        elif type(effect) is not Handoff:
            return
        for trace in effect.traces:
            self._placements[trace.stage, trace.policy] += 1

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        placements = counters("ballast_gateway_placements_total")
        for (stage, policy), count in sorted(self._placements.items()):
            placements.add_metric((str(stage), policy), count)
        tokens = counters("ballast_gateway_placed_prompt_tokens_total")
        tokens.add_metric(("hit",), self._hit)
        tokens.add_metric(("miss",), self._missed)
        return [placements, tokens, *self._judged(), *self._waiting()]

    def _judged(self) -> Iterable[Metric]:
        hindsight = self._director.beliefs.hindsight
        judged, regret = (
            counters("ballast_gateway_judged_prefills_total"),
            counters("ballast_gateway_regret_seconds_total"),
        )
        judged.add_metric((), hindsight.judged)
        regret.add_metric((), hindsight.regret_s)
        seconds = counters("ballast_gateway_judged_prefill_seconds_total")
        for estimate in ("predicted", "observed", "other"):
            seconds.add_metric((estimate,), getattr(hindsight, f"{estimate}_s"))
        return [judged, seconds, regret]

    def _waiting(self) -> Iterable[Metric]:
        now_s = self._now_s()
        classes = dict.fromkeys(self._objectives(), (0, now_s)) | {"": (0, now_s)}
        for waiting in self._director.queue.waiting.values():
            entry = waiting.entry
            count, oldest_s = classes.get(entry.request.objective, (0, now_s))
            classes[entry.request.objective] = count + 1, min(oldest_s, entry.arrived_s)
        lengths = gauges("ballast_gateway_objective_waiting_requests")
        ages = gauges("ballast_gateway_objective_oldest_wait_seconds")
        for objective, (count, oldest_s) in sorted(classes.items()):
            lengths.add_metric((objective,), count)
            ages.add_metric((objective,), now_s - oldest_s)
        return [lengths, ages]
