"""The loop: measure, decide after the measurement's delay, ask."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_core import attainment
from ballast_core.directing.settings import DirectorSettings
from ballast_core.policies.scaling.protocol import Decision, Inputs, Memory, Proposal
from ballast_core.policies.scaling.records import record_of
from ballast_core.policies.scaling.rehearsing import unrehearsed, worth_rehearsing
from ballast_sim.simulation.autoscaling.instances import Instances
from ballast_sim.simulation.autoscaling.meter import CLASS, Meter, ended
from ballast_sim.simulation.autoscaling.rehearsal import InForce, NotRehearsed, Recorded, Rehearser, plain
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
                attainment.Objective(
                    CLASS,
                    ttft_s=objective.ttft_s,
                    tpot_s=objective.tpot_s,
                    e2e_s=objective.e2e_s,
                    target=self.settings.attainment,
                ),
            ),
            clamps=self.settings.clamps,
            startup_s=self.settings.startup_s,
            zero_after_s=self.settings.zero_after_s,
            memory=self.memory,
        )
        recorded = self._recorded(now_s)
        self.fleet.kernel.at(now_s + self.settings.delay_s, lambda: self._act(inputs, recorded))
        self.fleet.kernel.at(now_s + self.settings.interval_s, self._measure)

    def _recorded(self, now_s: float) -> list[Recorded]:
        if self.rehearse is None:
            return []
        since_s, arrivals = now_s - self.rehearse.limits.window_s, self.fleet.book.arrivals
        return [
            _recorded(record, arrivals[record.index])
            for record in sorted(self.meter.known(), key=lambda one: one.arrival_s)
            if record.arrival_s >= since_s or not ended(record)
        ]

    def _act(self, inputs: Inputs, recorded: list[Recorded]) -> None:
        decision = self._decided(self.settings.policy.propose(inputs), recorded)
        self.memory = decision.memory
        self.decisions.append((self.fleet.kernel.now_s, decision))
        self.instances.ask(decision.target)
        self.peak_gpus = max(self.peak_gpus, self.instances.gpus)

    def _decided(self, proposal: Proposal, recorded: list[Recorded]) -> Decision:
        policy = self.settings.policy
        if self.rehearse is None or not worth_rehearsing(policy, proposal):
            return policy.decide(proposal)
        changes = [InForce(at_s, decision.target) for at_s, decision in self.decisions if decision.changes]
        first = self.decisions[0][1].proposal.inputs.wanted if self.decisions else proposal.inputs.wanted
        try:
            return policy.decide(proposal, self.rehearse(proposal, recorded, [InForce(0.0, first), *changes]))
        except NotRehearsed as error:
            return unrehearsed(policy.decide(proposal), str(error))

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


def _recorded(record: Record, arrival: Arrival) -> Recorded:
    return Recorded(
        arrival_s=record.arrival_s,
        input_tokens=record.input_tokens,
        output_tokens=record.generated_tokens,
        running=not ended(record),
        completed=record.completed,
        hash_ids=arrival.hash_ids,
        block_size=arrival.block_size,
        max_tokens=arrival.max_tokens,
        traffic_class=arrival.traffic_class,
    )
