"""How long one rescheduling round takes, by endpoints and requests in flight.

Time of `Director.on_event(TimerFired())` with ARES, all in: reading the books, predicted lengths, load curves, the
search over all pairs of request and target, booking the moves, the trace. On one core, by the wall clock and in
processor time (`cpu`: what else runs on a shared machine shows in the wall clock's p99). Decode endpoints are of two
kinds, requests were placed at random, outputs are heavy-tailed (mean 2,000 tokens); between two rounds all requests
report a second's tokens, those at their end leave and others come, and moves that were under way are done.

Beside it, in the same run at a small size: each candidate evaluated by simulating the loads with the move done
(`naive`), and how much longer that takes for the same choice.

Prints a table; `--json FILE` writes the figures, `--against FILE` compares medians of processor time with those of
another run, in units of a fixed piece of numpy work. `bench/recorded/rescheduling.json` is the last recorded run.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Role
from ballast_core.model.effects import Migrate
from ballast_core.model.events import (
    EndpointObserved,
    FirstToken,
    Migrated,
    ProgressBatch,
    RequestArrived,
    RequestEnded,
    TimerFired,
)
from ballast_core.policies.registry import build_placement
from ballast_core.policies.rescheduling.ares import Ares
from ballast_core.policies.rescheduling.load_curves import LoadCurves
from ballast_core.policies.rescheduling.protocol import Decodes
from ballast_core.profiles import SHIPPED_PROFILES
from bench.comparison import Calibration, Earlier, Recording, Row

SIZES = ((64, 5_000), (256, 20_000), (1_000, 100_000))
"""(decode endpoints, requests in flight)"""
NAIVE_SIZE = (32, 1_000)
POLICIES = {
    "ares": Ares(),
    "ares, 4 moves": Ares(max_moves_per_round=4, max_moves_under_way=8),
    "ares, survival": Ares(predictor="survival"),
    "ares, no prediction": Ares(prediction=False),
}
MEAN_TOKENS = 2_000.0
TOKENS_PER_S = 30
LONGEST_S = 20.0
"""A figure takes no longer, if it has the `FEWEST` rounds."""
FEWEST = 10
COLUMNS = ("p50_ms", "p99_ms", "cpu_p50_ms", "cpu_p99_ms")
LINE = "{:<22} {:>9} {:>9} {:>7} {:>9} {:>9} {:>10} {:>10} {:>8}"


@dataclass(slots=True)
class Fleet:
    """A Director with its endpoints and requests that decode."""

    director: Director
    rng: random.Random
    tokens: dict[RequestId, int] = field(default_factory=dict)
    """Output so far."""
    lengths: dict[RequestId, int] = field(default_factory=dict)
    """Output in the end."""
    came: int = 0

    def arrive(self, now_s: float) -> RequestId:
        """One more, which decodes at once."""
        self.came += 1
        request_id, length = RequestId(f"r{self.came}"), 1 + int(self.rng.expovariate(1.0 / MEAN_TOKENS))
        request = Request(request_id, self.rng.randint(20, 1000), expected_output_tokens=length)
        self.director.on_event(RequestArrived(request), now_s)
        self.director.on_event(FirstToken(request_id), now_s)
        self.tokens[request_id], self.lengths[request_id] = 1, length
        return request_id

    def live(self, now_s: float) -> None:
        """One second passes."""
        for request_id in [key for key, tokens in self.tokens.items() if tokens >= self.lengths[key]]:
            self.director.on_event(RequestEnded(request_id, Outcome.COMPLETED, self.tokens.pop(request_id)), now_s)
            self.lengths.pop(request_id)
            self.arrive(now_s)
        for request_id, tokens in self.tokens.items():
            self.tokens[request_id] = min(tokens + TOKENS_PER_S, self.lengths[request_id])
        self.director.on_event(ProgressBatch([(now_s, *each) for each in self.tokens.items()]), now_s)


def fleet(policy: Ares, endpoints: int, in_flight: int) -> Fleet:
    """In the middle of its work."""
    placement = build_placement("random")
    director = Director(
        DirectorSettings(prefill=placement, decode=placement, rescheduling=policy, profiles=SHIPPED_PROFILES)
    )
    made = Fleet(director, random.Random(f"{endpoints} {in_flight}"))
    for role, count in ((Role.PREFILL, 1), (Role.DECODE, endpoints)):
        for k in range(count):
            profile = ("a100-qwen3-32b", "h20-qwen3-32b")[k % 2]
            endpoint = Endpoint(EndpointId(f"{role}-{k:04d}"), f"10.0.{k // 256}.{k % 256}:8000", role, profile=profile)
            director.on_event(EndpointObserved(endpoint, Observation(0.0, running=0, waiting=0)), 0.0)
    for _ in range(in_flight):
        request_id = made.arrive(0.0)
        made.tokens[request_id] = made.rng.randint(1, made.lengths[request_id])
    director.on_event(ProgressBatch([(0.5, *each) for each in made.tokens.items()]), 0.5)
    return made


def measure(made: Fleet, rounds: int) -> tuple[Row, int]:
    """Figures of so many rounds, or of those that fit into `LONGEST_S`, and the number of moves."""
    wall, cpu, moves = list[float](), list[float](), 0
    end_s = time.perf_counter() + LONGEST_S
    for k in range(1, rounds + 1):
        if time.perf_counter() > end_s and k > FEWEST:
            break
        made.live(float(k))
        start, start_cpu = time.perf_counter(), time.thread_time()
        effects = made.director.on_event(TimerFired(), float(k))
        cpu.append(time.thread_time() - start_cpu)
        wall.append(time.perf_counter() - start)
        for effect in effects:
            if isinstance(effect, Migrate):
                moves += 1
                made.director.on_event(Migrated(effect.request_id, effect.target.id), k + 0.1)
    figures = (*np.percentile(wall, (50, 99)), *np.percentile(cpu, (50, 99)))
    return {name: round(float(seconds) * 1e3, 3) for name, seconds in zip(COLUMNS, figures, strict=True)}, moves


def random_decodes(endpoints: int, requests: int) -> Decodes:
    """As a policy is shown them."""
    rng = np.random.default_rng(0)
    return Decodes(
        endpoint=rng.integers(0, endpoints, requests),
        tokens=rng.integers(100, 3000, requests).astype(np.float64),
        remaining_tokens=rng.exponential(MEAN_TOKENS, requests),
        may_move=np.ones(requests, np.bool_),
        takes=np.ones(endpoints, np.bool_),
        tokens_per_s=np.full(endpoints, float(TOKENS_PER_S)),
        kv_tokens=np.full(endpoints, 190_000.0),
        other_tokens=np.zeros(endpoints),
        migration_s=np.full((endpoints, endpoints), 1e-5),
    )


def naive_best(policy: Ares, decodes: Decodes) -> tuple[float, int, int]:
    """Algorithm 1 as printed, errata apart: each candidate's future is simulated. Returns (gain, request, target)."""
    times_s, weights = policy.horizon.times_s, policy.horizon.weights
    rates = LoadCurves(decodes, policy.horizon).rates

    def variance(where: np.ndarray) -> float:
        grown = rates[where][:, None] * times_s
        runs = (grown < decodes.remaining_tokens[:, None]) | (times_s == 0.0)
        held = np.where(runs, decodes.tokens[:, None] + grown, 0.0)
        loads = np.zeros((len(decodes.kv_tokens), len(times_s)))
        np.add.at(loads, where, held)
        return float(loads.var(axis=0) @ weights)

    loads = LoadCurves(decodes, policy.horizon).weighted()
    limit, before, best = (1.0 + policy.theta) * loads.mean(), variance(decodes.endpoint), (0.0, -1, -1)
    for request in np.flatnonzero(loads[decodes.endpoint] > limit):
        for target in np.flatnonzero(loads < limit):
            where = decodes.endpoint.copy()
            where[request] = target
            best = max(best, (before - variance(where), int(request), int(target)))
    return best


def compare_with_naive() -> Row:
    """Both on one small fleet; they must choose alike."""
    policy, decodes = Ares(payoff=1e-9, memory_ratio=1.0), random_decodes(*NAIVE_SIZE)
    start = time.thread_time()
    gain, request, target = naive_best(policy, decodes)
    naive_s = time.thread_time() - start
    ours_s = []
    for _ in range(20):
        start = time.thread_time()
        (move,) = policy.decide(decodes).moves
        ours_s.append(time.thread_time() - start)
    if (move.request, move.target) != (request, target):
        raise SystemExit(f"chose {move}, but simulating each candidate finds {request} to {target}, gain {gain}")
    return {"naive_ms": round(naive_s * 1e3, 3), "decide_ms": round(float(np.median(ours_s)) * 1e3, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="rounds per figure (default 200)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--against", type=Path, help="a file of an earlier run to compare with")
    options = parser.parse_args()
    earlier = Earlier(options.against, lambda row: (row["policy"], row.get("endpoints"), row.get("in_flight")))
    calibration, rows = Calibration(), list[Row]()
    titles = (name.removesuffix("_ms").replace("_", " ") for name in COLUMNS)
    print(LINE.format("times in ms", "endpoints", "in flight", "moves", *titles, "earlier"))
    for name, policy in POLICIES.items():
        for endpoints, in_flight in SIZES:
            calibration.take()
            figures, moves = measure(fleet(policy, endpoints, in_flight), options.rounds)
            row = {"policy": name, "endpoints": endpoints, "in_flight": in_flight, "moves": moves, **figures}
            ratio = earlier.time_ratio(row, "cpu_p50_ms", calibration)
            shown = [f"{row[column]:.2f}" for column in COLUMNS]
            print(
                LINE.format(name, endpoints, in_flight, moves, *shown, f"x {ratio:.2f}" if ratio else "-"), flush=True
            )
            rows.append(row)
    small = compare_with_naive()
    endpoints, in_flight = NAIVE_SIZE
    rows.append({"policy": "naive", "endpoints": endpoints, "in_flight": in_flight, **small})
    ratio = small["naive_ms"] / small["decide_ms"]
    print(
        f"{endpoints} endpoints, {in_flight} requests: simulating each candidate {small['naive_ms']:.0f} ms, "
        f"the policy {small['decide_ms']:.2f} ms of processor time for the same choice ({ratio:.0f} times less)"
    )
    if options.json:
        Recording(calibration.seconds, rows).write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
