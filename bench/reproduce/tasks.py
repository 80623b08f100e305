"""The two kinds of task: a run of the simulator, and a function that gives figures."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from ballast_core.model import Binding
from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import PolicyChoice, parse_policies
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, run
from ballast_sim.workloads import ArrivalProcess
from bench.common.code import common_digest, modules_digest, profile_digest
from bench.common.seeding import SeededTrace
from bench.common.store import Code
from bench.reproduce.form import FULL_SEEDS

TRACES = Path(__file__).parents[3] / "shared" / "traces"
"""Public data beside the checkout, where present."""

_NOT_FIGURES = frozenset({"seed", "load", "rate_scale", "gateways", "sim_wall_s"})


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run as `ballast simulate` makes it; its seed comes with each run. Figures are its JSON row, flattened.

    `tpot_s: {p99: ...}` is `tpot_p99_s`; text, settings and times of this machine are left out.
    """

    spec: RunSpec

    @property
    def description(self) -> Mapping[str, object]:
        """See `Task`. Shape and profiles identify the machines, its content a trace."""
        setup = self.spec.setup
        source: Any = setup.source
        trace = source.trace
        if trace is not None:
            source = replace(source, trace=Path(_file_digest(trace)))
        bare = replace(self.spec, setup=replace(setup, machines=(), source=source), seed=0)
        return {"spec": description_of(bare), "profiles": profile_digest(machine.profile for machine in setup.machines)}

    @property
    def code(self) -> Code:
        """See `Task`: modules of all policies and settings that the run names."""
        return _code(*sorted(set(_modules(replace(self.spec, setup=replace(self.spec.setup, machines=()))))))

    @property
    def arrivals_s(self) -> float | None:
        """See `Task`: of a generator, by its rate."""
        source: Any = self.spec.setup.source
        if source.trace is not None or not isinstance(source, WorkloadSource):
            return None
        rate_rps = source.rate_rps and source.rate_rps * self.spec.rate_scale
        lasts = [source.limit / rate_rps] if source.limit and rate_rps else []
        lasts += [source.duration_s] if source.duration_s else []
        return min(lasts, default=None)

    def carry_out(self, seed: int) -> Mapping[str, float]:
        """See `Task`."""
        return flat(run(self.with_seed(seed)).figures)

    def with_seed(self, seed: int) -> RunSpec:
        """For functions that run it in their own way."""
        return replace(self.spec, seed=seed)


@dataclass(frozen=True, slots=True)
class Called:
    """A function of a module, called with `seed` and these arguments.

    Its whole module counts as its code, the packages above it, and all of core, simulator and studies that these
    import. So keep such functions in a module of their own (`sibyl/runs.py`), and a paper's `__init__.py` without
    imports, or every edited sentence of an analysis computes them anew.
    """

    function: Callable[..., Mapping[str, float]]
    arguments: Mapping[str, object] = field(default_factory=dict)

    @property
    def description(self) -> Mapping[str, object]:
        """See `Task`."""
        function = self.function
        given = {
            name: value.description if isinstance(value, Simulated) else description_of(value)
            for name, value in self.arguments.items()
        }
        return {"function": f"{function.__module__}:{function.__qualname__}", "arguments": given}

    @property
    def code(self) -> Code:
        """See `Task`."""
        return _code(*sorted({self.function.__module__, *_modules(self.arguments)}))

    @property
    def arrivals_s(self) -> float | None:
        """See `Task`: by arguments `requests` and `rate_rps`, else of a run among the arguments."""
        given = self.arguments
        requests, rate_rps = given.get("requests"), given.get("rate_rps")
        if isinstance(requests, int) and isinstance(rate_rps, float):
            return requests / rate_rps
        return next((each.arrivals_s for each in given.values() if isinstance(each, Simulated)), None)

    def carry_out(self, seed: int) -> Mapping[str, float]:
        """See `Task`."""
        return self.function(seed=seed, **self.arguments)


def simulated(
    shape: str,
    policy: str | PolicyChoice,
    *,
    workload: str | Path | WorkloadSource,
    limit: int | None = None,
    duration_s: float | None = None,
    rate_rps: float | None = None,
    rate_scale: float = 1.0,
    arrivals: ArrivalProcess | None = None,
    closed_loop: bool = False,
    binding: Binding = Binding.LATE,
    slo: str = "",
    fleet: FleetSettings | None = None,
    hardware: Mapping[str, Any] | None = None,
    profiles: Sequence[HardwareProfile] = (),
    **more: Any,
) -> Simulated:
    """A run from what `ballast simulate` takes as options; `more` are further fields of `RunSpec`.

    `profiles` are known to the shape beside the shipped ones. `workload` names a generator, is a trace file of which
    every seed then reads another part, or a whole source. Policies see no output lengths and no max_tokens unless
    `fleet` says so. `hardware` are fields of all profiles that are other than theirs.
    """
    source: WorkloadSource
    if isinstance(workload, WorkloadSource):
        source = workload
    elif isinstance(workload, Path):
        source = SeededTrace(trace=workload, limit=limit, seeds=FULL_SEEDS)
    else:
        source = WorkloadSource(
            workload=workload,
            rate_rps=rate_rps,
            duration_s=duration_s,
            limit=limit,
            arrivals=arrivals,
            closed_loop=closed_loop,
        )
    setup = Setup(
        machines=tuple(
            replace(machine, profile=replace(machine.profile, **hardware or {}))
            for machine in parse_shape(shape, profiles={**SHIPPED_PROFILES, **{each.name: each for each in profiles}})
        ),
        shape=shape,
        source=source,
        objective=Objective.parse(slo),
        fleet=fleet or FleetSettings(known_limits=False),
    )
    choice = parse_policies(policy)[0] if isinstance(policy, str) else policy
    return Simulated(RunSpec(setup=setup, policy=choice, rate_scale=rate_scale, binding=binding, **more))


def flat(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row of `ballast simulate --json`, by one name each; those that are null are left out."""
    figures: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and name.endswith("_s"):
            parts = {f"{name[:-2]}_{part}_s": number for part, number in value.items()}
        else:
            parts = {name: value}
        for part, number in parts.items():
            if isinstance(number, (int, float)) and not isinstance(number, bool) and part not in _NOT_FIGURES:
                figures[part] = float(number)
    return figures


def description_of(value: object) -> str:
    """As `repr`, but fields of dataclasses that have their default are left out: a new one changes no description."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = [
            f"{each.name}={description_of(getattr(value, each.name))}"
            for each in fields(value)
            if not _is_default(each, getattr(value, each.name))
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(description_of, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {description_of(each)}' for name, each in value.items())}}}"
    return repr(value)


def _is_default(each: Field[Any], value: object) -> bool:
    if each.default is not MISSING:
        return bool(value == each.default)
    return each.default_factory is not MISSING and bool(value == each.default_factory())


def _modules(value: object) -> Iterator[str]:
    """Of the classes of all dataclasses within."""
    if is_dataclass(value) and not isinstance(value, type):
        yield type(value).__module__
        for each in fields(value):
            yield from _modules(getattr(value, each.name))
    elif isinstance(value, Mapping):
        for each_value in value.values():
            yield from _modules(each_value)
    elif isinstance(value, (tuple, list)):
        for each_value in value:
            yield from _modules(each_value)


def _code(*modules: str) -> Code:
    return Code(modules_digest(*modules), common_digest())


@functools.cache
def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.exists() else path.name
