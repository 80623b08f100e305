"""UniBoost's mixes on fleets whose engines go by an order: what its experiments have in common.

Rates are ours: the paper gives none for its eight A100. Load 1 is 12 requests a second of mix-2 and 42 of mix-1, where
the KV caches of eight a100-llama3-8b fill.
"""

from __future__ import annotations

from ballast_sim.simulation.inputs.engine_scheduler import parse_scheduler
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from bench.reproduce.form import STANDARD_FIGURES
from bench.reproduce.tasks import Simulated, simulated

RATE_RPS = {"mix-1": 42.0, "mix-2": 12.0}
SHORT_REQUESTS = 3_000
"""Of experiments whose level is not the paper's."""
CHUNK = "chunk=1024"
SWAP = f"{CHUNK},preempt=swap"

SCHEDULERS = {
    "srpt": ("srpt:" + SWAP, "oracle"),
    "srpt-noisy": ("srpt:" + SWAP, "noisy:60%"),
    "sjf": ("sjf:" + CHUNK, "oracle"),
    "las": ("las:" + SWAP, "none"),
    "sarathi": ("sarathi:1024", "none"),
    "fcfs": ("fcfs", "none"),
    "distboost": (f"uniboost:unified=false,quantise=false,adaptive=false,preempt=none,{CHUNK}", "none"),
    "uniboost": ("uniboost:" + SWAP, "none"),
    "uniboost-low": ("uniboost:adaptive=false,gamma=0.02," + SWAP, "none"),
}
"""How they are spelled, and the lengths that they know. `uniboost` learns gamma, `uniboost-low` keeps 0.02 /s."""

FIGURES = (*STANDARD_FIGURES, "e2e_p50_s", "e2e_p90_s", "ttft_p90_s")
TABLE_2_FIGURES = (
    *FIGURES,
    "e2e_p95_s",
    "ttft_p95_s",
    "tbt_mean_s",
    "tbt_p95_s",
    "tbt_p99_s",
)


def mixed(
    scheduler: str,
    *,
    lengths: str = "none",
    workload: str = "mix-2",
    load: float = 1.0,
    placement: str = "round-robin",
    shape: str = "8C@a100-llama3-8b",
    requests: int | None = None,
    rate_rps: float | None = None,
) -> Simulated:
    """A mix on a fleet whose engines go by this order. No two prompts share a prefix: caching changes nothing."""
    return simulated(
        shape,
        placement,
        workload=workload,
        rate_rps=load * RATE_RPS[workload] if rate_rps is None else rate_rps,
        limit=SHORT_REQUESTS if requests is None else requests,
        fleet=FleetSettings(
            known_limits=False,
            length_hints=LengthHints.parse(lengths),
            engine_scheduler=parse_scheduler(scheduler),
        ),
    )
