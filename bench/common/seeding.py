"""Traces whose seeds differ: a file has one order of arrivals, and equal runs would make a false interval.

The seeds take the file in turn: each reads a part of its own, `limit` requests long. Where the file is shorter than
`limit`, every seed reads all of it and, but for the first, moves each session (each request, where there are none) by
up to `JITTER_RATIO` of the span to either side.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ballast_sim.simulation.inputs.source import Load, WorkloadSource, trace_requests
from ballast_sim.workloads import WorkloadRequest, scale_arrivals, spread_equal_arrivals

JITTER_RATIO = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededTrace(WorkloadSource):
    """A trace file of which every one of `seeds` sees something else. Takes `trace` and `limit`; the rest is unused."""

    seeds: tuple[int, ...]

    def load(self, seed: int, rate_scale: float) -> Load:
        """The requests of a seed's part at `rate_scale` times their rate. Raises TraceError; KeyError: no such seed."""
        assert self.trace is not None
        assert self.limit is not None
        turn = dict(zip(self.seeds, range(len(self.seeds)), strict=True))[seed]
        requests = _part(self.trace, self.limit, turn, len(self.seeds))
        return Load(tuple(scale_arrivals(requests, rate_scale)), {})


@functools.lru_cache(maxsize=64)
def _part(trace: Path, limit: int, turn: int, turns: int) -> tuple[WorkloadRequest, ...]:
    rows = trace_requests(trace)
    if len(rows) <= limit:
        return tuple(jittered(rows, turn) if turn else rows)
    return tuple(from_zero(spread_equal_arrivals(rows[part_of(len(rows), limit, turn, turns)], seed=turn)))


def part_of(rows: int, limit: int, turn: int, turns: int) -> slice:
    """`limit` rows from the `turn`-th of `turns` equally distant starts; parts overlap only where they must."""
    apart = min(limit, (rows - limit) // max(1, turns - 1))
    return slice(turn * apart, turn * apart + limit)


def from_zero(requests: Sequence[WorkloadRequest]) -> list[WorkloadRequest]:
    """The same requests, the first one at 0 s."""
    start_s = requests[0].arrival_s
    return [replace(request, arrival_s=request.arrival_s - start_s) for request in requests]


def jittered(requests: Sequence[WorkloadRequest], seed: int) -> list[WorkloadRequest]:
    """Each session as a whole, or each request without one, earlier or later; in order of arrival, the first at 0 s."""
    rng = random.Random(f"jitter {seed}")
    reach_s = JITTER_RATIO * (requests[-1].arrival_s - requests[0].arrival_s)
    shifts: dict[int, float] = {}
    moved = []
    for request in requests:
        drawn_s = rng.uniform(-reach_s, reach_s)
        shift_s = drawn_s if request.session is None else shifts.setdefault(request.session, drawn_s)
        moved.append(replace(request, arrival_s=request.arrival_s + shift_s))
    return from_zero(sorted(moved, key=lambda request: request.arrival_s))
