"""UniBoost's starvation experiment (A.3), whose lengths no built-in workload has."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ballast_sim.simulation.inputs.source import Load
from ballast_sim.simulation.runs.experiment import RunSpec, build_fleet
from ballast_sim.workloads import WorkloadRequest
from bench.reproduce.tasks import Simulated

SHORT, LONG, LONG_SHARE = (125, 100), (2_000, 6_000), 0.1


def starvation(seed: int, run: Simulated, rate_rps: float, requests: int) -> Mapping[str, float]:
    """E2E of short and of long requests, and by how much that of long ones grows with their number (s a request)."""
    rng = random.Random(f"a3 {seed}")
    at_s, load = 0.0, []
    for _ in range(requests):
        at_s += rng.expovariate(rate_rps)
        tokens = LONG if rng.random() < LONG_SHARE else SHORT
        load.append(WorkloadRequest(arrival_s=at_s, input_tokens=tokens[0], output_tokens=tokens[1]))
    spec: RunSpec = replace(run.spec, seed=seed)
    fleet = build_fleet(spec, Load(tuple(load), {}))
    fleet.run()
    found: dict[str, float] = {"requests": float(requests), "preemptions": float(fleet.world.preemptions())}
    for name, output_tokens in (("short", SHORT[1]), ("long", LONG[1])):
        known = [
            (record.index, record.e2e_s)
            for record in fleet.records
            if record.output_tokens == output_tokens and record.e2e_s is not None
        ]
        values = np.array([e2e_s for _, e2e_s in known])
        found |= {f"{name}_mean_s": float(values.mean()), f"{name}_max_s": float(values.max())}
        found[f"{name}_p99_s"] = float(np.percentile(values, 99))
        found[f"{name}_slope_s"] = float(np.polyfit([index for index, _ in known], values, 1)[0])
    return found
