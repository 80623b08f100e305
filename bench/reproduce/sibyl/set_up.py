"""SIBYL's own set-up, which most of its experiments share: data, loads and the paper's physics.

Rates are chosen by load, as the paper gives none: load 1 is where all decode endpoints at the peak of Eq. 15, 1,177
tokens/s each, generate just what arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_core.model import Binding
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.policies.choice import PolicyChoice
from ballast_sim.workloads import ArrivalProcess
from bench.reproduce.form import STANDARD_FIGURES
from bench.reproduce.sibyl.policies import own
from bench.reproduce.tasks import Simulated, simulated

PEAK_TOKENS_PER_S = 1177.0
MEAN_OUTPUT = {"sharegpt-reasoning": 5659.0, "zeta": 4500.0}
DATA = {"sharegpt-reasoning": "ShareGPT", "zeta": "Zeta"}
REQUESTS_PER_ENDPOINT = 180
"""Some 960 s of ShareGPT at load 0.9; a request lives 170 s on average."""
FIGURES = (*STANDARD_FIGURES, "optimal_assignment_ratio")
HEADLINE_LOAD = 0.9
OTHER_LOADS = (1.0, 1.1, 1.2)
CLUSTERED = ArrivalProcess("gamma", 2.0)
"""`--burstiness 0.25` of the paper's command; its own number is not given, and 1, its default, is Poisson."""


def rate_rps(workload: str, endpoints: int, load: float) -> float:
    """Requests a second of a load."""
    return load * endpoints * PEAK_TOKENS_PER_S / MEAN_OUTPUT[workload]


def paper_run(
    workload: str,
    endpoints: int,
    policy: str | PolicyChoice,
    *,
    load: float = HEADLINE_LOAD,
    physics: str = "sibyl-held",
    limit: int | None = None,
    scrape_interval_s: float = 0.2,
    hardware: Mapping[str, Any] | None = None,
    arrivals: ArrivalProcess | None = None,
) -> Simulated:
    """Appendix I: prefill is a delay, decode endpoints share Eq. 15's throughput, early assignment."""
    return simulated(
        f"1P@h20-qwen3-32b,{endpoints}D@h20-qwen3-32b",
        own(policy),
        workload=workload,
        arrivals=arrivals,
        rate_rps=rate_rps(workload, endpoints, load),
        limit=limit or REQUESTS_PER_ENDPOINT * endpoints,
        binding=Binding.EARLY,
        fleet=FleetSettings(known_limits=False, physics=physics, scrape_interval_s=scrape_interval_s),
        hardware=hardware,
    )
