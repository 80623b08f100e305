"""What a controller can measure of a run: counts, lengths and outcomes that gateways know, and scraped gauges."""

from __future__ import annotations

from dataclasses import replace

from ballast_core.attainment import Counts
from ballast_core.policies.scaling.measuring import Seen, lengths_of
from ballast_core.policies.scaling.protocol import Attained, Pool, Traffic
from ballast_sim.simulation.autoscaling.instances import Instances
from ballast_sim.simulation.autoscaling.settings import Autoscaling
from ballast_sim.simulation.figures.results import meets
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.requests.records import Record

CLASS = "default"
"""All requests of a run are of one class."""
FORGET_S = 60.0
"""Ends of requests count in attainment for so long."""
LENGTHS_S = 45.0
"""Lengths are those of requests that arrived so lately, so that a shift of the mix shows soon."""
LEAST_REQUESTS = 30
"""But of so many at least, where the window has them."""


class Meter:
    """Measures a fleet at the times at which it is asked."""

    def __init__(self, fleet: Fleet, objective: Objective, settings: Autoscaling) -> None:
        """The fleet is loaded already."""
        self._fleet = fleet
        self._objective = objective
        self._settings = settings
        self.recent: list[Record] = []
        """Requests that arrived within the last window, in the order in which they were loaded."""
        self._open: list[Record] = []
        self._ends: list[tuple[float, Record]] = []
        self._newest_end_s = 0.0
        self._to_come = list(fleet.records)

    def traffic(self) -> Traffic:
        """What gateways count."""
        now_s, settings = self._fleet.kernel.now_s, self._settings
        self._fleet.world.settle()
        new = self._arrived()
        self.recent = [each for each in (*self.recent, *new) if each.arrival_s >= now_s - settings.window_s]
        over = [each for each in (*self._open, *new) if ended(each)]
        self._open = [each for each in (*self._open, *new) if not ended(each)]
        self._ends += [(_end_s(each, now_s), each) for each in over]
        self._newest_end_s = max((self._newest_end_s, *(at_s for at_s, _ in self._ends)))
        self._ends = [(at_s, each) for at_s, each in self._ends if at_s >= now_s - FORGET_S]
        prefilled = [each for each in self.recent if each.cached_tokens is not None]
        prompt_tokens = sum(each.input_tokens for each in prefilled)
        hit_ratio = sum(each.cached_tokens or 0 for each in prefilled) / prompt_tokens if prompt_tokens else 0.0
        waiting = [each for each in self._open if each.cached_tokens is None]
        return Traffic(
            bin_s=settings.interval_s,
            arrivals=self._arrivals(now_s),
            lengths=lengths_of(
                [_seen(each) for each in self.recent[-self._newest(now_s) :]], [_seen(each) for _, each in self._ends]
            ),
            prefix_hit_ratio=hit_ratio,
            backlog_tokens=sum(each.input_tokens for each in waiting) * (1 - hit_ratio),
            oldest_wait_s=max(
                (now_s - each.arrival_s for each in self._open if each.first_token_s is None), default=0.0
            ),
            decoding=len(self._open) - len(waiting),
            decoding_tokens=sum(
                each.input_tokens + each.generated_tokens for each in self._open if each.cached_tokens is not None
            ),
            idle_s=0.0 if self._open else now_s - self._newest_end_s,
            attained=(self._attained(),),
        )

    def known(self) -> list[Record]:
        """Requests that arrived within the last window or are still open, as of the last `traffic`."""
        recent = {each.index for each in self.recent}
        return [*self.recent, *(each for each in self._open if each.index not in recent)]

    def pools(self, instances: Instances) -> tuple[Pool, ...]:
        """What is asked for, what is there, and how loaded it is."""
        loads = {machine.endpoint.id: seen for machine, seen in self._fleet.world.observe() if seen is not None}
        found = []
        for k in range(len(instances.pools)):
            seen = [loads[name] for name in instances.ready(k) if name in loads]
            found.append(
                replace(
                    instances.counted(k),
                    running=sum(each.running for each in seen),
                    waiting=sum(each.waiting for each in seen),
                    kv_usage_ratio=sum(each.kv_usage_ratio for each in seen) / len(seen) if seen else 0.0,
                )
            )
        return tuple(found)

    def _arrived(self) -> list[Record]:
        """Requests that have arrived since the last call."""
        found = [each for each in self._to_come if each.arrived]
        self._to_come = [each for each in self._to_come if not each.arrived]
        return found

    def _arrivals(self, now_s: float) -> tuple[int, ...]:
        """By window, the newest last; none from before the first round."""
        bin_s = self._settings.interval_s
        bins = max(1, min(round(self._settings.window_s / bin_s), int(now_s / bin_s)))
        counts = [0] * bins
        for each in self.recent:
            back = int((now_s - each.arrival_s) / bin_s)
            if back < bins:
                counts[bins - 1 - back] += 1
        return tuple(counts)

    def _newest(self, now_s: float) -> int:
        """How many of the recent requests lengths are measured on."""
        since_s = now_s - LENGTHS_S
        return max(LEAST_REQUESTS, sum(each.arrival_s >= since_s for each in self.recent))

    def _attained(self) -> Attained:
        met, count = sum(meets(each, self._objective) for _, each in self._ends), len(self._ends)
        return Attained(CLASS, Counts(within=met, outside=count - met))


def _seen(record: Record) -> Seen:
    return Seen(record.input_tokens, record.generated_tokens, ended(record))


def ended(record: Record) -> bool:
    """Whether nothing more comes of a request."""
    return record.completed or record.broken or record.rejected is not None


def _end_s(record: Record, now_s: float) -> float:
    return record.last_token_s if record.last_token_s is not None else now_s
