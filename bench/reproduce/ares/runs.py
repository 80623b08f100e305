"""Runs of ARES's part that `ballast simulate` has no option for: goodput at many objectives from one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ballast_sim.simulation.figures.results import meets, summarise
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.runs.experiment import RunSpec, build_fleet
from bench.reproduce.tasks import Simulated, flat


def goodput_name(tpot_ms: int) -> str:
    """Of the figure."""
    return f"goodput_{tpot_ms}ms_rps"


def swept(seed: int, run: Simulated, tpot_ms: Sequence[int]) -> Mapping[str, float]:
    """The figures of a run, and its goodput in requests a second at each of these objectives for TPOT."""
    spec: RunSpec = run.with_seed(seed)
    fleet = build_fleet(spec, spec.setup.source.load(seed, spec.rate_scale))
    fleet.run()
    figures = flat(summarise(fleet, spec.setup.objective))
    for limit_ms in tpot_ms:
        objective = Objective(tpot_s=limit_ms / 1e3)
        met = sum(meets(record, objective) for record in fleet.records if record.arrived)
        figures[goodput_name(limit_ms)] = met / figures["duration_s"]
    return figures
