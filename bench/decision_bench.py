"""How long one placement decision takes: every shipped placement, by endpoints and requests in flight.

Wall time of `Director.on_event(RequestArrived)` on one core, in-flight ledger filled first. Prints a table;
`--json FILE` writes the figures. They are this machine's: compare within one run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from ballast_core.director import Director, DirectorSettings
from ballast_core.events import EndpointObserved, RequestArrived, RequestEnded
from ballast_core.model import Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Role
from ballast_core.policies.registry import PLACEMENTS, build_placement

SIZES = ((10, 100), (100, 10_000), (1_000, 100_000))
"""(decode endpoints, requests in flight); a quarter as many prefill endpoints beside them."""


def fleet(policy: str, endpoints: int, in_flight: int) -> Director:
    """A Director with that many endpoints, observed, and that many requests on its books."""
    placement = build_placement(policy)
    director = Director(DirectorSettings(prefill=placement, decode=placement))
    for role, count in ((Role.PREFILL, max(1, endpoints // 4)), (Role.DECODE, endpoints)):
        for k in range(count):
            endpoint = Endpoint(EndpointId(f"{role}-{k:04d}"), f"10.0.{k // 256}.{k % 256}:8000", role)
            director.on_event(EndpointObserved(endpoint, Observation(0.0, running=k % 7, waiting=0)), 0.0)
    for k in range(in_flight):
        director.on_event(RequestArrived(Request(RequestId(f"old-{k}"), prompt_tokens=100 + k % 900)), 0.0)
    return director


def measure(director: Director, decisions: int) -> list[float]:
    """Seconds of each of so many arrivals; each ends at once, so that the load stays the same."""
    taken = []
    for k in range(decisions):
        request = Request(RequestId(f"new-{k}"), prompt_tokens=500)
        start = time.perf_counter()
        director.on_event(RequestArrived(request), float(k))
        taken.append(time.perf_counter() - start)
        director.on_event(RequestEnded(request.id, Outcome.COMPLETED), float(k))
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=2_000, help="decisions per figure (default 2000)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    rows = []
    print(f"{'policy':<16} {'endpoints':>9} {'in flight':>9} {'p50 ms':>8} {'p99 ms':>8}")
    for policy in sorted(PLACEMENTS):
        for endpoints, in_flight in SIZES:
            p50, p99 = np.percentile(measure(fleet(policy, endpoints, in_flight), options.decisions), (50, 99)) * 1e3
            rows.append(
                {"policy": policy, "endpoints": endpoints, "in_flight": in_flight, "p50_ms": p50, "p99_ms": p99}
            )
            print(f"{policy:<16} {endpoints:>9} {in_flight:>9} {p50:>8.3f} {p99:>8.3f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
