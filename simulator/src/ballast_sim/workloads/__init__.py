"""Workloads: requests with arrivals and lengths, generated or read from a trace file.

`load_workload` is what commands call: a built-in generator by name, or a file in any known format.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from ballast_sim.settings import SettingError
from ballast_sim.workloads.arrivals import POISSON, ArrivalProcess, check_count, check_limit
from ballast_sim.workloads.formats import TraceError
from ballast_sim.workloads.generators import GENERATORS, Generator, generate
from ballast_sim.workloads.request import (
    WorkloadRequest,
    clip,
    has_coarse_stamps,
    scale_arrivals,
    spread_equal_arrivals,
)
from ballast_sim.workloads.traces import LONGEST_S, NoArrivals, line_of, read_lengths, read_trace

__all__ = [
    "GENERATORS",
    "LONGEST_S",
    "POISSON",
    "ArrivalProcess",
    "Generator",
    "NoArrivals",
    "TraceError",
    "WorkloadRequest",
    "check_count",
    "check_limit",
    "clip",
    "generate",
    "has_coarse_stamps",
    "line_of",
    "load_workload",
    "read_lengths",
    "read_trace",
    "scale_arrivals",
    "spread_equal_arrivals",
]


def load_workload(
    *,
    trace: Path | None = None,
    workload: str = "chat",
    duration_s: float,
    rate_rps: float | None = None,
    rate_scale: float = 1.0,
    limit: int | None = None,
    seed: int = 0,
) -> Sequence[WorkloadRequest]:
    """The first `duration_s` of a trace file or of a generator's arrivals, at `rate_scale` times their rate.

    A trace has its own rate, so `rate_rps` is the generators'; None takes the generator's default. Raises TraceError
    for a file that cannot be read, ValueError naming any other argument.
    """
    if not 0 < rate_scale < math.inf:
        raise SettingError("rate_scale", f"must be above 0 and finite, not {rate_scale!r}")
    if not duration_s > 0:
        raise SettingError("duration_s", f"must be above 0, not {duration_s!r}")
    check_limit(limit)
    if trace is None:
        if duration_s == math.inf and limit is None:
            raise SettingError("duration_s", "a built-in workload never ends by itself; must be finite, not inf")
        return generate(
            workload, rate_rps=rate_rps, rate_scale=rate_scale, duration_s=duration_s, seed=seed, limit=limit
        )
    if rate_rps is not None:
        raise SettingError("rate_rps", "a trace has its own rate; use --rate-scale")
    requests = spread_equal_arrivals(read_trace(trace), seed=seed)
    return clip(scale_arrivals(requests, rate_scale), duration_s, limit)
