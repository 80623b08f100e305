"""How long one placement decision takes: every shipped placement, by endpoints and requests in flight.

Wall time of `Director.on_event(RequestArrived)` on one core. The fleet is in the middle of its work: a tenth of the
requests is still in prefill, the others have generated, output lengths are learned, endpoints are scraped and requests
end while decisions are taken. Prints a table; `--json FILE` writes the figures. They are this machine's: compare
within one run. "events" is the mean cost of everything else: scrapes, first tokens and ends, per decision.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ballast_core.director import Director, DirectorSettings
from ballast_core.events import EndpointObserved, Event, FirstToken, PrefillDone, Progress, RequestArrived, RequestEnded
from ballast_core.model import Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Role
from ballast_core.policies.registry import PLACEMENTS, build_placement

SIZES = ((10, 100), (100, 10_000), (1_000, 100_000))
"""(decode endpoints, requests in flight); a quarter as many prefill endpoints beside them."""
LIFE_S = 20.0
"""Mean life of a request: with those in flight it gives the rate at which decisions come."""
SCRAPE_S = 1.0


@dataclass(slots=True)
class Fleet:
    """A Director with its endpoints, and the requests on its books."""

    director: Director
    endpoints: list[Endpoint]
    open: list[RequestId]
    rng: random.Random


def fleet(policy: str, endpoints: int, in_flight: int) -> Fleet:
    """A Director with that many endpoints, observed, and that many requests on its books."""
    placement = build_placement(policy)
    director = Director(DirectorSettings(prefill=placement, decode=placement))
    made = Fleet(director, [], [], random.Random(f"{endpoints} {in_flight}"))
    for role, count in ((Role.PREFILL, max(1, endpoints // 4)), (Role.DECODE, endpoints)):
        for k in range(count):
            profile = ("a100-qwen3-32b", "h20-qwen3-32b")[k % 2]
            address = f"10.0.{k // 256}.{k % 256}:8000"
            endpoint = Endpoint(EndpointId(f"{role}-{k:04d}"), address, role, profile=profile)
            made.endpoints.append(endpoint)
            director.on_event(EndpointObserved(endpoint, Observation(0.0, running=k % 7, waiting=0)), 0.0)
    for k in range(500):  # output lengths to learn from
        arrive(made, f"past-{k}", 0.0)
        director.on_event(RequestEnded(made.open.pop(), Outcome.COMPLETED, made.rng.randint(1, 3000)), 0.0)
    # Policies that weigh every request would make filling up quadratic: cheap ones place the first requests.
    director.settings = DirectorSettings(prefill=build_placement("random"), decode=build_placement("random"))
    for k in range(in_flight):
        request_id = arrive(made, f"old-{k}", 0.0)
        if k % 10:
            generate(made, request_id, 0.1)
    director.settings = DirectorSettings(prefill=placement, decode=placement)
    return made


def arrive(made: Fleet, name: str, now_s: float) -> RequestId:
    request = Request(RequestId(name), prompt_tokens=100 + made.rng.randint(0, 900))
    made.director.on_event(RequestArrived(request), now_s)
    made.open.append(request.id)
    return request.id


def generate(made: Fleet, request_id: RequestId, now_s: float) -> None:
    for event in (PrefillDone(request_id), FirstToken(request_id), Progress(request_id, made.rng.randint(2, 2000))):
        made.director.on_event(event, now_s)


def measure(made: Fleet, decisions: int) -> tuple[list[float], float]:
    """Seconds of each of so many arrivals, and the mean of all other events between two of them."""
    taken, others_s = [], 0.0
    gap_s = LIFE_S / len(made.open)
    scrapes = 0
    for k in range(decisions):
        now_s = 1.0 + k * gap_s
        request = Request(RequestId(f"new-{k}"), prompt_tokens=500)
        start = time.perf_counter()
        made.director.on_event(RequestArrived(request), now_s)
        taken.append(time.perf_counter() - start)
        made.open.append(request.id)
        due = int((now_s - 1.0) / SCRAPE_S * len(made.endpoints))
        events: list[Event] = [
            EndpointObserved(made.endpoints[at % len(made.endpoints)], Observation(now_s, running=100, waiting=0))
            for at in range(scrapes, due)
        ]
        scrapes = due
        ending = made.open.pop(made.rng.randrange(len(made.open)))
        begun = made.rng.choice(made.open)
        events += [PrefillDone(begun), FirstToken(begun), RequestEnded(ending, Outcome.COMPLETED, 500)]
        start = time.perf_counter()
        for event in events:
            made.director.on_event(event, now_s)
        others_s += time.perf_counter() - start
    return taken, others_s / decisions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=2_000, help="decisions per figure (default 2000)")
    parser.add_argument("--policy", help="only these, comma-separated")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    rows = []
    print(f"{'policy':<22} {'endpoints':>9} {'in flight':>9} {'p50 ms':>8} {'p99 ms':>8} {'events ms':>9}")
    for policy in sorted(PLACEMENTS) if options.policy is None else options.policy.split(","):
        for endpoints, in_flight in SIZES:
            taken, others_s = measure(fleet(policy, endpoints, in_flight), options.decisions)
            p50, p99 = np.percentile(taken, (50, 99)) * 1e3
            rows.append(
                {
                    "policy": policy,
                    "endpoints": endpoints,
                    "in_flight": in_flight,
                    "p50_ms": p50,
                    "p99_ms": p99,
                    "other_events_ms": others_s * 1e3,
                }
            )
            print(
                f"{policy:<22} {endpoints:>9} {in_flight:>9} {p50:>8.3f} {p99:>8.3f} {others_s * 1e3:>9.3f}", flush=True
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
