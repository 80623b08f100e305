"""Tries candidates on recorded arrivals, with the policies in use, each from the state that the fleet is in.

A rehearsal has two parts. The *warm-up* replays the last recorded seconds as they came, under the layouts that were in
force then, so that batches, queues and caches fill up as they did. Then the candidate is asked for: roles change at
once, instances start and drain as slowly as they do. The *trial* replays the last recorded seconds again, at the rate
that is forecast. All candidates get the same requests at the same times.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Role
from ballast_core.policies.scaling.protocol import Layout, Pool, Proposal, Rehearsal
from ballast_sim.simulation.autoscaling.instances import LETTERS, Instances
from ballast_sim.simulation.autoscaling.meter import ended
from ballast_sim.simulation.autoscaling.settings import Rehearsing
from ballast_sim.simulation.figures.results import meets
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.requests.records import Record
from ballast_sim.workloads import WorkloadRequest

_LEAST_SPEED, _MOST_SPEED = 0.25, 4.0
"""Recorded traffic is replayed so many times as fast, at least and at most."""
_FEW = 20
"""Fewer requests are no sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What gateways know of one request at the time of the decision."""

    arrival_s: float
    """On the clock of `Inputs.now_s`."""
    input_tokens: int
    output_tokens: int
    """Generated so far."""
    running: bool
    completed: bool
    hash_ids: Sequence[int] | None = None
    block_size: int | None = None
    max_tokens: int | None = None
    traffic_class: str = ""


@dataclass(frozen=True, slots=True)
class InForce:
    """A layout that was asked for at a time, on the clock of `Inputs.now_s`."""

    at_s: float
    layout: Layout


class NotRehearsed(Exception):
    """Why nothing was tried, for people."""


@dataclass(frozen=True, slots=True)
class Rehearser:
    """Rehearsals of one fleet."""

    director: DirectorSettings
    fleet: FleetSettings
    objective: Objective
    limits: Rehearsing

    def __call__(
        self, proposal: Proposal, recorded: Sequence[Recorded], in_force: Sequence[InForce] = ()
    ) -> list[Rehearsal]:
        """One for each candidate. Raises `NotRehearsed`.

        `recorded`: in order of arrival; older requests count if they run. `in_force`: the changes of the layout, in
        order of time, the first of them in force before them all; without any the present one was in force.
        """
        demand, inputs = proposal.demand, proposal.inputs
        if demand is None:
            raise NotRehearsed("nothing is known of the demand")
        play = self._play(proposal, recorded, max(demand.rate_rps, demand.forecast_rps), demand.lengths.output_tokens)
        before = [each for each in in_force if each.at_s <= inputs.now_s - play.warm_s]
        later = [each for each in in_force if each.at_s > inputs.now_s - play.warm_s]
        first = before[-1].layout if before else inputs.wanted
        play = replace(play, changes=tuple((play.warm_s + each.at_s - inputs.now_s, each.layout) for each in later))
        return [self._tried(k, proposal, play, first) for k in range(len(proposal.candidates))]

    def _play(self, proposal: Proposal, recorded: Sequence[Recorded], rate_rps: float, mean_output: float) -> Play:
        limits, now_s = self.limits, proposal.inputs.now_s
        recent = [each for each in recorded if each.arrival_s >= now_s - limits.window_s]
        if len(recent) < 2:
            raise NotRehearsed("hardly a request is recorded")
        speed = rate_rps * (now_s - recent[0].arrival_s) / len(recent)
        speed = min(max(speed, _LEAST_SPEED), _MOST_SPEED)
        rate_rps = speed * len(recent) / max(1e-3, now_s - recent[0].arrival_s)
        trial_s = min(limits.trial_s, limits.requests / rate_rps)
        if trial_s < min(limits.trial_s, proposal.inputs.startup_s + limits.least_s):
            raise NotRehearsed(
                f"{limits.requests} requests, the most that are replayed, last {trial_s:.0f} s: too short "
                f"for instances that start in {proposal.inputs.startup_s:.0f} s"
            )
        warm = recent[-limits.requests // 2 :]
        warm_s = now_s - warm[0].arrival_s
        longer = _Outputs(recorded, mean_output)
        requests = [
            _request(each, 0.0, prompt=each.input_tokens + each.output_tokens, output=longer.left(each))
            for each in recorded
            if each.running and each.arrival_s < warm[0].arrival_s and each.output_tokens
        ]
        carried = len(requests)
        requests += [_request(each, each.arrival_s - warm[0].arrival_s, output=longer.of(each)) for each in warm]
        newest = [each for each in recent if each.arrival_s >= now_s - limits.lately_s]  # a shift shows in them
        newest = newest if len(newest) >= _FEW else recent
        cycle_s = (now_s - newest[0].arrival_s) / speed
        for number in range(math.ceil(trial_s / cycle_s)):
            for each in newest:
                at_s = number * cycle_s + (each.arrival_s - newest[0].arrival_s) / speed
                if at_s < trial_s:
                    requests.append(_request(each, warm_s + at_s, output=longer.of(each)))
        return Play(tuple(requests), carried, warm_s, warm_s + trial_s)

    def _tried(self, k: int, proposal: Proposal, play: Play, first: Layout) -> Rehearsal:
        layout = proposal.candidates[k].layout
        pools = tuple(replace(pool, wanted=counts) for pool, counts in zip(proposal.inputs.pools, first, strict=True))
        by_pool = machines_of(pools)
        fleet = Fleet([machine for some in by_pool for machine in some], self.director, self.fleet)
        ids = [[machine.endpoint.id for machine in some] for some in by_pool]
        instances = Instances.named(fleet, pools, proposal.inputs.startup_s, ids)
        fleet.load(play.requests)
        for at_s, asked in (*play.changes, (play.warm_s, layout)):
            fleet.kernel.at(at_s, lambda asked=asked: instances.ask(asked))  # type: ignore[misc]
        open_at_switch: list[Record] = []

        def switch() -> None:
            fleet.world.settle()
            open_at_switch.extend(each for each in fleet.records if each.arrived and not ended(each))

        fleet.kernel.at(play.warm_s, switch)
        fleet.run(play.until_s)
        judged = [*open_at_switch, *(each for each in fleet.records if each.arrived and each.arrival_s > play.warm_s)]
        begun = replace(self.objective, ttft_s=None, e2e_s=None)
        verdicts = [
            verdict(each, begun if each.index < play.carried else self.objective, play.until_s) for each in judged
        ]
        known = [each for each in verdicts if each is not None]
        return Rehearsal(candidate=k, requests=len(known), met=sum(known))


@dataclass(frozen=True, slots=True)
class Play:
    """What is replayed. Times are seconds since the beginning."""

    requests: tuple[WorkloadRequest, ...]
    carried: int
    """So many of them, the first, had begun before what is replayed: they come at 0 s, with what they have generated
    as a part of their prompt."""
    warm_s: float
    """When the candidate takes over."""
    until_s: float
    changes: tuple[tuple[float, Layout], ...] = ()
    """Layouts that are asked for in the warm-up, with their times."""


def verdict(record: Record, objective: Objective, now_s: float) -> bool | None:
    """Whether a request meets an objective, or would if it went on as until now; None where that does not show yet."""
    if ended(record):
        return meets(record, objective)
    waited_s = now_s - record.arrival_s
    if objective.e2e_s is not None and waited_s > objective.e2e_s:
        return False
    if record.first_token_s is None:
        return False if objective.ttft_s is not None and waited_s > objective.ttft_s else None
    if objective.ttft_s is not None and record.first_token_s - record.arrival_s > objective.ttft_s:
        return False
    if record.generated_tokens < 2:
        return None
    return (
        objective.tpot_s is None or (now_s - record.first_token_s) / (record.generated_tokens - 1) <= objective.tpot_s
    )


def machines_of(pools: Sequence[Pool]) -> list[list[Machine]]:
    """The machines of each pool as it is wanted, with ids as those of a shape."""
    numbers: dict[Role, int] = {}
    found = []
    for pool in pools:
        machines = []
        for _ in range(pool.wanted.replicas):
            number = numbers.get(pool.role, 0)
            numbers[pool.role] = number + 1
            name, profile = f"{LETTERS[pool.role]}{number:03d}", pool.profile.name
            endpoint = Endpoint(EndpointId(name), f"{name}:8000", pool.role, pool=profile, profile=profile)
            machines.append(Machine(endpoint, pool.profile, started_as=pool.role))
        found.append(machines)
    return found


def plain(settings: FleetSettings) -> FleetSettings:
    """The surroundings of a rehearsal: without failures, and with the outputs that are guessed."""
    return replace(settings, failures=(), known_limits=False)


class _Outputs:
    """Whole outputs. Of one that still runs: what it has and, in turn, what the ended ones that came as far had beyond
    that; the mean output where there is none."""

    def __init__(self, recorded: Sequence[Recorded], mean_output: float) -> None:
        self._ended = sorted(each.output_tokens for each in recorded if each.completed)
        self._mean = max(1, round(mean_output))
        self._of = {id(each): self._guess(number, each) for number, each in enumerate(recorded)}

    def of(self, each: Recorded) -> int:
        """All its tokens."""
        return self._of[id(each)]

    def left(self, each: Recorded) -> int:
        """What is still to come."""
        return max(1, self._of[id(each)] - each.output_tokens)

    def _guess(self, number: int, each: Recorded) -> int:
        if not each.running:
            return max(1, each.output_tokens)
        longer = self._ended[bisect_right(self._ended, each.output_tokens) :]
        return longer[number * 7919 % len(longer)] if len(longer) >= _FEW else each.output_tokens + self._mean


def _request(each: Recorded, at_s: float, *, output: int, prompt: int | None = None) -> WorkloadRequest:
    return WorkloadRequest(
        arrival_s=at_s,
        input_tokens=each.input_tokens if prompt is None else prompt,
        output_tokens=output,
        hash_ids=each.hash_ids,
        block_size=each.block_size,
        max_tokens=each.max_tokens,
        traffic_class=each.traffic_class,
    )
