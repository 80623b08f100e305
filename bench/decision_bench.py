"""How long one placement decision takes: every shipped placement, by endpoints and requests in flight.

Time of `Director.on_event(RequestArrived)`: both stages placed and booked, on one core, by the wall clock and in
processor time (`cpu`: what else runs on a shared machine shows in the wall clock's p99). The fleet is in the middle of
its work, a tenth of the requests in prefill, and between two decisions happens what happens in a fleet whose requests
come as often as they end: the oldest prefill ends (late binding: its decode endpoint is chosen again) and its first
token comes, some request ends at the length it has reached, 31 others report 16 more tokens each (the proxy's step and
a mean output of 500 tokens), and endpoints are scraped once a second. All that is no part of a decision's time, but
what a decision has to do because of it is; "events" is its mean for one decision. Survival curves are made anew where
they are in production, at scrapes; Python's garbage collector runs as it likes.

Each placement decides by numpy, the reference, and by the compiled kernel where it is installed, on twin fleets in
turns; "of numpy" is the share of numpy's median in processor time.

Prints a table; `--json FILE` writes the figures, `--against FILE` compares medians of processor time with those of
another run, in units of a fixed piece of numpy work (`bench/comparison.py`). `bench/recorded/decision.json` is the last
recorded run. A figure takes 20 s at most: of slow placements fewer decisions are measured.
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

from ballast_core import kernel
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Role, Stage
from ballast_core.model.events import (
    EndpointObserved,
    Event,
    FirstToken,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
)
from ballast_core.policies.placement.registry import PLACEMENTS
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from bench.comparison import Calibration, Earlier, Recording, Row

SIZES = ((10, 100), (100, 10_000), (1_000, 100_000))
"""(decode endpoints, requests in flight); a quarter as many prefill endpoints beside them."""
LIFE_S = 20.0
"""Mean life of a request: with those in flight it gives the rate at which decisions come."""
SCRAPE_S = 1.0
LONGEST_S = 20.0
"""A figure takes no longer, if it has the `FEWEST` decisions."""
FEWEST = 50
REPORT_TOKENS = 16
REPORTS = 500 // REPORT_TOKENS
COLUMNS = ("p50_ms", "p99_ms", "cpu_p50_ms", "cpu_p99_ms", "other_events_ms")
TURN = 25
"""Decisions before the other arithmetic has its turn."""
LINE = "{:<22} {:<9} {:>9} {:>9} {:>8} {:>8} {:>10} {:>10} {:>9} {:>8} {:>8}"


@dataclass(slots=True)
class Fleet:
    """A Director with its endpoints, and the requests on its books."""

    director: Director
    rng: random.Random
    endpoints: list[Endpoint] = field(default_factory=list)
    prefilling: deque[RequestId] = field(default_factory=deque)
    decoding: list[RequestId] = field(default_factory=list)
    tokens: dict[RequestId, int] = field(default_factory=dict)
    """Output of those that decode."""
    scrapes: int = 0

    def arrive(self, name: str, now_s: float) -> None:
        request = Request(RequestId(name), prompt_tokens=100 + self.rng.randint(0, 900))
        self.director.on_event(RequestArrived(request), now_s)
        self.prefilling.append(request.id)

    def begin(self, now_s: float) -> list[Event]:
        """The oldest prefill ends."""
        request_id = self.prefilling.popleft()
        self.decoding.append(request_id)
        self.tokens[request_id] = 1
        return [PrefillDone(request_id), FirstToken(request_id)]

    def report(self, more_tokens: int) -> Progress:
        """Some request has generated more."""
        request_id = self.rng.choice(self.decoding)
        self.tokens[request_id] += more_tokens
        return Progress(request_id, self.tokens[request_id])

    def end(self) -> RequestEnded:
        """Some request is done."""
        at = self.rng.randrange(len(self.decoding))
        self.decoding[at], self.decoding[-1] = self.decoding[-1], self.decoding[at]
        request_id = self.decoding.pop()
        return RequestEnded(request_id, Outcome.COMPLETED, self.tokens.pop(request_id))

    def scrape(self, now_s: float) -> list[Event]:
        """What is due by now, one endpoint after the other."""
        first, self.scrapes = self.scrapes, int(now_s / SCRAPE_S * len(self.endpoints))
        return [
            EndpointObserved(self.endpoints[at % len(self.endpoints)], Observation(now_s, running=100, waiting=0))
            for at in range(first, self.scrapes)
        ]


def fleet(policy: str, endpoints: int, in_flight: int) -> Fleet:
    """A Director with that many endpoints, observed, and that many requests on its books."""
    placement = build_placement(policy)
    director = Director(DirectorSettings(prefill=placement, decode=placement, profiles=SHIPPED_PROFILES))
    made = Fleet(director, random.Random(f"{endpoints} {in_flight}"))
    for role, count in ((Role.PREFILL, max(1, endpoints // 4)), (Role.DECODE, endpoints)):
        for k in range(count):
            profile = ("a100-qwen3-32b", "h20-qwen3-32b")[k % 2]
            address = f"10.0.{k // 256}.{k % 256}:8000"
            endpoint = Endpoint(EndpointId(f"{role}-{k:04d}"), address, role, profile=profile)
            made.endpoints.append(endpoint)
            director.on_event(EndpointObserved(endpoint, Observation(0.0, running=k % 7, waiting=0)), 0.0)
    # Policies that weigh every request would make filling up quadratic: cheap ones place the first requests.
    measured, cheap = director.placer.placements, dict.fromkeys(Stage, build_placement("random"))
    director.placer.placements = cheap
    for k in range(500):  # output lengths to learn from
        made.arrive(f"past-{k}", 0.0)
        director.on_event(RequestEnded(made.prefilling.pop(), Outcome.COMPLETED, made.rng.randint(1, 3000)), 0.0)
    for k in range(in_flight):
        made.arrive(f"old-{k}", 0.0)
    while len(made.prefilling) > in_flight // 10:
        for event in made.begin(0.1):
            director.on_event(event, 0.1)
        at = made.decoding[-1]
        made.tokens[at] += made.rng.randint(1, 2000)
        director.on_event(Progress(at, made.tokens[at]), 0.1)
    director.placer.placements = measured
    return made


@dataclass(slots=True)
class Series:
    """Arrivals at one fleet, decided by the compiled kernel or by numpy."""

    made: Fleet
    compiled: bool
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    others_s: float = 0.0

    @property
    def arithmetic(self) -> str:
        """What decides."""
        kernel.use(self.compiled)
        return kernel.name()

    def decide(self, decisions: int) -> None:
        """So many more arrivals, and what happens between them."""
        kernel.use(self.compiled)
        made, on_event = self.made, self.made.director.on_event
        gap_s = LIFE_S / (len(made.prefilling) + len(made.decoding))
        for k in range(len(self.wall_s), len(self.wall_s) + decisions):
            now_s = 1.0 + k * gap_s
            request = Request(RequestId(f"new-{k}"), prompt_tokens=500)
            arrived = RequestArrived(request)
            start, start_cpu = time.perf_counter(), time.thread_time()
            on_event(arrived, now_s)
            self.cpu_s.append(time.thread_time() - start_cpu)
            self.wall_s.append(time.perf_counter() - start)
            made.prefilling.append(request.id)
            events = made.begin(now_s)
            events += [made.report(REPORT_TOKENS) for _ in range(REPORTS)]
            events += [made.end(), *made.scrape(now_s)]
            start = time.perf_counter()
            for event in events:
                on_event(event, now_s)
            self.others_s += time.perf_counter() - start

    def figures(self) -> Row:
        """In milliseconds."""
        p50, p99 = np.percentile(self.wall_s, (50, 99))
        cpu_p50, cpu_p99 = np.percentile(self.cpu_s, (50, 99))
        figures = (p50, p99, cpu_p50, cpu_p99, self.others_s / len(self.wall_s))
        return {name: round(float(seconds) * 1e3, 4) for name, seconds in zip(COLUMNS, figures, strict=True)}


def measure(policy: str, endpoints: int, in_flight: int, decisions: int) -> list[Series]:
    """So many arrivals by numpy and, where it is installed, by the kernel, or those that fit into `LONGEST_S` for each.

    The two take turns, so a machine that others use is as busy for one as for the other.
    """
    choices = (False, True) if kernel.installed() else (False,)
    kernel.use(kernel.installed())
    series = [Series(fleet(policy, endpoints, in_flight), compiled) for compiled in choices]
    end_s = time.perf_counter() + LONGEST_S * len(series)
    done = 0
    while done < decisions and (time.perf_counter() < end_s or done < FEWEST):
        turn = min(TURN, decisions - done)
        for one in series:
            one.decide(turn)
        done += turn
    return series


def _case(row: Row) -> tuple[object, ...]:
    return row["policy"], row.get("arithmetic", "numpy"), row["endpoints"], row["in_flight"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=2_000, help="decisions per figure (default 2000)")
    parser.add_argument("--policy", help="only these, comma-separated")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--against", type=Path, help="a file of an earlier run to compare with")
    options = parser.parse_args()
    earlier = Earlier(options.against, _case)
    calibration, rows = Calibration(), list[Row]()
    titles = (name.removesuffix("_ms").replace("_", " ") for name in (*COLUMNS[:4], "events_ms"))
    print(LINE.format("times in ms", "by", "endpoints", "in flight", *titles, "of numpy", "earlier"))
    for policy in sorted(PLACEMENTS) if options.policy is None else options.policy.split(","):
        for endpoints, in_flight in SIZES:
            calibration.take()
            reference = None
            for one in measure(policy, endpoints, in_flight, options.decisions):
                case = {"policy": policy, "arithmetic": one.arithmetic, "endpoints": endpoints, "in_flight": in_flight}
                row = {**case, **one.figures()}
                reference = reference or row["cpu_p50_ms"]
                ratios = row["cpu_p50_ms"] / reference, earlier.time_ratio(row, "cpu_p50_ms", calibration)
                shown = [f"{row[name]:.3f}" for name in COLUMNS]
                shown += [f"x {ratio:.2f}" if ratio else "-" for ratio in ratios]
                print(LINE.format(*case.values(), *shown), flush=True)
                rows.append(row)
    if options.json:
        Recording(calibration.seconds, rows).write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
