"""What Libra's experiments at given rates compute, with a time-between-tokens objective of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ballast_core.policies.registry import build_placement
from ballast_core.policies.suite import Suite
from ballast_sim.engine.batching import LocalBatching
from ballast_sim.simulation.figures.results import summarise
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import PolicyChoice
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, build_fleet
from bench.reproduce.libra.loads_profiles import PROFILES
from bench.reproduce.libra.runs import TBT_S, System, at_rate, capacity, load_of, measure


def at_load(
    *, seed: int, system: System, workload: str, rate_rps: float, requests: int, tbt_s: float = TBT_S
) -> Mapping[str, float]:
    """Figures at one rate, however much of the load is too much. Here a system's shape has whole names of profiles."""
    placement = build_placement("least-requests")
    objective = Objective(tbt_s=tbt_s)
    setup = Setup(
        machines=parse_shape(system.shape, profiles=PROFILES),
        shape=system.shape,
        source=WorkloadSource(workload="chat"),
        objective=objective,
        fleet=FleetSettings(
            known_limits=False,
            local_batching=LocalBatching.parse(system.batching),
            length_hints=LengthHints.parse("oracle"),
            **dict(system.settings),
        ),
    )
    choice = PolicyChoice("libra", Suite(prefill=placement, decode=placement, partition=system.partition))
    built = build_fleet(RunSpec(setup=setup, policy=choice, seed=seed), load_of(workload, rate_rps, requests, seed))
    built.run()
    figures: dict[str, Any] = summarise(built, objective)
    return {
        **at_rate(figures),
        "ttft_mean_s": float(figures["ttft_s"]["mean"]),
        "attainment": float(figures["attainment"]),
    }


def batchings(
    *, seed: int, system: System, workload: str, start_rps: float, lasts_s: float, others: Sequence[str]
) -> Mapping[str, float]:
    """The share of gaps within the objective at a system's capacity: with its own batching and with others."""
    found = capacity(seed=seed, system=system, workload=workload, start_rps=start_rps, lasts_s=lasts_s)
    rate_rps = found["capacity_rps"]
    if "late_ratio" not in found:
        return {"capacity_rps": rate_rps}
    shown = {name: found[name] for name in ("arrivals_s", "e2e_p99_s", "capacity_rps")}
    seen: dict[str, Mapping[str, float]] = {system.batching: found}
    for batching in others:
        other = replace(system, batching=batching)
        seen[batching] = at_rate(measure(other, workload, rate_rps, round(rate_rps * lasts_s), seed))
    for batching, figures in seen.items():
        shown[f"within {batching}"] = 1 - figures["late_ratio"]
        for share in ("p50", "p99"):
            shown[f"{share} {batching}"] = figures[f"tbt_{share}_s"]
    return shown
