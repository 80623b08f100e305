"""Runs of SIBYL's part that `ballast simulate` has no option for: what lies behind its tails; its survival curve."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ballast_sim.calibration import LengthSettings, score_lengths, workload_in_order
from ballast_sim.simulation.figures.results import summarise
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.runs.experiment import RunSpec, build_fleet
from bench.reproduce.tasks import Simulated, flat

SAMPLE_EVERY_S = 5.0


def balance(seed: int, run: Simulated) -> Mapping[str, float]:
    """The figures of a run, and how evenly sequences and KV tokens lie on the decode endpoints.

    `sequences_cv` and `tokens_cv` are coefficients of variation over endpoints, every 5 s while requests arrive, the
    first fifth of that time left out; `sequences_most` is the largest batch seen.
    """
    spec: RunSpec = run.with_seed(seed)
    load = spec.setup.source.load(seed, spec.rate_scale)
    fleet = build_fleet(spec, load)
    until_s = load.requests[-1].arrival_s
    sequences_cv: list[float] = []
    tokens_cv: list[float] = []
    most = 0

    def sample() -> None:
        nonlocal most
        if not until_s / 5 <= fleet.kernel.now_s <= until_s:
            return
        sequences, tokens = _loads(fleet)
        most = max(most, *sequences)
        for values, found in ((sequences, sequences_cv), (tokens, tokens_cv)):
            if (mean := statistics.fmean(values)) > 0:
                found.append(statistics.pstdev(values) / mean)

    fleet.every(SAMPLE_EVERY_S, sample)
    fleet.run()
    return {
        **flat(summarise(fleet, spec.setup.objective)),
        "sequences_cv": statistics.fmean(sequences_cv),
        "tokens_cv": statistics.fmean(tokens_cv),
        "sequences_most": float(most),
    }


def _loads(fleet: Fleet) -> tuple[Sequence[int], Sequence[float]]:
    """Of every decode endpoint: running sequences, and KV tokens in use."""
    sequences, tokens = [], []
    for machine, observation in fleet.world.observe():
        if observation is not None and str(machine.endpoint.id).startswith("d"):
            sequences.append(observation.running)
            tokens.append(observation.kv_usage_ratio * machine.profile.kv_tokens)
    return sequences, tokens


def calibration(seed: int, workload: str, requests: int) -> Mapping[str, float]:
    """SIBYL's survival curve learned from the first half of a workload, scored on the other: figure 7's error surface.

    `ema_*` is the paper's estimator, `censoring_*` our own. Percent.
    """
    drawn = workload_in_order(WorkloadSource(workload=workload, rate_rps=4.0, limit=requests), seed)
    figures = {}
    for score in score_lengths(drawn, LengthSettings(seed=seed)):
        if not score.limited and not score.by_class:
            name = "ema" if score.estimator == "ema" else "censoring"
            figures[f"{name}_mean"] = 100 * score.score.surface_mean
            figures[f"{name}_largest"] = 100 * score.score.surface_max
            figures[f"{name}_below_5"] = 100 * score.score.surface_below(0.05)
    return figures
