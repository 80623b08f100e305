"""How long Libra takes to cut one request, with kept timelines and with everything simulated again for each probe.

Time of `Director.on_event(RequestArrived)` on one core, by the wall clock and in processor time: the least-loaded pair
among 16, 64 or 256 flexible endpoints, up to 14 probes, and the request on all books. Some 40 requests a endpoint are
in flight. Between two decisions happens what happens in a fleet whose requests come as often as they end: a request
gets its first token, one reaches its cut, one ends, 31 report 16 tokens more.

"naive" decides by the same rules and books: of every endpoint, and for every probe, it simulates the queue from the
beginning. (Kept timelines of endpoints that a request does not go to are up to a second old, so now and then another
pair is the least-loaded one.) The paper says 18 ms a request at most, with two instances.

Prints a table; `--json FILE` writes the figures, `--against FILE` compares medians of processor time with those of
another run, in units of a fixed piece of numpy work (`bench/comparison.py`). `bench/recorded/partition.json` is the
last recorded run.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.directing.director import Director
from ballast_core.directing.partitioner import Partitioner
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Outcome, Request, RequestId, Role
from ballast_core.model.effects import Dispatch
from ballast_core.model.events import EndpointObserved, FirstToken, Progress, RequestArrived, RequestEnded, SegmentDone
from ballast_core.policies.partition.fixed import Fixed
from ballast_core.policies.partition.forecast import Forecast, Rules, outstanding, pace
from ballast_core.policies.partition.libra import Libra
from ballast_core.policies.partition.timeline import Pace, Part, Timeline
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.book import Book
from ballast_core.state.view import View
from bench.comparison import Calibration, Earlier, Recording, Row

SIZES = (16, 64, 256)
IN_FLIGHT = 40
"""Requests for each endpoint."""
LIFE_S = 20.0
LONGEST_S = 15.0
"""A figure takes no longer, if it has the `FEWEST` decisions."""
FEWEST = 20
COLUMNS = ("p50_ms", "p99_ms", "cpu_p50_ms", "cpu_p99_ms")
LINE = "{:<22} {:>9} {:>9} {:>8} {:>8} {:>10} {:>10} {:>7} {:>8}"


class Again(Timeline):
    """Simulates all of it for every part."""

    def __init__(self, parts: list[Part], limits: Pace) -> None:
        super().__init__(parts, limits)
        self._parts, self._limits = parts, limits

    def end_with_s(self, part: Part) -> float:
        return Timeline([*self._parts, part], self._limits).end_s


class Naive(Forecast):
    """Keeps nothing."""

    def remaining_s(self, view: View, book: Book, rules: Rules) -> FloatArray:
        ends = [self.timeline(view, book, index, rules).end_s for index in range(len(view.endpoints))]
        return np.array(ends, np.float64)

    def timeline(self, view: View, book: Book, index: int, rules: Rules) -> Timeline:
        return Again(outstanding(view, book, index), pace(view, index, rules))


@dataclass(slots=True)
class Fleet:
    """A Director with flexible endpoints, and what is in flight."""

    director: Director
    rng: random.Random
    new: deque[RequestId] = field(default_factory=deque)
    """No token yet."""
    cut: deque[RequestId] = field(default_factory=deque)
    """With a cut to come."""
    decoding: list[RequestId] = field(default_factory=list)
    tokens: dict[RequestId, int] = field(default_factory=dict)

    def arrive(self, name: str, now_s: float) -> tuple[float, float, Dispatch]:
        """Seconds by the wall clock and the processor's, and what was decided."""
        output = self.rng.randint(20, 1500)
        request = Request(RequestId(name), self.rng.randint(50, 4000), expected_output_tokens=float(output))
        event = RequestArrived(request)
        start, start_cpu = time.perf_counter(), time.thread_time()
        (effect,) = self.director.on_event(event, now_s)
        took = time.perf_counter() - start, time.thread_time() - start_cpu
        assert isinstance(effect, Dispatch)
        self.new.append(request.id)
        if effect.segments:
            self.cut.append(request.id)
        return *took, effect

    def go_on(self, now_s: float) -> None:
        """What happens between two arrivals."""
        on_event = self.director.on_event
        request_id = self.new.popleft()
        on_event(FirstToken(request_id), now_s)
        self.decoding.append(request_id)
        self.tokens[request_id] = 1
        if self.cut and self.cut[0] in self.tokens:
            cut = self.cut.popleft()
            on_event(SegmentDone(cut, self.tokens[cut]), now_s)
        for _ in range(31):
            one = self.rng.choice(self.decoding)
            self.tokens[one] += 16
            on_event(Progress(one, self.tokens[one]), now_s)

    def end(self, now_s: float) -> None:
        """Some request is done."""
        index = self.rng.randrange(len(self.decoding))
        self.decoding[index], self.decoding[-1] = self.decoding[-1], self.decoding[index]
        request_id = self.decoding.pop()
        if request_id in self.cut:
            self.cut.remove(request_id)
        self.director.on_event(RequestEnded(request_id, Outcome.COMPLETED, self.tokens.pop(request_id)), now_s)


def fleet(endpoints: int, naive: bool) -> Fleet:
    """With that many endpoints and `IN_FLIGHT` requests for each, cut at one ratio."""
    placement = LeastRequests()
    director = Director(
        DirectorSettings(prefill=placement, decode=placement, partition=Libra(), profiles=SHIPPED_PROFILES)
    )
    assert isinstance(director.partitioner, Partitioner)
    director.partitioner.planner = Fixed(at="ratio", ratio=0.6)  # cheaper, to fill the books
    made = Fleet(director, random.Random(f"{endpoints}"))
    for k in range(endpoints):
        profile = ("a100-qwen3-32b", "h20-qwen3-32b")[k % 2]
        address = f"10.0.{k // 256}.{k % 256}:8000"
        endpoint = Endpoint(EndpointId(f"f-{k:04d}"), address, Role.FLEXIBLE, profile=profile)
        director.on_event(EndpointObserved(endpoint), 0.0)
    for k in range(endpoints * IN_FLIGHT):
        made.arrive(f"old-{k}", 0.0)
        if len(made.new) > 2 * endpoints:
            made.go_on(0.1)
    director.partitioner.planner = planner = Libra().planner()
    if naive:
        planner.forecast = Naive()
    return made


def measure(made: Fleet, decisions: int) -> Row:
    """Figures of so many arrivals, or of those that fit into `LONGEST_S`, in milliseconds."""
    taken, cut = list[tuple[float, float]](), 0
    gap_s = LIFE_S / (len(made.new) + len(made.decoding))
    end_s = time.perf_counter() + LONGEST_S
    for k in range(decisions):
        if time.perf_counter() > end_s and k >= FEWEST:
            break
        now_s = 1.0 + k * gap_s
        wall_s, cpu_s, dispatch = made.arrive(f"new-{k}", now_s)
        taken.append((wall_s, cpu_s))
        cut += bool(dispatch.segments)
        made.go_on(now_s)
        made.end(now_s)
    wall, cpu = np.array(taken).T
    figures = (*np.percentile(wall, (50, 99)), *np.percentile(cpu, (50, 99)))
    times = {name: round(float(each) * 1e3, 4) for name, each in zip(COLUMNS, figures, strict=True)}
    return {**times, "cut_ratio": round(cut / len(taken), 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=1_000, help="decisions per figure (default 1000)")
    parser.add_argument("--endpoints", help="only these numbers, comma-separated")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--against", type=Path, help="a file of an earlier run to compare with")
    options = parser.parse_args()
    earlier = Earlier(options.against, lambda row: (row["predictor"], row["endpoints"]))
    calibration, rows = Calibration(), list[Row]()
    titles = (*(name.removesuffix("_ms").replace("_", " ") for name in COLUMNS), "cut")
    print(LINE.format("times in ms", "endpoints", "in flight", *titles, "earlier"))
    for endpoints in SIZES if options.endpoints is None else map(int, options.endpoints.split(",")):
        for predictor in ("timelines kept", "naive"):
            calibration.take()
            figures = measure(fleet(endpoints, predictor == "naive"), options.decisions)
            row = {"predictor": predictor, "endpoints": endpoints, "in_flight": endpoints * IN_FLIGHT, **figures}
            ratio = earlier.time_ratio(row, "cpu_p50_ms", calibration)
            shown = [f"{row[name]:.3f}" for name in (*COLUMNS, "cut_ratio")]
            in_flight = endpoints * IN_FLIGHT
            print(LINE.format(predictor, endpoints, in_flight, *shown, f"x {ratio:.2f}" if ratio else "-"), flush=True)
            rows.append(row)
    if options.json:
        Recording(calibration.seconds, rows).write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
