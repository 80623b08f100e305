"""What LMetric's experiments share: the fleet, the policies with the parameters that are swept, a row of a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.registry import build_placement
from ballast_core.policies.suite import Suite
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import PolicyChoice
from bench.reproduce.form import STANDARD_FIGURES, Claim, Row
from bench.reproduce.results import Results
from bench.reproduce.tasks import Simulated, simulated
from bench.reproduce.verdicts import judge_change

FLEET = "16C@h20-llama3-8b"
HARDWARE = {"kv_tokens": 530_000}
"""What 90 % of 96 GB leave beside the weights."""
FIGURES = (*STANDARD_FIGURES, "ttft_p90_s", "ttft_p95_s", "tpot_p90_s", "tpot_p95_s", "kv_hit_ratio")

WEIGHTS = (0.4, 0.55, 0.7, 0.9)
RANGES = (4, 8, 16)
PREFILL_WEIGHTS = (0.3, 0.5, 0.7)


def same(name: str, placement: Placement) -> PolicyChoice:
    """One placement for both stages: an endpoint does both."""
    return PolicyChoice(name, Suite(prefill=placement, decode=placement))


def placed(name: str, type_name: str, **parameters: Any) -> PolicyChoice:
    """A shipped placement for both stages."""
    return same(name, build_placement(type_name, parameters))


def multiplied(name: str, cache: Mapping[str, Any], load: Mapping[str, Any]) -> PolicyChoice:
    """Two indicators multiplied, the load with the request itself in it."""
    parts = [{**cache}, {**load, "offset": 1.0}]
    return same(name, build_placement("product", {"parts": parts}))


BASELINES: dict[str, PolicyChoice] = {
    "vllm-jsq": placed("vllm-jsq", "vllm-jsq"),
    **{f"linear-kv {weight:g}": placed(f"linear-kv {weight:g}", "linear-kv", kv_weight=weight) for weight in WEIGHTS},
    **{
        f"range-filter-kv {most}": placed(f"range-filter-kv {most}", "range-filter-kv", max_range=most)
        for most in RANGES
    },
    **{
        f"dynamo-cost {weight:g}": placed(f"dynamo-cost {weight:g}", "dynamo-cost", prefill_weight=weight)
        for weight in PREFILL_WEIGHTS
    },
    "predicted-ttft": placed("predicted-ttft", "predicted-ttft"),
}
STRONG = {name: placed(name, name) for name in ("least-requests", "ballast")}
LMETRIC = placed("lmetric", "lmetric")
POLICIES = {"lmetric": LMETRIC, **BASELINES, **STRONG}
FRESH = "vllm-jsq, fresh counts"
"""Scraped every 10 ms instead of 200 ms."""


def colocated(
    policy: PolicyChoice,
    rate_rps: float,
    workload: str | WorkloadSource = "multi-turn",
    limit: int = 7000,
    scrape_interval_s: float = 0.2,
) -> Simulated:
    """16 colocated endpoints of about the paper's size."""
    fleet = FleetSettings(known_limits=False, scrape_interval_s=scrape_interval_s)
    return simulated(FLEET, policy, workload=workload, rate_rps=rate_rps, limit=limit, hardware=HARDWARE, fleet=fleet)


def change_row(
    results: Results,
    run: str,
    against: str,
    figure: str,
    what: str,
    *,
    paper: float | None,
    claim: Claim | None,
    **more: Any,
) -> Row:
    ours = results.change(run, against, figure)
    return Row(
        what=what,
        ours=ours,
        unit="% change",
        paper="" if paper is None else f"{paper:+.1f} %",
        claim=None if claim is None else claim.name,
        verdict=None if claim is None or paper is None else judge_change(ours, paper),
        **more,
    )
