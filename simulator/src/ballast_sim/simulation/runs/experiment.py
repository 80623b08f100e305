"""One run of `ballast simulate`, from its description to its figures. Descriptions and outcomes can be pickled."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version

import numpy as np

from ballast_core import kernel
from ballast_core.beliefs.survival_book import SurvivalSettings
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Binding
from ballast_sim.engine.scheduling import VLLM_OWN
from ballast_sim.settings import SettingError
from ballast_sim.simulation.autoscaling.controller import Autoscaler
from ballast_sim.simulation.autoscaling.settings import Autoscaling
from ballast_sim.simulation.figures.balance import EVERY_S, Balance
from ballast_sim.simulation.figures.results import summarise
from ballast_sim.simulation.figures.timeline import Timeline
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import NO_HINTS
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.inputs.source import Load, WorkloadSource, mean_rate_rps
from ballast_sim.simulation.policies.choice import PolicyChoice
from ballast_sim.simulation.requests.records import Record

CURVE_POINTS = 400
_ENDLESS = SurvivalSettings(prior_scale_tokens=1e12)
"""The length belief where lengths are known: a request ends only at its own limit."""

Beat = Callable[[float], bool]
"""Called repeatedly with the share of requests that have ended; returns True to stop the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the runs of one comparison have in common."""

    machines: tuple[Machine, ...]
    shape: str
    source: WorkloadSource
    objective: Objective = field(default_factory=Objective)
    fleet: FleetSettings = field(default_factory=lambda: FleetSettings(known_limits=False))
    autoscaling: Autoscaling | None = None
    """None: the machines stay as they are."""

    def __post_init__(self) -> None:
        """Raises SettingError for an objective that such engines tell nothing of."""
        if self.objective.tbt_s is not None and self.fleet.physics != "vllm":
            raise SettingError(
                ("slo", "physics"), f"physics {self.fleet.physics} does not time single tokens; leave tbt out"
            )

    @property
    def unharmed(self) -> Setup:
        """The same without failures, predicted lengths, queue orders and scaling: what capacity is measured on."""
        return replace(
            self,
            autoscaling=None,
            fleet=replace(self.fleet, failures=(), length_hints=NO_HINTS, engine_scheduler=VLLM_OWN),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run."""

    setup: Setup
    policy: PolicyChoice
    seed: int = 0
    rate_scale: float = 1.0
    binding: Binding = Binding.LATE
    load: float | None = None
    """The share of capacity that `rate_scale` stands for, where a load was asked for."""
    curves: bool = False
    """Whether the outcome carries what plots need."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Quantile functions at `CURVE_POINTS` equal steps of share, and load over time."""

    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    e2e_s: tuple[float, ...]
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run's figures as `--json` writes them."""

    figures: dict[str, object]
    curves: Curves | None = None

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped before every request had ended."""
        return bool(self.figures["interrupted"])


def director_settings(spec: RunSpec) -> DirectorSettings:
    """Of every gateway of a run."""
    scaling = spec.setup.autoscaling
    return DirectorSettings(
        **spec.policy.suite.parts(),
        hold_s=scaling.hold_s if scaling is not None and scaling.zero_after_s is not None else 0.0,
        binding=spec.binding,
        profiles={machine.profile.name: machine.profile for machine in spec.setup.machines},
        lengths=_ENDLESS if spec.policy.knows_lengths else SurvivalSettings(),
    )


def build_fleet(spec: RunSpec, load: Load, *, stepwise: bool = False) -> Fleet:
    """The fleet of a run, loaded; `stepwise` as in `Fleet`. Raises ValueError for a request that fits no KV cache."""
    knows_lengths = spec.policy.knows_lengths
    around = replace(spec.setup.fleet, seed=spec.seed, known_limits=knows_lengths or spec.setup.fleet.known_limits)
    fleet = Fleet(
        spec.setup.machines,
        director_settings(spec),
        around,
        stopwatch=time.perf_counter,
        stepwise=stepwise,
        tbt_limit_s=spec.setup.objective.tbt_s,
    )
    fleet.load(load.requests, load.turn_after)
    return fleet


def run(spec: RunSpec, beat: Beat | None = None, *, stepwise: bool = False) -> Outcome:
    """Simulate to the end, or until `beat` returns True. Raises TraceError and ValueError for what cannot run.

    `stepwise` computes every engine step singly: the same figures, more slowly.
    """
    started_s = time.perf_counter()
    load = spec.setup.source.load(spec.seed, spec.rate_scale)
    fleet = build_fleet(spec, load, stepwise=stepwise)
    if beat is not None:
        fleet.every(1.0, lambda: _beat(fleet, beat))
    autoscaler = None
    if spec.setup.autoscaling is not None:
        autoscaler = Autoscaler.of(fleet, spec.setup.autoscaling, spec.setup.objective, director_settings(spec))
    timeline = None
    if spec.curves:
        timeline = Timeline.of(fleet.world, max(0.1, load.requests[-1].arrival_s / 240))
        fleet.every(timeline.every_s, lambda: timeline.sample(fleet.world, fleet.kernel.now_s))
    balance = Balance()
    fleet.every(EVERY_S, lambda: balance.sample(fleet) if fleet.to_come else None)
    fleet.run()
    figures = {
        "policy": spec.policy.name,
        "placements": spec.policy.placements,
        "policies": spec.policy.types,
        **summarise(fleet, spec.setup.objective),
        **balance.figures(),
        "sim_wall_s": time.perf_counter() - started_s,
        "rate_rps": mean_rate_rps([record.arrival_s for record in fleet.records if record.arrived]),
        "load": spec.load,
        "seed": spec.seed,
        "versions": versions(),
        "binding": spec.binding.value,
        "shape": spec.setup.shape,
        "workload": spec.setup.source.name,
        "rate_scale": spec.rate_scale,
        "closed_loop": spec.setup.source.closed_loop,
        "gateways": spec.setup.fleet.gateways,
        "physics": spec.setup.fleet.physics,
        "lengths": str(spec.setup.fleet.length_hints),
        "local_batching": str(spec.setup.fleet.local_batching),
        "cut_tokens": spec.setup.fleet.cut_tokens,
        "kv_transfer": spec.setup.fleet.kv_transfer,
        "engine_scheduler": spec.setup.fleet.engine_scheduler.name,
        "interrupted": fleet.stopped,
    }
    if autoscaler is not None:
        figures["autoscaling"] = autoscaler.figures(_arrivals_end_s(fleet))
    return Outcome(figures, _curves(fleet.records, timeline) if timeline else None)


def versions() -> dict[str, str]:
    """What computed the figures."""
    return {
        "ballast": version("ballast"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "decided by": kernel.name(),
    }


def _arrivals_end_s(fleet: Fleet) -> float:
    """The last arrival; now where more were to come."""
    return fleet.kernel.now_s if fleet.to_come else max(record.arrival_s for record in fleet.records)


def _beat(fleet: Fleet, beat: Beat) -> None:
    if beat(1 - fleet.open_requests / len(fleet.records)):
        fleet.stop()


def _curves(records: Sequence[Record], timeline: Timeline) -> Curves:
    done = [record for record in records if record.completed]
    return Curves(
        _quantiles([record.ttft_s for record in done]),
        _quantiles([record.tpot_s for record in done]),
        _quantiles([record.e2e_s for record in done]),
        timeline,
    )


def _quantiles(values: Sequence[float | None]) -> tuple[float, ...]:
    """The values at equal steps of share, from the least to the largest."""
    known = [value for value in values if value is not None]
    if not known:
        return ()
    return tuple(float(q) for q in np.quantile(known, np.linspace(0, 1, min(CURVE_POINTS, len(known)))))
