"""The figures of a run, and measured capacities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.common.store import rounded


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. `goodput_rps` counts the requests that met the workload's thresholds."""

    tpot_p99_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    ttft_mean_s: float
    goodput_rps: float
    preemptions: int
    completed: int
    rejected: int
    cpu_s: float
    """Processor time of the run; this machine's."""

    @classmethod
    def of(cls, row: Mapping[str, Any], cpu_s: float) -> Figures:
        """From a row of `ballast simulate --json`. Raises ValueError where no request has a second token."""
        tpot, ttft = row["tpot_s"], row["ttft_s"]
        if tpot["p99"] is None:
            raise ValueError("no request completed with two tokens or more; the run has no TPOT")
        return cls(
            tpot_p99_s=rounded(tpot["p99"]),
            ttft_p99_s=rounded(ttft["p99"]),
            tpot_mean_s=rounded(tpot["mean"]),
            ttft_mean_s=rounded(ttft["mean"]),
            goodput_rps=rounded(row["goodput_rps"]),
            preemptions=row["preemptions"],
            completed=row["completed"],
            rejected=row["rejected"],
            cpu_s=round(cpu_s, 2),
        )


@dataclass(frozen=True, slots=True)
class Capacity:
    """Where load 1.0 lies. `full_ratio` is the measured capacity over what arithmetic says of the same requests."""

    rate_rps: float
    full_ratio: float
    probes: int
    bounded: bool
    cpu_s: float


def worse_ratio(value: float, against: float, *, more_is_better: bool) -> float:
    """By which factor a figure is worse than another; below 1 where it is better. Both 0 are equal."""
    if value == against:
        return 1.0
    worse, better = (against, value) if more_is_better else (value, against)
    return worse / better if better else math.inf
