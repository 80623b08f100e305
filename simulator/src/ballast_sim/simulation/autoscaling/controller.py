"""The loop: measure, decide after the measurement's delay, ask."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_core.directing.settings import DirectorSettings
from ballast_core.policies.scaling.protocol import Decision, Inputs, Memory, ScalingObjective
from ballast_core.policies.scaling.records import record_of
from ballast_sim.simulation.autoscaling.instances import Instances
from ballast_sim.simulation.autoscaling.meter import Meter
from ballast_sim.simulation.autoscaling.rehearsal import Rehearser, plain
from ballast_sim.simulation.autoscaling.settings import Autoscaling
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.requests.records import Arrival, Record


@dataclass(slots=True)
class Autoscaler:
    """A scaling policy in the loop of one run."""

    fleet: Fleet
    settings: Autoscaling
    objective: Objective
    instances: Instances
    meter: Meter
    rehearse: Rehearser | None
    memory: Memory = field(default_factory=Memory)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    peak_gpus: int = 0

    @classmethod
    def of(cls, fleet: Fleet, settings: Autoscaling, objective: Objective, director: DirectorSettings) -> Autoscaler:
        """Ready to run: the first round is one interval after the start. Raises SettingError."""
        instances = Instances.of(fleet, settings.pools(fleet.world.machines), settings.startup_s)
        rehearse = None
        if settings.rehearsing is not None and settings.policy.rehearses:
            rehearse = Rehearser(director, plain(fleet.settings), objective, settings.rehearsing)
        made = cls(fleet, settings, objective, instances, Meter(fleet, objective, settings), rehearse)
        made.peak_gpus = instances.gpus
        fleet.kernel.at(settings.interval_s, made._measure)
        return made

    def _measure(self) -> None:
        now_s, traffic = self.fleet.kernel.now_s, self.meter.traffic()
        pools = self.meter.pools(self.instances)
        objective = self.objective
        inputs = Inputs(
            now_s=now_s,
            pools=pools,
            traffic=traffic,
            objectives=(
                ScalingObjective(
                    ttft_s=objective.ttft_s,
                    tpot_s=objective.tpot_s,
                    e2e_s=objective.e2e_s,
                    attainment=self.settings.attainment,
                ),
            ),
            clamps=self.settings.clamps,
            startup_s=self.settings.startup_s,
            memory=self.memory,
        )
        recorded = self._recorded(now_s)
        self.fleet.kernel.at(now_s + self.settings.delay_s, lambda: self._act(inputs, recorded))
        self.fleet.kernel.at(now_s + self.settings.interval_s, self._measure)

    def _recorded(self, now_s: float) -> list[tuple[Record, Arrival]]:
        if self.rehearse is None:
            return []
        since_s = now_s - self.rehearse.limits.window_s
        book = self.fleet.book
        recent = [each for each in self.meter.recent if each.arrival_s >= since_s]
        return [(each, book.arrivals[each.index]) for each in sorted(recent, key=lambda one: one.arrival_s)]

    def _act(self, inputs: Inputs, recorded: list[tuple[Record, Arrival]]) -> None:
        policy = self.settings.policy
        proposal = policy.propose(inputs)
        rehearsals = self.rehearse(proposal, recorded) if self.rehearse is not None else []
        decision = policy.decide(proposal, rehearsals)
        self.memory = decision.memory
        self.decisions.append((self.fleet.kernel.now_s, decision))
        self.instances.ask(decision.target)
        self.peak_gpus = max(self.peak_gpus, self.instances.gpus)

    def figures(self, until_s: float) -> dict[str, object]:
        """For the JSON of a run: GPU-hours and cost from 0 to `until_s`, and what was decided."""
        gpu_hours, cost = self.instances.hours(until_s)
        return {
            "policy": self.settings.policy.type,
            "gpu_hours": gpu_hours,
            "cost": cost,
            "peak_gpus": self.peak_gpus,
            "rounds": len(self.decisions),
            "changes": sum(decision.changes for _, decision in self.decisions),
            "decisions": [
                record_of(decision, at_s)
                for k, (at_s, decision) in enumerate(self.decisions)
                if k == 0 or decision.changes or decision.reason != self.decisions[k - 1][1].reason
            ],
        }
