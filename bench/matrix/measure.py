"""Descriptions of runs and capacities, and carrying them out. A job can be pickled; a worker needs nothing else."""

from __future__ import annotations

import functools
import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ballast_core.model import STAGE_ROLES, Binding, Stage
from ballast_core.policies.placement.registry import PLACEMENTS
from ballast_sim.capacity import estimate
from ballast_sim.simulation.capacity.search import CAPACITY_SEED, measure_capacity
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.policies.choice import PolicyChoice, PolicyChoiceError, least_requests, parse_policies
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, run
from bench.common.code import DIGITS, common_digest, placement_digest, profile_digest
from bench.common.seeding import SeededTrace
from bench.common.store import Code
from bench.matrix.cells import Cell, Fleet, Workload, setup_of
from bench.matrix.results import Capacity, Figures

ORACLE = "oracle"
"""The placement that knows the lengths: only the simulator has it, under this name, and it is no baseline."""


@functools.cache
def pair_of(policy: str) -> PolicyChoice:
    """As `ballast simulate --policy` reads it: a name places decodes."""
    return parse_policies(policy)[0]


def placements() -> tuple[str, ...]:
    """All that can be compared, the oracle last where the simulator has one."""
    try:
        pair_of(ORACLE)
    except PolicyChoiceError:
        return tuple(sorted(PLACEMENTS))
    return (*sorted(set(PLACEMENTS) - {ORACLE}), ORACLE)


@dataclass(frozen=True, slots=True)
class CapacityJob:
    """Find where load 1.0 of a workload on a fleet lies."""

    workload: Workload
    fleet: Fleet

    @property
    def description(self) -> dict[str, object]:
        """All that the result depends on, but the code."""
        return {"capacity": _described(self.workload, self.fleet)}

    @property
    def code(self) -> Code:
        """What it depends on besides."""
        return Code(placement_digest(least_requests()), common_digest())

    def carry_out(self) -> Capacity:
        """Raises CapacityError."""
        started_s = time.process_time()
        setup = replace(setup_of(self.workload, self.fleet), objective=Objective())
        found = measure_capacity(setup)
        assert found.rate_rps is not None
        full = found.rate_scale / arithmetic_scale(setup, CAPACITY_SEED)
        return Capacity(
            rate_rps=found.rate_rps,
            full_ratio=full,
            probes=found.probes,
            bounded=found.bounded,
            cpu_s=round(time.process_time() - started_s, 1),
        )


@dataclass(frozen=True, slots=True)
class RunJob:
    """One placement in one cell with one seed; `full_ratio` is the capacity's."""

    cell: Cell
    policy: str
    seed: int
    full_ratio: float

    @property
    def description(self) -> dict[str, object]:
        """All that the result depends on, but the code."""
        pair, workload = pair_of(self.policy), self.cell.workload
        return {
            **_described(workload, self.cell.fleet),
            "slo": [workload.ttft_s, workload.tpot_s],
            "load": self.cell.load,
            "full_ratio": self.full_ratio,
            "policy": [repr(pair.suite.prefill), repr(pair.suite.decode)],
            "seed": self.seed,
        }

    @property
    def code(self) -> Code:
        """What it depends on besides."""
        return Code(placement_digest(pair_of(self.policy)), common_digest())

    def carry_out(self) -> Figures:
        """Raises ValueError for a run that has no figures."""
        started_s = time.process_time()
        setup = self.cell.setup
        scale = self.cell.load * self.full_ratio * arithmetic_scale(setup, self.seed)
        spec = RunSpec(setup=setup, policy=pair_of(self.policy), seed=self.seed, rate_scale=scale, binding=Binding.LATE)
        return Figures.of(run(spec).figures, time.process_time() - started_s)


def arithmetic_scale(setup: Setup, seed: int) -> float:
    """The rate scale at which arithmetic says that the narrower stage is full.

    With a trace file, for the very requests of the seed, so that all parts of it are the same load; else for those of
    the capacity's seed, so that all seeds have the same rate.
    """
    load = setup.source.load(seed if isinstance(setup.source, SeededTrace) else CAPACITY_SEED, 1.0)
    prefill, decode = (
        [machine.profile for machine in setup.machines if machine.endpoint.role in STAGE_ROLES[stage]]
        for stage in (Stage.PREFILL, Stage.DECODE)
    )
    assert load.rate_rps is not None
    return estimate(load.requests, prefill=prefill, decode=decode).rps / load.rate_rps


@functools.cache
def _described(workload: Workload, fleet: Fleet) -> dict[str, object]:
    setup = setup_of(workload, fleet)
    return {
        "workload": workload.source if workload.trace is None else _file_digest(workload.trace),
        "seeds": list(setup.source.seeds) if isinstance(setup.source, SeededTrace) else None,
        "limit": workload.limit,
        "shape": fleet.shape,
        "profiles": profile_digest(machine.profile for machine in setup.machines),
    }


@functools.cache
def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]
