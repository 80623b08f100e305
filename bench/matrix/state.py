"""The known results of the matrix, the next job, and an estimate of the time for the rest."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase

from ballast_sim.simulation.runs.experiment import versions
from bench.common.store import Code, Store
from bench.matrix.analyse import OURS
from bench.matrix.cells import COMPARISON_SEEDS, SEEDS, SELECTION_SEEDS, Cell
from bench.matrix.measure import ORACLE, CapacityJob, RunJob, pair_of
from bench.matrix.plan import Need, expected_left, need
from bench.matrix.record import Record, RecordedCapacity, RecordedCell, Run
from bench.matrix.results import Capacity, Figures

CAPACITY_PROBES = 7
OWN_COST_RATIO = 1.7
"""What a run of ours costs beside one of a simple placement, before any has been seen."""

OWN_SEEDS = (SELECTION_SEEDS[0], *COMPARISON_SEEDS)
"""What ours runs with, and any placement that is chosen by name."""

Job = CapacityJob | RunJob


@dataclass(frozen=True, slots=True)
class Choice:
    """`--only PLACEMENT/WORKLOAD`, both with wildcards."""

    policy: str = "*"
    workload: str = "*"

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Raises ValueError."""
        policy, slash, workload = text.rpartition("/")
        if not slash or not policy or not workload:
            raise ValueError(f"--only: cannot read {text!r}; write PLACEMENT/WORKLOAD such as ballast/* or */azure")
        return cls(policy, workload)


@dataclass(slots=True)
class Matrix:
    """Results by cell, filled from a store and by finished jobs."""

    cells: Sequence[Cell]
    placements: Sequence[str]
    store: Store
    choice: Choice = field(default_factory=Choice)
    capacities: dict[str, tuple[Capacity, Code]] = field(default_factory=dict)
    runs: dict[str, dict[tuple[str, int], Run]] = field(default_factory=dict)
    taken: set[Job] = field(default_factory=set)
    """In progress, or failed: not to be started again."""

    def __post_init__(self) -> None:
        """Take what the store has."""
        self.runs = {cell.name: {} for cell in self.cells}
        for cell in self.cells:
            job = capacity_job(cell)
            found = self.store.get(job.description, job.code)
            if found is not None:
                self._accept_capacity(job, Capacity(**found[0]), found[1])

    def placements_of(self, cell: Cell) -> list[str]:
        """What runs there. No oracle where engines prefill, too: that is priced by how short outputs may stay, of which
        one that knows each length has no distribution."""
        return [policy for policy in self.placements if policy != ORACLE or not cell.fleet.colocated]

    def _accept_capacity(self, job: CapacityJob, capacity: Capacity, code: Code) -> None:
        self.capacities[capacity_name(job)] = capacity, code
        for cell in self.cells:
            if capacity_name(capacity_job(cell)) == capacity_name(job):
                self._recall(cell, capacity)

    def _recall(self, cell: Cell, capacity: Capacity) -> None:
        for policy in self.placements_of(cell):
            for seed in SEEDS:
                job = RunJob(cell, policy, seed, capacity.full_ratio)
                found = self.store.get(job.description, job.code)
                if found is not None:
                    self.runs[cell.name][policy, seed] = Run(Figures(**found[0]), found[1])

    def finish(self, job: Job, result: Figures | Capacity) -> None:
        """Keep a result, on disk first."""
        self.store.put(job.description, job.code, asdict(result))
        self.taken.discard(job)
        if isinstance(job, RunJob):
            assert isinstance(result, Figures)
            self.runs[job.cell.name][job.policy, job.seed] = Run(result, job.code)
        else:
            assert isinstance(result, Capacity)
            self._accept_capacity(job, result, job.code)

    def take(self) -> Job | None:
        """The next job: capacities first, then the cell that has the fewest runs of the lowest tier."""
        chosen = self._chosen()
        for cell in chosen:
            first = capacity_job(cell)
            if self._capacity(cell) is None and first not in self.taken:
                self.taken.add(first)
                return first
        ranked: list[tuple[tuple[int, int, int], RunJob]] = []
        for index, cell in enumerate(chosen):
            wanted = self._need(cell)
            jobs = [] if wanted is None else self._jobs(cell, wanted)
            if wanted is not None and jobs:
                under_way = sum(isinstance(job, RunJob) and job.cell == cell for job in self.taken)
                ranked.append(((wanted.tier, len(self.runs[cell.name]) + under_way, index), jobs[0]))
        if not ranked:
            return None
        job = min(ranked, key=lambda entry: entry[0])[1]
        self.taken.add(job)
        return job

    def _chosen(self) -> list[Cell]:
        return [cell for cell in self.cells if fnmatchcase(cell.workload.name, self.choice.workload)]

    def _capacity(self, cell: Cell) -> Capacity | None:
        known = self.capacities.get(capacity_name(capacity_job(cell)))
        return None if known is None else known[0]

    def _jobs(self, cell: Cell, wanted: Need) -> list[RunJob]:
        capacity = self._capacity(cell)
        assert capacity is not None
        jobs = [RunJob(cell, policy, seed, capacity.full_ratio) for policy, seed in wanted.runs]
        return [job for job in jobs if job not in self.taken]

    def _need(self, cell: Cell) -> Need | None:
        if self._capacity(cell) is None:
            return None
        known = self.figures(cell)
        if self.choice.policy == "*":
            return need(known, self.placements_of(cell))
        missing = tuple(
            (policy, seed)
            for seed in OWN_SEEDS
            for policy in self.placements_of(cell)
            if fnmatchcase(policy, self.choice.policy) and (policy, seed) not in known
        )
        return Need(0, missing) if missing else None

    def figures(self, cell: Cell) -> dict[tuple[str, int], Figures]:
        """What is known of a cell, by placement and seed."""
        return {key: run.figures for key, run in self.runs[cell.name].items()}

    def cpu_left_s(self) -> float:
        """About how much processor time the rest takes."""
        chosen = self._chosen()
        without = {capacity_name(capacity_job(cell)): cell for cell in chosen if self._capacity(cell) is None}
        return sum(map(self._cell_left_s, chosen)) + sum(
            CAPACITY_PROBES * cell.workload.cost_s for cell in without.values()
        )

    def _cell_left_s(self, cell: Cell) -> float:
        known = self.figures(cell)
        if self.choice.policy != "*":
            return self.cost_s(cell) * sum(
                (policy, seed) not in known
                for policy in self.placements_of(cell)
                if fnmatchcase(policy, self.choice.policy)
                for seed in OWN_SEEDS
            )
        own = 0 if known else (OWN_COST_RATIO - 1) * len(OWN_SEEDS)
        return self.cost_s(cell) * (expected_left(known, self.placements_of(cell)) + own)

    def cost_s(self, cell: Cell) -> float:
        """Processor seconds of a run, about."""
        costs = [figures.cpu_s for figures in self.figures(cell).values()]
        return statistics.fmean(costs) if costs else cell.workload.cost_s

    def record(self) -> Record:
        """All that is known, as it is committed."""
        record = Record(versions(), {name: _described(name) for name in self.placements})
        for cell in self.cells:
            job = capacity_job(cell)
            if capacity_name(job) not in self.capacities:
                continue
            capacity, code = self.capacities[capacity_name(job)]
            record.capacities[capacity_name(job)] = RecordedCapacity(job.description, capacity, code)
            if self.runs[cell.name]:
                record.cells[cell.name] = RecordedCell(
                    settings_of(cell, capacity), capacity.rate_rps, self.runs[cell.name]
                )
        return record


def capacity_job(cell: Cell) -> CapacityJob:
    """The capacity that a cell needs first."""
    return CapacityJob(cell.workload, cell.fleet)


def capacity_name(job: CapacityJob) -> str:
    """The name of a capacity."""
    return f"{job.workload.name}/{job.fleet.kind}"


def settings_of(cell: Cell, capacity: Capacity) -> dict[str, object]:
    """The part of a run's description that all runs of a cell share."""
    described = RunJob(cell, OURS, COMPARISON_SEEDS[0], capacity.full_ratio).description
    return {name: value for name, value in described.items() if name not in ("policy", "seed")}


def _described(policy: str) -> list[str]:
    pair = pair_of(policy)
    return [repr(pair.suite.prefill), repr(pair.suite.decode)]
