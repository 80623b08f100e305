"""UniBoost beyond its paper: prefill and decode apart, and the order kept in the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ballast_sim.simulation.inputs.engine_scheduler import parse_scheduler
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from ballast_sim.simulation.policies.choice import parse_policies, with_parts
from bench.reproduce.form import MANY_SEEDS, Experiment, Finding, Row, Run, Setting
from bench.reproduce.results import Results
from bench.reproduce.tasks import Simulated, simulated
from bench.reproduce.uniboost.mixes import FIGURES


def _apart(results: Results) -> Finding:
    return Finding(
        rows=[
            Row(
                what=f"{title}, prefill and decode apart, prefix caching, {name} against fcfs",
                ours=results.change(name, "fcfs", figure),
                unit="% change",
                setting=Setting.BEYOND,
            )
            for name in ("uniboost", "srpt", "shortest-prompt")
            for figure, title in (
                ("ttft_mean_s", "mean TTFT"),
                ("ttft_p99_s", "P99 TTFT"),
                ("e2e_p99_s", "P99 TTLT"),
            )
        ]
    )


APART = Experiment(
    name="uniboost/apart",
    title="Prefill and decode apart, with prefix caching",
    text="One prefill and two decode endpoints, conversations that share prefixes (multi-turn): the prefill engine "
    "orders by the prompt that its cache lacks.",
    runs=[
        Run(
            name,
            simulated(
                "1P2D@a100-qwen3-32b-tp4",
                "least-requests",
                workload="multi-turn",
                rate_rps=48.0,
                limit=4_000,
                fleet=FleetSettings(
                    known_limits=False,
                    length_hints=LengthHints.parse(lengths),
                    engine_scheduler=parse_scheduler(text),
                ),
            ),
        )
        for name, text, lengths in (
            ("fcfs", "fcfs", "none"),
            ("uniboost", "uniboost", "none"),
            ("shortest-prompt", "shortest-prompt", "none"),
            ("srpt", "srpt", "oracle"),
        )
    ],
    analyse=_apart,
    figures=FIGURES,
)


WAITING: Mapping[str, tuple[str | None, str | None, Literal["fcfs", "priority"]]] = {
    "fcfs": (None, None, "fcfs"),
    "engines told": ("uniboost:adaptive=false,gamma_per_s=0.3,engine_priority=true", None, "priority"),
    "one place": ("uniboost:adaptive=false,gamma_per_s=0.3", "bounded:max_prefill_requests=1", "fcfs"),
    "two places": ("uniboost:adaptive=false,gamma_per_s=0.3", "bounded:max_prefill_requests=2", "fcfs"),
    "two places, fcfs": ("fcfs", "bounded:max_prefill_requests=2", "fcfs"),
    "two places, shortest prompt": ("shortest-prompt", "bounded:max_prefill_requests=2", "fcfs"),
}
"""Queue, admission and vLLM's --scheduling-policy."""


def _waits(queue: str | None, admission: str | None, engine_policy: Literal["fcfs", "priority"]) -> Simulated:
    choice = parse_policies("least-requests")
    return simulated(
        "1P1D@h200-llama3-8b",
        with_parts(choice, {"queue": queue, "admission": admission})[0],
        workload="libra-code",
        rate_rps=24.0,
        limit=4_000,
        fleet=FleetSettings(known_limits=False, engine_policy=engine_policy),
    )


def _waiting(results: Results) -> Finding:
    return Finding(
        rows=[
            Row(
                what=f"{title}, {name}",
                ours=results.mean(name, figure),
                unit="s",
                setting=Setting.REALISTIC,
            )
            for name in WAITING
            for figure, title in (("ttft_p50_s", "P50 TTFT"), ("ttft_p90_s", "P90 TTFT"), ("ttft_p99_s", "P99 TTFT"))
        ]
    )


WAITING_ROOM = Experiment(
    name="uniboost/waiting-room",
    title="The order kept in the gateway, or passed to stock vLLM",
    text="One H200 prefills Libra's Azure Code (24 requests/s, near capacity); UniBoost with gamma 0.3 /s in a waiting "
    "room, with capacity for so many prefills, or passed to engines as priority. It orders by prompt lengths alone.",
    runs=[Run(name, _waits(*parts), cost_s=5.0) for name, parts in WAITING.items()],
    analyse=_waiting,
    figures=FIGURES,
    seeds=MANY_SEEDS,
)
