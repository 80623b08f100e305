"""The machines of a run with a scaling policy: they start, take requests, change roles, drain and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from ballast_core.model import Endpoint, EndpointId, Role
from ballast_core.policies.scaling.protocol import Counts, Layout, Pool
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.shapes import Machine

_LOOK_S = 1.0
"""Between two looks at whether a draining machine is empty."""
LETTERS = {Role.PREFILL: "p", Role.DECODE: "d", Role.FLEXIBLE: "f"}
"""With which the ids of a role's machines begin; numbers follow."""


class State(Enum):
    """Of one machine."""

    STARTING = auto()
    READY = auto()
    DRAINING = auto()
    GONE = auto()


@dataclass(slots=True)
class Instance:
    """One machine. `role` is the stage that it has."""

    id: EndpointId
    role: Role
    since_s: float
    state: State = State.STARTING
    until_s: float | None = None
    """When it went."""


@dataclass(slots=True)
class Instances:
    """Carries out what is asked for, and keeps account of GPUs."""

    fleet: Fleet
    pools: tuple[Pool, ...]
    startup_s: float
    by_pool: list[list[Instance]] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _ended: list[tuple[Pool, Instance]] = field(default_factory=list)

    @classmethod
    def of(cls, fleet: Fleet, pools: tuple[Pool, ...], startup_s: float) -> Instances:
        """Those that the fleet has at first: all are ready."""
        machines = fleet.world.machines
        return cls.named(
            fleet,
            pools,
            startup_s,
            [
                [
                    machine.endpoint.id
                    for machine in machines
                    if (machine.endpoint.role, machine.profile.name) == (pool.role, pool.profile.name)
                ]
                for pool in pools
            ],
        )

    @classmethod
    def named(
        cls, fleet: Fleet, pools: tuple[Pool, ...], startup_s: float, by_pool: Sequence[Sequence[EndpointId]]
    ) -> Instances:
        """The same, where it is given which machines each pool has: as many as it wants, named as in a shape."""
        made = cls(fleet, pools, startup_s)
        for pool, ids in zip(pools, by_pool, strict=True):
            roles = [Role.PREFILL] * pool.wanted.prefill + [Role.DECODE] * pool.wanted.decode
            made.by_pool.append([Instance(name, role, 0.0, State.READY) for name, role in zip(ids, roles, strict=True)])
            letter = LETTERS[pool.role]
            made._numbers[letter] = made._numbers.get(letter, 0) + len(ids)
            if pool.role is Role.FLEXIBLE:
                for name, role in zip(ids, roles, strict=True):
                    fleet.become(name, role)
        return made

    # --- what is there --------------------------------------------------------------------------------------------

    def counted(self, k: int) -> Pool:
        """A pool with what is asked for and what is there; loads are left out."""
        there = [each for each in self.by_pool[k] if each.state is not State.DRAINING]
        ready = [each for each in there if each.state is State.READY]
        return replace(
            self.pools[k],
            wanted=_counts(there),
            ready=_counts(ready),
            starting=len(there) - len(ready),
            draining=len(self.by_pool[k]) - len(there),
        )

    def ready(self, k: int) -> list[EndpointId]:
        """The machines of a pool that take requests."""
        return [each.id for each in self.by_pool[k] if each.state is State.READY]

    @property
    def gpus(self) -> int:
        """In use now, by machines that start or drain, too."""
        return sum(pool.gpus * len(instances) for pool, instances in zip(self.pools, self.by_pool, strict=True))

    def hours(self, until_s: float) -> tuple[float, float | None]:
        """GPU-hours, and their cost where every pool has a price, from 0 to `until_s`."""
        spans = list(self._spans(until_s))
        used = sum(pool.gpus * span_s for pool, span_s in spans) / 3600
        priced = all(pool.cost_per_hour for pool in self.pools)
        return used, sum(pool.cost_per_hour * span_s for pool, span_s in spans) / 3600 if priced else None

    def _spans(self, until_s: float) -> Iterator[tuple[Pool, float]]:
        present = [(pool, each) for pool, some in zip(self.pools, self.by_pool, strict=True) for each in some]
        for pool, each in (*self._ended, *present):
            end_s = until_s if each.until_s is None else min(each.until_s, until_s)
            yield pool, max(0.0, end_s - each.since_s)

    # --- what is asked for ----------------------------------------------------------------------------------------

    def ask(self, target: Layout) -> None:
        """Ask for a layout: machines start or drain, and those of flexible pools change roles at once."""
        for k, counts in enumerate(target):
            while self.counted(k).wanted.replicas > counts.replicas:
                self._stop_one(k, counts)
            self._flip(k, counts)
            while self.counted(k).wanted.replicas < counts.replicas:
                self._start_one(k, counts)

    def _spare(self, k: int, counts: Counts) -> Role:
        """The stage that has more than is asked for."""
        return Role.PREFILL if self.counted(k).wanted.prefill > counts.prefill else Role.DECODE

    def _stop_one(self, k: int, counts: Counts) -> None:
        each = self._idlest(k, self._spare(k, counts))
        if each.state is State.STARTING:
            self._goes(k, each)
            return
        each.state = State.DRAINING
        self.fleet.drain(each.id)
        self._look(k, each)

    def _flip(self, k: int, counts: Counts) -> None:
        if self.pools[k].role is not Role.FLEXIBLE:
            return
        for taken, given in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            while _of(self.counted(k).wanted, taken) > _of(counts, taken):
                each = self._idlest(k, taken)
                each.role = given
                if each.state is State.READY:
                    self.fleet.become(each.id, given)

    def _start_one(self, k: int, counts: Counts) -> None:
        pool, there = self.pools[k], self.counted(k).wanted
        letter = LETTERS[pool.role]
        number = self._numbers[letter] = self._numbers.get(letter, 0) + 1
        role = Role.PREFILL if there.prefill < counts.prefill else Role.DECODE
        each = Instance(EndpointId(f"{letter}{number - 1:03d}"), role, self.fleet.kernel.now_s)
        self.by_pool[k].append(each)
        self.fleet.kernel.at(self.fleet.kernel.now_s + self.startup_s, lambda: self._started(k, each))

    def _started(self, k: int, each: Instance) -> None:
        if each.state is not State.STARTING:
            return
        each.state = State.READY
        pool = self.pools[k]
        name = pool.profile.name
        endpoint = Endpoint(each.id, f"{each.id}:8000", each.role, pool=name, profile=name)
        self.fleet.add(Machine(endpoint, pool.profile, started_as=pool.role))

    def _idlest(self, k: int, role: Role) -> Instance:
        """Of the machines of a stage: one that starts, else the one with the fewest requests, the newest of those."""
        loads = {
            machine.endpoint.id: seen.running + seen.waiting
            for machine, seen in self.fleet.world.observe()
            if seen is not None
        }
        some = [each for each in self.by_pool[k] if each.state is not State.DRAINING and each.role is role]
        return min(some, key=lambda each: (each.state is State.READY, loads.get(each.id, 0), -each.since_s, each.id))

    def _look(self, k: int, each: Instance) -> None:
        if self.fleet.remove_if_empty(each.id):
            self._goes(k, each)
        else:
            self.fleet.kernel.at(self.fleet.kernel.now_s + _LOOK_S, lambda: self._look(k, each))

    def _goes(self, k: int, each: Instance) -> None:
        each.state, each.until_s = State.GONE, self.fleet.kernel.now_s
        self.by_pool[k].remove(each)
        self._ended.append((self.pools[k], each))


def _counts(instances: list[Instance]) -> Counts:
    prefill = sum(each.role is Role.PREFILL for each in instances)
    return Counts(prefill, len(instances) - prefill)


def _of(counts: Counts, role: Role) -> int:
    return counts.prefill if role is Role.PREFILL else counts.decode
