"""Tries candidates on recorded arrivals, with the policies of the run, each on a fleet of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Role
from ballast_core.policies.scaling.protocol import Layout, Pool, Proposal, Rehearsal
from ballast_sim.simulation.autoscaling.settings import Rehearsing
from ballast_sim.simulation.figures.results import meets
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.requests.records import Arrival, Record
from ballast_sim.workloads import WorkloadRequest


@dataclass(frozen=True, slots=True)
class Rehearser:
    """Rehearsals of one run. `Seen` lengths only: what has not ended is expected to end like those that have."""

    director: DirectorSettings
    fleet: FleetSettings
    objective: Objective
    limits: Rehearsing

    def __call__(self, proposal: Proposal, recorded: Sequence[tuple[Record, Arrival]]) -> list[Rehearsal]:
        """One for each candidate. `recorded` are the requests of the window, in order of arrival."""
        recorded = recorded[-self.limits.requests :]
        demand = proposal.demand
        if len(recorded) < 2 or demand is None:
            return []
        span_s = max(1e-3, recorded[-1][0].arrival_s - recorded[0][0].arrival_s)
        seen_rps = (len(recorded) - 1) / span_s
        faster = max(demand.rate_rps, demand.forecast_rps) / seen_rps if seen_rps else 1.0
        requests = _requests(recorded, max(0.25, min(4.0, faster)), demand.lengths.output_tokens)
        return [
            self._tried(k, proposal.inputs.pools, candidate.layout, requests)
            for k, candidate in enumerate(proposal.candidates)
        ]

    def _tried(self, k: int, pools: tuple[Pool, ...], layout: Layout, requests: list[WorkloadRequest]) -> Rehearsal:
        fleet = Fleet(machines_of(pools, layout), self.director, self.fleet)
        fleet.load(requests)
        fleet.run()
        met = sum(meets(record, self.objective) for record in fleet.records)
        return Rehearsal(candidate=k, requests=len(requests), met=met)


def machines_of(pools: tuple[Pool, ...], layout: Layout) -> tuple[Machine, ...]:
    """A fleet of this layout."""
    machines = []
    for k, (pool, counts) in enumerate(zip(pools, layout, strict=True)):
        roles = [Role.PREFILL] * counts.prefill + [Role.DECODE] * counts.decode
        for number, role in enumerate(roles):
            name, profile = f"{role.value[0]}{k}-{number:03d}", pool.profile.name
            endpoint = Endpoint(EndpointId(name), f"{name}:8000", role, pool=profile, profile=profile)
            machines.append(Machine(endpoint, pool.profile, started_as=pool.role))
    return tuple(machines)


def _requests(recorded: Sequence[tuple[Record, Arrival]], faster: float, mean_output: float) -> list[WorkloadRequest]:
    """The recorded requests at `faster` times their rate, the first at 0 s.

    The output of one that still runs: what it has and, in turn, what the ended ones that came as far had beyond that;
    the mean output where there is none.
    """
    ended = sorted(record.generated_tokens for record, _ in recorded if record.completed)
    start_s = recorded[0][0].arrival_s
    made = []
    for number, (record, arrival) in enumerate(recorded):
        output = record.generated_tokens
        if not record.completed:
            longer = [length for length in ended if length > output]
            output = longer[number % len(longer)] if longer else output + max(1, round(mean_output))
        made.append(
            WorkloadRequest(
                arrival_s=(record.arrival_s - start_s) / faster,
                input_tokens=record.input_tokens,
                output_tokens=max(1, output),
                hash_ids=arrival.hash_ids,
                block_size=arrival.block_size,
                max_tokens=arrival.max_tokens,
                traffic_class=arrival.traffic_class,
            )
        )
    return made


def plain(settings: FleetSettings) -> FleetSettings:
    """The surroundings of a rehearsal: without failures, and with the outputs that are guessed."""
    return replace(settings, failures=(), known_limits=False)
