"""The runs of one `ballast simulate`: policies, seeds and bindings, at one rate, on one set-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ballast_core.model import Binding
from ballast_sim.physics import PHYSICS
from ballast_sim.settings import SettingError
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.inputs.source import SourceError, WorkloadSource
from ballast_sim.simulation.policies.choice import PolicyChoice
from ballast_sim.simulation.runs.experiment import RunSpec, Setup
from ballast_sim.workloads import TraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One run for each policy, binding and seed, at one rate."""

    setup: Setup
    policies: tuple[PolicyChoice, ...]
    seeds: tuple[int, ...] = (0,)
    bindings: tuple[Binding, ...] = (Binding.LATE,)
    curves: bool = False

    def runs(self, rate_scale: float, load: float | None) -> list[RunSpec]:
        """In the order of the rows: by policy, binding, seed."""
        return [
            RunSpec(
                setup=self.setup,
                policy=policy,
                seed=seed,
                rate_scale=rate_scale,
                binding=binding,
                load=load,
                curves=self.curves,
            )
            for policy in self.policies
            for binding in self.bindings
            for seed in self.seeds
        ]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Reads `0` or `0,1,2`. Raises ValueError."""
    seeds: list[int] = []
    for part in text.split(","):
        if not part.strip().isdecimal():
            raise SettingError("seed", f"{part.strip()!r} in {text!r} is not a whole number; write such as 0 or 0,1,2")
        seeds.append(int(part))
    if len(set(seeds)) < len(seeds):
        raise SettingError("seed", f"{text!r} names a seed twice; its runs would be the same")
    return tuple(seeds)


def check_fits(machines: Sequence[Machine], source: WorkloadSource, seed: int, physics: str = "vllm") -> None:
    """Raises SourceError or TraceError naming the first request that some engine of the fleet could never hold."""
    model = PHYSICS[physics]
    smallest = min(machines, key=lambda machine: model.max_model_len(machine.profile))
    longest = model.max_model_len(smallest.profile)
    for request in source.load(seed, 1.0).requests:
        if request.input_tokens + request.output_tokens > longest:
            problem = (
                f"{source.where(request)}: a request of {request.input_tokens} input and {request.output_tokens} "
                f"output tokens does not fit an engine of {smallest.profile.name}, which holds {longest} tokens; "
                "remove it or choose another profile"
            )
            raise SourceError("workload", problem) if source.trace is None else TraceError(problem)
