"""What a request costs the gateway's decisions from its arrival to its end, by kind of event.

Processor time of `Driver` and `Director` together, without HTTP: a P/D request arrives and is dispatched, its prefill
ends and it is handed off, its first token comes, it reports progress 60 times, and it ends. Eight requests take turns,
beside a fleet in the middle of its work; scrapes come between them and are not measured. Progress is gathered as in
production: a batch is passed on after each of the eight has reported. Under least-requests, which follows no progress,
reports are left out. Admission is the gateway's default, with a bound that nothing reaches.

Prints medians in microseconds for one event, and for the whole request.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from dataclasses import dataclass, field

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Role, Stage
from ballast_core.model.events import (
    EndpointObserved,
    EndpointsScraped,
    FirstToken,
    PrefillDone,
    ProgressBatch,
    RequestArrived,
    RequestEnded,
)
from ballast_core.model.observations import Observations
from ballast_core.policies.admission import Admission, ExpectedTtft, Open
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_gateway.decisions import DecisionLog
from ballast_gateway.driver import GATHER_S, Driver

SIZES = ((4, 32), (100, 10_000))
"""(decode endpoints, requests in flight); a quarter as many prefill endpoints beside them."""
POLICIES = ("least-requests", "ballast")
TURN = 8
REPORTS = 60
KINDS = ("arrival", "prefill done", "first token", "progress", "end")
WARM_UP = 3
LINE = "{:<16} {:>9} {:>10} {:>9} {:>13} {:>12} {:>9} {:>7} {:>9}"


@dataclass(slots=True)
class Fleet:
    """A driver on virtual time, its endpoints, and what each event of each round took."""

    policy: str
    driver: Driver
    endpoints: list[Endpoint]
    running: int
    """On each endpoint."""
    rng: random.Random
    now_s: list[float]
    took_us: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})


def fleet(policy: str, endpoints: int, in_flight: int, admission: Admission) -> Fleet:
    """A Director with that many endpoints, and that many requests on its books, a tenth of them in prefill."""
    placement, rng, now_s = build_placement(policy), random.Random(f"{endpoints} {in_flight}"), [0.0]
    director = Director(
        DirectorSettings(prefill=placement, decode=placement, admission=admission, profiles=SHIPPED_PROFILES)
    )
    driver = Driver(
        director,
        clock=lambda: now_s[0],
        listeners=(DecisionLog(kept=1000, unix_s=0.0),),
        on_decision_s=lambda seconds: None,
    )
    known: list[Endpoint] = []
    for role, count in ((Role.PREFILL, max(1, endpoints // 4)), (Role.DECODE, endpoints)):
        for k in range(count):
            profile = ("a100-qwen3-32b", "h20-qwen3-32b")[k % 2]
            known.append(Endpoint(EndpointId(f"{role}-{k:04d}"), f"{role}-{k}:8000", role, profile=profile))
            running = in_flight // endpoints
            director.on_event(EndpointObserved(known[-1], Observation(0.0, running=running, waiting=0)), 0.0)
    measured, director.placer.placements = director.placer.placements, dict.fromkeys(Stage, build_placement("random"))
    for k in range(500):  # output lengths to learn from
        director.on_event(RequestArrived(Request(RequestId(f"past-{k}"), 500)), 0.0)
        director.on_event(RequestEnded(RequestId(f"past-{k}"), Outcome.COMPLETED, rng.randint(1, 3000)), 0.0)
    names = [RequestId(f"other-{k}") for k in range(in_flight)]
    for name in names:
        director.on_event(RequestArrived(Request(name, 100 + rng.randint(0, 900))), 0.0)
    for name in names[in_flight // 10 :]:
        director.on_event(PrefillDone(name), 0.1)
        director.on_event(FirstToken(name), 0.2)
    director.on_event(ProgressBatch([(0.3, name, rng.randint(2, 1000)) for name in names[in_flight // 10 :]]), 0.3)
    director.placer.placements = measured
    now_s[0] = 1.0
    return Fleet(policy, driver, known, in_flight // endpoints, rng, now_s)


async def turn(made: Fleet, number: int) -> None:
    """Eight requests from arrival to end."""
    driver, now_s = made.driver, made.now_s

    def took(kind: str, began_s: float, events: int = TURN) -> None:
        made.took_us[kind].append((time.process_time() - began_s) / events * 1e6)

    seen = Observation(now_s[0], running=made.running, waiting=0)
    driver.feed(EndpointsScraped(Observations.of((endpoint, seen) for endpoint in made.endpoints)))
    requests = [Request(RequestId(f"{number}-{k}"), 100 + made.rng.randint(0, 900)) for k in range(TURN)]
    tickets = []
    began_s = time.process_time()
    for request in requests:
        now_s[0] += 1e-3
        tickets.append(driver.open(request))
    took("arrival", began_s)
    for ticket in tickets:
        await ticket.dispatched()
    began_s = time.process_time()
    for ticket in tickets:
        now_s[0] += 1e-3
        ticket.prefill_done()
    took("prefill done", began_s)
    began_s = time.process_time()
    for ticket in tickets:
        now_s[0] += 1e-3
        ticket.first_token()
    took("first token", began_s)
    began_s = time.process_time()
    for tokens in range(2, 2 + REPORTS):
        for ticket in tickets:
            now_s[0] += GATHER_S / TURN / 2
            ticket.progress(tokens)
        driver.tell()
    took("progress", began_s, TURN * REPORTS)
    began_s = time.process_time()
    for ticket in tickets:
        now_s[0] += 1e-3
        ticket.end(Outcome.COMPLETED, 1 + REPORTS)
    took("end", began_s)


async def measure(size: tuple[int, int], rounds: int, admission: Admission) -> list[Fleet]:
    """The policies in turns."""
    fleets = [fleet(policy, *size, admission) for policy in POLICIES]
    for number in range(WARM_UP + rounds):
        for made in fleets:
            await turn(made, number)
    for made in fleets:
        made.driver.close()
    return fleets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="rounds of eight requests (default 100)")
    parser.add_argument("--open", action="store_true", help="without admission, in place of the default's checks")
    options = parser.parse_args()
    admission: Admission = Open() if options.open else ExpectedTtft(max_ttft_s=36_000.0)  # checked, and never full
    print(LINE.format("policy", "endpoints", "in flight", *KINDS, "request"))
    for size in SIZES:
        for made in asyncio.run(measure(size, options.rounds, admission)):
            medians = [statistics.median(made.took_us[kind][WARM_UP:]) for kind in KINDS]
            total = sum(
                each * (REPORTS if kind == "progress" else 1) for kind, each in zip(KINDS, medians, strict=True)
            )
            print(LINE.format(made.policy, *size, *(f"{each:.1f}" for each in medians), f"{total:.0f}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
