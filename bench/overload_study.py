"""More requests than a simulated fleet can serve, with the gateway's default admission and without one.

Poisson arrivals at 1 to 20 times capacity for `--burst` seconds, then at half of it for as long. Prompts are short (a
median of 200 tokens), or mixed: one in five has 4,000 to 12,000. Capacity is what the fleet completes a second while it
always has more. A row has means over the seeds: goodput (requests of the burst a second whose first token came within
`--slo`) over capacity, the share shed, TTFT of those served in the burst, and how long after the burst a request was
last shed or late, by more than a second against the same arrivals without a burst.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from ballast_core.directing.settings import DirectorSettings
from ballast_core.policies.admission import Admission, ExpectedTtft, Open
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.requests.records import Record
from ballast_sim.workloads.request import WorkloadRequest

_FULL_S = 40.0
_FLOOD_RPS: Final = MappingProxyType({"short": 400.0, "mixed": 60.0})
_LINE = "{:<24} {:<7} {:<14} {:>6} {:>9} {:>6} {:>9} {:>9} {:>10}"


def _lengths(prompts: str, rng: random.Random) -> tuple[int, int]:
    if prompts == "mixed" and rng.random() < 0.2:
        return rng.randint(4_000, 12_000), 1 + int(min(400, rng.expovariate(1 / 60)))
    return 1 + int(min(2000, rng.lognormvariate(5.3, 0.8))), 1 + int(min(400, rng.expovariate(1 / 120)))


def _arrivals(prompts: str, seed: str, rate_rps: float, begin_s: float, end_s: float) -> Iterator[WorkloadRequest]:
    rng = random.Random(f"{prompts} {seed}")
    now_s = begin_s
    while (now_s := now_s + rng.expovariate(rate_rps)) < end_s:
        input_tokens, output_tokens = _lengths(prompts, rng)
        yield WorkloadRequest(arrival_s=now_s, input_tokens=input_tokens, output_tokens=output_tokens)


def _run(
    shape: str, admission: Admission, requests: Sequence[WorkloadRequest], until_s: float = np.inf
) -> list[Record]:
    settings = DirectorSettings(
        prefill=build_placement("least-uncached-tokens"),
        decode=build_placement("ballast"),
        admission=admission,
        profiles=SHIPPED_PROFILES,
        max_in_flight=10_000,
    )
    fleet = Fleet(parse_shape(shape, None), settings, FleetSettings())
    fleet.load(requests)
    fleet.run(until_s)
    return list(fleet.records)


def capacity_rps(shape: str, prompts: str) -> float:
    """Requests that the fleet completes a second, in the second half of a flood."""
    flood = list(_arrivals(prompts, "flood", _FLOOD_RPS[prompts], 0.0, _FULL_S))
    records = _run(shape, Open(), flood, _FULL_S)
    return sum(record.completed and (record.last_token_s or 0.0) >= _FULL_S / 2 for record in records) / (_FULL_S / 2)


@dataclass(frozen=True, slots=True)
class Figures:
    """One run."""

    goodput: float
    """Over capacity."""
    shed: float
    ttft_p50_s: float
    ttft_p99_s: float
    recovered_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet and its traffic."""

    shape: str
    prompts: str
    capacity_rps: float
    burst_s: float
    slo_s: float

    def figures(self, admission: Admission, factor: float, seed: int) -> Figures:
        """A burst, and what comes after it."""
        end_s = self.burst_s
        after = list(_arrivals(self.prompts, f"after {seed}", self.capacity_rps / 2, end_s, 2 * end_s))
        burst = _arrivals(self.prompts, f"burst {seed}", factor * self.capacity_rps, 0.0, end_s)
        calm = {record.arrival_s: record.ttft_s or 0.0 for record in _run(self.shape, admission, after)}
        records = _run(self.shape, admission, [*burst, *after])
        during = [record for record in records if record.arrival_s < end_s]
        ttfts = [record.ttft_s for record in during if record.ttft_s is not None]
        late = [
            record.arrival_s - end_s
            for record in records
            if record.arrival_s >= end_s and (record.ttft_s is None or record.ttft_s > calm[record.arrival_s] + 1.0)
        ]
        return Figures(
            goodput=sum(ttft_s <= self.slo_s for ttft_s in ttfts) / end_s / self.capacity_rps,
            shed=sum(record.rejected is not None for record in during) / len(during),
            ttft_p50_s=float(np.median(ttfts)),
            ttft_p99_s=float(np.quantile(ttfts, 0.99)),
            recovered_s=max(late, default=0.0),
        )


def _row(case: Case, admission: Admission, factor: float, seeds: int) -> str:
    runs = [case.figures(admission, factor, seed) for seed in range(seeds)]

    def mean(of: Callable[[Figures], float]) -> float:
        return float(np.mean([of(each) for each in runs]))

    return _LINE.format(
        *(case.shape, case.prompts, admission.type, f"{factor:g}x"),
        f"{mean(lambda each: each.goodput):.2f}",
        f"{mean(lambda each: each.shed):.0%}",
        f"{mean(lambda each: each.ttft_p50_s):.2f} s",
        f"{mean(lambda each: each.ttft_p99_s):.2f} s",
        f"{mean(lambda each: each.recovered_s):.1f} s",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="2P2D@h200-qwen3-32b;2F@h200-qwen3-32b", help="fleets, with ; between them")
    parser.add_argument("--prompts", default="short,mixed")
    parser.add_argument("--loads", default="1,2,5,10,20", help="of the burst, over capacity")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--burst", type=float, default=20.0, help="seconds")
    parser.add_argument("--slo", type=float, default=10.0, help="seconds to the first token")
    options = parser.parse_args()
    print(_LINE.format("fleet", "prompts", "admission", "load", "goodput", "shed", "TTFT p50", "p99", "recovered"))
    for shape in options.shapes.split(";"):
        for prompts in options.prompts.split(","):
            case = Case(shape, prompts, capacity_rps(shape, prompts), options.burst, options.slo)
            for admission in (Open(), ExpectedTtft()):
                for factor in map(float, options.loads.split(",")):
                    print(_row(case, admission, factor, options.seeds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
