"""Where a run's requests come from: a trace file or a generator, cut, scaled and seeded."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ballast_sim.settings import SettingError
from ballast_sim.workloads import (
    LONGEST_S,
    POISSON,
    ArrivalProcess,
    NoArrivals,
    WorkloadRequest,
    check_count,
    check_limit,
    clip,
    generate,
    has_coarse_stamps,
    line_of,
    read_lengths,
    read_trace,
    scale_arrivals,
    spread_equal_arrivals,
)

DEFAULT_DURATION_S = 600.0
"""How long a generator's workload is where neither a duration nor a limit is given."""

DEFAULT_RATE_RPS = 1.0
"""Of a file of lengths."""


class SourceError(SettingError):
    """A workload that cannot be used; the message names option or file, and the fix."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one run, in order of arrival; `turn_after` is `Fleet.load`'s."""

    requests: tuple[WorkloadRequest, ...]
    turn_after: dict[int, tuple[int, float]]

    @property
    def rate_rps(self) -> float | None:
        """Mean rate of the arrivals (as in the file, where sessions run closed-loop); None for a single instant."""
        return mean_rate_rps([request.arrival_s for request in self.requests])


def mean_rate_rps(arrivals_s: Sequence[float]) -> float | None:
    """Arrivals a second between the first and the last; None for a single instant."""
    span_s = max(arrivals_s, default=0.0) - min(arrivals_s, default=0.0)
    return (len(arrivals_s) - 1) / span_s if span_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSource:
    """A trace file or the name of a generator, and how much of it. Values are checked when requests are made.

    `closed_loop`: a session's next turn arrives after the one before has ended plus the logged interval between the
    two, which the rate does not scale; the starts of sessions are scaled.
    """

    trace: Path | None = None
    workload: str = "chat"
    rate_rps: float | None = None
    duration_s: float | None = None
    limit: int | None = None
    closed_loop: bool = False
    arrivals: ArrivalProcess | None = None
    """Of a generator, or of a file of lengths; None is Poisson."""

    @property
    def name(self) -> str:
        """The workload's name, or the file's."""
        return self.workload if self.trace is None else self.trace.name

    def where(self, request: WorkloadRequest) -> str:
        """The origin of a request with these lengths, for errors: file and line, or the generator's name."""
        if self.trace is None:
            return self.workload
        line = line_of(self.trace, (request.input_tokens, request.output_tokens))
        return str(self.trace) if line is None else f"{self.trace}: line {line}"

    def remarks(self) -> list[str]:
        """What of the requests is not as in the file, in words. Raises TraceError."""
        if self.trace is None or _lengths_only(self.trace) is not None:
            return []
        coarse = has_coarse_stamps(trace_requests(self.trace))
        return ["requests that share one of Mooncake's stamps arrive spread over its 3 s"] if coarse else []

    def load(self, seed: int, rate_scale: float) -> Load:
        """The requests at `rate_scale` times the rate. Raises TraceError, or ValueError naming an argument."""
        requests = self._scaled(seed, rate_scale)
        if not requests:
            raise SourceError(
                "duration_s", f"no request of {self.name} arrives in {self.duration_s:g} s; make it longer"
            )
        if requests[-1].arrival_s > LONGEST_S:
            raise SourceError(
                ("rate_scale", "rate_rps"),
                f"{self.name} then lasts more than ten years; give a higher rate or a --duration",
            )
        return Load(tuple(requests), turns(requests) if self.closed_loop else {})

    def _scaled(self, seed: int, rate_scale: float) -> list[WorkloadRequest]:
        self._check(rate_scale)
        if self.trace is None:
            requests = generate(
                self.workload,
                rate_rps=self.rate_rps,
                rate_scale=rate_scale,
                duration_s=self._drawn_s,
                seed=seed,
                limit=self.limit,
                process=self.arrivals or POISSON,
            )
        elif (lengths := _lengths_only(self.trace)) is not None:
            requests = self._drawn(lengths, seed, rate_scale)
        else:
            self._check_own_arrivals()
            whole = spread_equal_arrivals(trace_requests(self.trace), seed=seed)
            scaled = (scale_sessions if self.closed_loop else scale_arrivals)(whole, rate_scale)
            requests = clip(scaled, self.duration_s or math.inf, self.limit)
        if self.closed_loop and all(request.session is None for request in requests):
            raise SourceError("closed_loop", f"{self.name} has no sessions; leave the option out")
        return requests

    def _drawn(self, lengths: Sequence[tuple[int, int]], seed: int, rate_scale: float) -> list[WorkloadRequest]:
        """Of a file of lengths."""
        process, duration_s = self.arrivals or POISSON, self._drawn_s
        if self.limit is None:
            check_count(
                process,
                rate_rps=self.rate_rps,
                default_rps=DEFAULT_RATE_RPS,
                rate_scale=rate_scale,
                duration_s=duration_s,
            )
        rate_rps = (DEFAULT_RATE_RPS if self.rate_rps is None else self.rate_rps) * rate_scale
        return draw(lengths, process=process, rate_rps=rate_rps, duration_s=duration_s, limit=self.limit, seed=seed)

    def _check(self, rate_scale: float) -> None:
        if not 0 < rate_scale < math.inf:
            raise SourceError("rate_scale", f"must be above 0 and finite, not {rate_scale:g}")
        if self.duration_s is not None and not self.duration_s > 0:
            raise SourceError("duration_s", f"must be above 0 s, not {self.duration_s:g}")
        if self.duration_s == math.inf and self.limit is None:
            raise SourceError(
                "duration_s", "must be finite without a --limit; a trace is taken whole where it is left out"
            )
        check_limit(self.limit)
        if self.rate_rps is not None and not 0 < self.rate_rps < math.inf:
            raise SourceError("rate_rps", f"must be above 0 and finite, not {self.rate_rps:g}")

    def _check_own_arrivals(self) -> None:
        if self.rate_rps is not None:
            raise SourceError("rate_rps", "a trace has its own rate; use --rate-scale or --load")
        if self.arrivals is not None:
            raise SourceError("arrivals", "a trace has its own arrivals; leave the option out")

    @property
    def _drawn_s(self) -> float:
        """How long arrivals are drawn."""
        return self.duration_s or (math.inf if self.limit is not None else DEFAULT_DURATION_S)


def trace_requests(path: Path) -> Sequence[WorkloadRequest]:
    """A trace file's requests, kept from call to call while the file does not change. Raises TraceError."""
    try:
        state = path.stat()
    except OSError:
        return read_trace(path)  # raises the error that names the file
    return _read_trace(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=2)
def _read_trace(path: Path, changed_ns: int, size: int) -> tuple[WorkloadRequest, ...]:
    return tuple(read_trace(path))


def _lengths_only(path: Path) -> Sequence[tuple[int, int]] | None:
    """The rows of a file that has no arrivals; None for one that has."""
    try:
        trace_requests(path)
    except NoArrivals:
        return read_lengths(path)
    return None


def draw(
    lengths: Sequence[tuple[int, int]],
    *,
    process: ArrivalProcess,
    rate_rps: float,
    duration_s: float,
    limit: int | None,
    seed: int,
) -> list[WorkloadRequest]:
    """Rows drawn at random, with replacement, at the arrivals of a process."""
    arrivals, rows = random.Random(f"arrivals {seed}"), random.Random(f"rows {seed}")
    requests: list[WorkloadRequest] = []
    for arrival_s in process.times(rate_rps, arrivals):
        if arrival_s >= duration_s or (limit is not None and len(requests) >= limit):
            break
        input_tokens, output_tokens = rows.choice(lengths)
        requests.append(WorkloadRequest(arrival_s=arrival_s, input_tokens=input_tokens, output_tokens=output_tokens))
    return requests


def scale_sessions(requests: Sequence[WorkloadRequest], rate_scale: float) -> list[WorkloadRequest]:
    """Sessions start at `rate_scale` times their rate; within one, time runs as before."""
    starts: dict[int, float] = {}
    moved = []
    for request in requests:
        start_s = (
            request.arrival_s if request.session is None else starts.setdefault(request.session, request.arrival_s)
        )
        moved.append(replace(request, arrival_s=start_s / rate_scale + (request.arrival_s - start_s)))
    return sorted(moved, key=lambda request: request.arrival_s)


def turns(requests: Sequence[WorkloadRequest]) -> dict[int, tuple[int, float]]:
    """By index of a request with a previous one in its session: (index of that one, seconds between the two)."""
    last: dict[int, int] = {}
    found: dict[int, tuple[int, float]] = {}
    for index, request in enumerate(requests):
        if request.session is None:
            continue
        if request.session in last:
            previous = last[request.session]
            found[index] = (previous, request.arrival_s - requests[previous].arrival_s)
        last[request.session] = index
    return found
