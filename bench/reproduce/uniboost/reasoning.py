"""UniBoost with a 72B model on reasoning alone (figure 6, as the paper has it)."""

from __future__ import annotations

from dataclasses import replace

from ballast_core.profiles import HardwareProfile
from ballast_sim.simulation.inputs.engine_scheduler import parse_scheduler
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from bench.reproduce.form import Experiment, Run
from bench.reproduce.libra.loads_profiles import PROFILES
from bench.reproduce.tasks import Simulated, simulated
from bench.reproduce.uniboost.levels import BASELINES, PERCENTILE_FIGURES, by_percentile
from bench.reproduce.uniboost.mixes import SCHEDULERS, SWAP
from bench.reproduce.uniboost.workloads import Reasoning

GROUPS = 4
"""Of four GPUs each, over which context is parallel."""
RATE_RPS, REQUESTS = 1.28, 4_700
"""About the most that it sustains: at 1.25 nothing waits, at 1.4 vLLM's queue grows for as long as requests arrive
(seed 0). They arrive in 3,672 s, some three P99 lifetimes."""
SEATS = 1_024
"""Sequences at a time, so that KV is what runs out, as on the paper's engines; vLLM's default of 256 would be first."""
LINKS = 25 * 16
"""GB/s to the hosts: each GPU swaps its own share of KV over its own PCIe."""


def context_parallel(base: HardwareProfile, groups: int) -> HardwareProfile:
    """The base in so many groups that share out tokens and KV of every sequence, at no cost of communication.

    Every group reads all weights in every step: floor, host time and what a sequence costs stay.
    """
    return replace(
        base,
        name=f"{base.name}-cp{groups}",
        hardware=f"{groups * base.gpus} x A100 80 GB, tensor parallel {base.gpus}, context parallel {groups}",
        gpus=groups * base.gpus,
        d_ms_per_token=base.d_ms_per_token / groups,
        k_ms_per_kv_token=base.k_ms_per_kv_token / groups,
        s_ms_per_pair=base.s_ms_per_pair / groups,
        kv_tokens=base.kv_tokens * groups,
        max_num_seqs=SEATS,
        derivation=f"{base.name}: arithmetic and KV shared out over {groups} groups",
    )


PROFILE = context_parallel(PROFILES["a100-qwen2.5-72b-tp4"], GROUPS)


def _reasoning(name: str) -> Simulated:
    scheduler, lengths = SCHEDULERS[name]
    return simulated(
        f"1C@{PROFILE.name}",
        "round-robin",
        workload=Reasoning(rate_rps=RATE_RPS, limit=REQUESTS),
        profiles=[PROFILE],
        fleet=FleetSettings(
            known_limits=False,
            length_hints=LengthHints.parse(lengths),
            engine_scheduler=parse_scheduler(scheduler.replace(SWAP, f"{SWAP},swap_gbps={LINKS}")),
        ),
    )


FIGURE_6_72B = Experiment(
    name="uniboost/figure-6-72b",
    reduced_seeds=(),
    title="The same with a 72B model (figure 6)",
    text="Reasoning alone (s1k) with Qwen2.5-72B, TP 4 and CP 4 as the paper names them: 16 A100, of which its testbed "
    "has eight. Ours: the profile (Libra's 72B, scaled from Llama-3-70B's steps; four such groups share out the "
    "arithmetic of tokens and the KV, each reads all weights, what they tell each other costs nothing), swaps over the "
    "PCIe of all 16, 1,024 seats so that KV is what runs out, and the load: 1.28 requests/s, about the most that it "
    "sustains, for the paper's 0.99 of it. Chunks of 1,024. The paper prints curves without numbers: no verdict.",
    runs=[Run(name, _reasoning(name), cost_s=10.0) for name in ("uniboost", *BASELINES)],
    analyse=by_percentile,
    figures=PERCENTILE_FIGURES,
)
