"""UniBoost: tail-aware order inside of engines, without predictions.

Rates are ours: the paper gives none for its eight A100. Load 1 is 12 requests a second of mix-2 and 42 of mix-1, where
the KV caches of eight a100-llama3-8b fill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ballast_sim.simulation.inputs.engine_scheduler import parse_scheduler
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from ballast_sim.simulation.policies.choice import parse_policies, with_parts
from bench.reproduce.form import (
    MANY_SEEDS,
    STANDARD_FIGURES,
    Claim,
    Experiment,
    Finding,
    Paper,
    Plot,
    Row,
    Run,
    Setting,
    Verdict,
    judge_change,
    judge_level,
)
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Measured, Results
from bench.reproduce.tasks import Called, Simulated, simulated
from bench.reproduce.uniboost_runs import starvation

RATE_RPS = {"mix-1": 42.0, "mix-2": 12.0}
LOADS = (0.8, 1.0, 1.1)
REQUESTS = {"mix-1": 12_000, "mix-2": 3_000}
"""Some 250 s of arrivals, after which KV has filled: a long answer takes 150 s."""
CHUNK = "chunk=1024"
UNIBOOST = f"uniboost:{CHUNK}"
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

TAIL = Claim(
    name="uniboost/tail",
    where="abstract, 4.1, table 2",
    says="on 70 % reasoning requests P99 TTLT is 35.1 % below that of SRPT with perfect lengths, P99 TTFT 34.0 % below",
)
COST = Claim(
    name="uniboost/mean",
    where="table 2",
    says="mean E2E is 19.1 % above that of SRPT with perfect lengths",
)
GLOBAL = Claim(
    name="uniboost/global",
    where="A.5, table 9",
    says="against vLLM, P99 E2E falls by 13.9 % under random, 13.5 % under round-robin and 23.5 % under JSQ placement",
)
KNEE = Claim(
    name="uniboost/phases",
    where="4.3, figure 7",
    says="each phase of the design cuts the tail near the knee: unified order about halves P99 against DISTBOOST, "
    "MemGuard cuts it by another 1.5 to 2 times, learned gamma is best",
)
KNOBS = Claim(
    name="uniboost/knobs",
    where="A.4, tables 6 and 7",
    says="delta 0 costs 11.6 % of P99 E2E against 0.1; other values of delta and k change it by 2 % or less",
)
STARVATION = Claim(
    name="uniboost/starvation",
    where="A.3, tables 3 and 4",
    says="90 % short and 10 % long requests at load 0.99: the worst long request takes 245.9 s, 205.5 s under Sarathi; "
    "latency does not grow with the order of arrival",
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
        limit=REQUESTS[workload] if requests is None else requests,
        fleet=FleetSettings(
            known_limits=False,
            length_hints=LengthHints.parse(lengths),
            engine_scheduler=parse_scheduler(scheduler),
        ),
    )


# --- table 2 ----------------------------------------------------------------------------------------------------------


def _mix_runs() -> list[Run]:
    return [
        Run(
            f"{workload}/{load:g}/{name}",
            mixed(scheduler, lengths=lengths, workload=workload, load=load),
            reduced=workload == "mix-2" and load == 1.0,
            cost_s=20.0,
        )
        for workload in RATE_RPS
        for load in LOADS
        for name, (scheduler, lengths) in SCHEDULERS.items()
    ]


def _mixes(results: Results) -> Finding:
    rows = []
    for workload in RATE_RPS:
        for load in LOADS:
            setting = f"{workload}/{load:g}"
            for ours in ("uniboost", "uniboost-low"):
                for figure, title, paper, claim in (
                    ("e2e_p99_s", "P99 TTLT", -35.1, TAIL.name),
                    ("ttft_p99_s", "P99 TTFT", -34.0, TAIL.name),
                    ("e2e_mean_s", "mean TTLT", 19.1, COST.name),
                ):
                    change = results.change(f"{setting}/{ours}", f"{setting}/srpt", figure)
                    theirs = workload == "mix-2"
                    rows.append(
                        Row(
                            what=f"{title}, {workload}, load {load:g}, {ours} against srpt (oracle)",
                            ours=change,
                            unit="% change",
                            paper=f"{paper:+.1f} %" if theirs else "",
                            setting=Setting.THEIRS,
                            claim=claim if theirs else None,
                            verdict=judge_change(change, paper) if theirs else None,
                        )
                    )
            rows += [
                Row(
                    what=f"{title}, {workload}, load {load:g}, uniboost against {other}",
                    ours=results.change(f"{setting}/uniboost", f"{setting}/{other}", figure),
                    unit="% change",
                    setting=Setting.THEIRS,
                )
                for other in ("srpt-noisy", "sjf", "las", "sarathi", "fcfs", "distboost")
                for figure, title in (("e2e_p99_s", "P99 TTLT"), ("ttft_p99_s", "P99 TTFT"))
            ]
    charts = [
        Whiskers(
            f"{title}, mix-2 at load {load:g}",
            "s",
            [
                Whisker(name, results.mean(f"mix-2/{load:g}/{name}", figure), style=colour(number))
                for number, name in enumerate(SCHEDULERS)
            ],
        )
        for load, figure, title in (
            (0.8, "e2e_p99_s", "P99 TTLT"),
            (1.0, "e2e_p99_s", "P99 TTLT"),
            (1.0, "ttft_p99_s", "P99 TTFT"),
        )
    ]
    return Finding(rows=rows, plots=[Plot(name="tails", caption="orders inside of engines", charts=charts)])


TABLE_2 = Experiment(
    name="uniboost/table-2",
    title="Orders on mixes of chat and reasoning (table 2, figure 6)",
    text="Eight colocated A100 with an 8B model, round-robin, chunks of 1,024 tokens, KV swapped over PCIe where an "
    "order preempts. Below, at and above the rate at which KV fills.",
    runs=_mix_runs(),
    analyse=_mixes,
    figures=FIGURES,
)

# --- figure 7 ---------------------------------------------------------------------------------------------------------

PHASES = {
    "mlfq": "las:" + SWAP,
    "distboost": SCHEDULERS["distboost"][0],
    "phase-2": f"uniboost:quantise=false,adaptive=false,quantum=16,{SWAP}",
    "phase-3": f"uniboost:adaptive=false,{SWAP}",
    "uniboost": "uniboost:" + SWAP,
}
QPS = (0.1, 0.13, 0.16)


def _phases(results: Results) -> Finding:
    rows = []
    for rate in QPS:
        for after, before, paper in (
            ("phase-2", "distboost", -50.0),
            ("phase-3", "phase-2", -40.0),
            ("uniboost", "phase-3", None),
            ("uniboost", "mlfq", None),
        ):
            change = results.change(f"{rate:g}/{after}", f"{rate:g}/{before}", "e2e_p99_s")
            rows.append(
                Row(
                    what=f"P99 TTLT at {rate:g} req/s, {after} against {before}",
                    ours=change,
                    unit="% change",
                    paper="" if paper is None else f"{paper:+.0f} %",
                    setting=Setting.THEIRS,
                    claim=None if paper is None else KNEE.name,
                    verdict=None if paper is None else judge_change(change, paper),
                )
            )
    whiskers = [
        Whisker(f"{rate:g} req/s: {name}", results.mean(f"{rate:g}/{name}", "e2e_p99_s"), style=colour(number))
        for rate in QPS
        for number, name in enumerate(PHASES)
    ]
    chart = Whiskers("P99 TTLT by phase of the design", "s", whiskers, log=True)
    return Finding(rows=rows, plots=[Plot(name="phases", caption="one engine short of KV", charts=[chart])])


FIGURE_7 = Experiment(
    name="uniboost/figure-7",
    title="Phases of the design (figure 7)",
    text="One A100 80 GB short of KV: a 32B model (32k tokens of KV) in the place of CodeLlama-34B, mix-1.",
    runs=[
        Run(
            f"{rate:g}/{name}",
            mixed(text, workload="mix-1", shape="1C@a100-qwen3-32b-tp1", rate_rps=rate, requests=600),
        )
        for rate in QPS
        for name, text in PHASES.items()
    ],
    analyse=_phases,
    figures=FIGURES,
)

# --- tables 6, 7 and 9 ------------------------------------------------------------------------------------------------

DELTAS = {"0": 11.6, "0.3": 0.6, "0.5": 0.7}
BINS = {"64": 0.2, "512": 2.0, "1024": -0.6}
LITTLE = 2.0
"""Percent by which the paper's other values change P99 E2E at most."""


def _small(change: Measured | None) -> Verdict:
    """For a parameter that the paper claims to matter little."""
    if change is None:
        return Verdict.OPEN
    return Verdict.HOLDS if abs(change.value) <= LITTLE else Verdict.FAILS


def _knobs(results: Results) -> Finding:
    rows = []
    for kind, papers in (("delta", DELTAS), ("k", BINS)):
        for value, paper in papers.items():
            change = results.change(f"{kind}={value}", "default", "e2e_p99_s")
            rows.append(
                Row(
                    what=f"P99 TTLT, {kind} {value} against the default",
                    ours=change,
                    unit="% change",
                    paper=f"{paper:+.1f} %",
                    setting=Setting.THEIRS,
                    claim=KNOBS.name,
                    verdict=judge_change(change, paper) if value == "0" else _small(change),
                )
            )
    return Finding(rows=rows)


TABLES_6_7 = Experiment(
    name="uniboost/tables-6-7",
    title="Hysteresis and bins (tables 6 and 7)",
    text="Mix-2 at load 1 as in table 2. Delta is in seconds here; the paper does not say its unit.",
    runs=[
        Run("default", mixed("uniboost:" + SWAP), cost_s=20.0),
        *(
            Run(f"{kind}={value}", mixed(f"uniboost:{kind}={value},{SWAP}"), reduced=False, cost_s=20.0)
            for kind, values in (("delta", DELTAS), ("k", BINS))
            for value in values
        ),
    ],
    analyse=_knobs,
    figures=FIGURES,
)

PLACEMENTS = {"random": -13.9, "round-robin": -13.5, "least-requests": -23.5}


def _global(results: Results) -> Finding:
    rows = []
    for placement, paper in PLACEMENTS.items():
        change = results.change(f"{placement}/uniboost", f"{placement}/sarathi", "e2e_p99_s")
        rows.append(
            Row(
                what=f"P99 TTLT under {placement}, uniboost against sarathi",
                ours=change,
                unit="% change",
                paper=f"{paper:+.1f} %",
                setting=Setting.THEIRS,
                claim=GLOBAL.name,
                verdict=judge_change(change, paper),
            )
        )
    return Finding(rows=rows)


TABLE_9 = Experiment(
    name="uniboost/table-9",
    title="Under global placements (table 9)",
    text="Eight endpoints, not 64; JSQ is least-requests. Mix-2 at load 1.",
    runs=[
        Run(f"{placement}/{name}", mixed(text, placement=placement), cost_s=20.0)
        for placement in PLACEMENTS
        for name, text in (("uniboost", "uniboost:" + SWAP), ("sarathi", "sarathi:1024"))
    ],
    analyse=_global,
    figures=FIGURES,
)

# --- A.3 --------------------------------------------------------------------------------------------------------------

A3_RATE_RPS = 32.0
"""Where the KV of eight engines fills within the run: 10 % hold 5,000 tokens on average for some 290 s."""


def _starvation(results: Results) -> Finding:
    rows = []
    for name, paper in (("uniboost", 245.9), ("sarathi", 205.5), ("sjf", 253.9), ("srpt", 246.3)):
        ours = results.mean(name, "long_max_s")
        rows.append(
            Row(
                what=f"worst long request, {name}",
                ours=ours,
                unit="s",
                paper=f"{paper:.1f} s",
                setting=Setting.THEIRS,
                claim=STARVATION.name,
                verdict=judge_level(ours, paper),
            )
        )
        rows += [
            Row(what=f"{what}, {name}", ours=results.mean(name, figure), unit="s", setting=Setting.THEIRS)
            for figure, what in (
                ("short_p99_s", "P99 of short requests"),
                ("long_slope_s", "growth of a long request's TTLT with its number"),
            )
        ]
    return Finding(rows=rows)


A3 = Experiment(
    name="uniboost/starvation",
    title="Starvation (A.3)",
    text="90 % of 125 / 100 tokens, 10 % of 2,000 / 6,000; eight A100 with an 8B model where the paper has eight H100.",
    runs=[
        Run(
            name,
            Called(
                starvation,
                {"run": mixed(text, lengths=lengths, placement="random"), "rate_rps": A3_RATE_RPS, "requests": 10_000},
            ),
            cost_s=30.0,
        )
        for name, (text, lengths) in SCHEDULERS.items()
        if name in ("uniboost", "sarathi", "sjf", "srpt")
    ],
    analyse=_starvation,
    figures=("requests", "preemptions", "short_p99_s", "long_mean_s", "long_p99_s", "long_max_s", "long_slope_s"),
)

# --- beyond the paper -------------------------------------------------------------------------------------------------


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
    runs=[Run(name, _waits(*parts)) for name, parts in WAITING.items()],
    analyse=_waiting,
    figures=FIGURES,
    seeds=MANY_SEEDS,
)


def _verdict(results: Mapping[str, Results]) -> str:
    mixes, setting = results[TABLE_2.name], "mix-2/1"
    tail = mixes.change(f"{setting}/uniboost", f"{setting}/srpt", "e2e_p99_s")
    mean = mixes.change(f"{setting}/uniboost", f"{setting}/srpt", "e2e_mean_s")
    ours, theirs = (mixes.values(f"{setting}/{name}", "ttft_p99_s") for name in ("uniboost", "srpt"))
    first = [ours[seed] / theirs[seed] for seed in ours if theirs.get(seed)]
    fcfs = mixes.change(f"{setting}/uniboost", f"{setting}/fcfs", "ttft_p99_s")
    known = [mixes.mean(f"{setting}/{name}", "e2e_p99_s") for name in SCHEDULERS]
    tails = [each.value for each in known if each is not None]
    if tail is None or mean is None or not first or fcfs is None or not tails:
        return ""
    return (
        f"**In short.** On mix-2 at load 1 P99 TTLT is {tail.value:+.1f} % against SRPT with perfect lengths (paper "
        f"-35.1 %) and the mean {mean.value:+.1f} % (+19.1 %). P99 TTFT is {min(first):.3g} to {max(first):.3g} "
        "times SRPT's, seed by seed (paper 0.66), and "
        f"{fcfs.value:+.0f} % against engines that go first come, first served. All "
        f"{len(tails)} orders lie within {100 * (max(tails) / min(tails) - 1):.0f} % of each other in P99 TTLT: the "
        "longest answers take as long as they decode, and an order inside of an engine only moves the waiting, for "
        "memory, from some requests to others. The paper's rates are not given; further beyond capacity waiting weighs "
        "more (load 1.1 below)."
    )


PAPER = Paper(
    name="uniboost",
    title="UniBoost: tail-aware order without predictions",
    set_up="Not given by the paper: rates of table 2, gamma to begin with, its bounds and window, delta's unit. Work "
    "is counted in seconds at the profile's rates, quantised by rounding down, in both phases.",
    claims=(TAIL, COST, GLOBAL, KNEE, KNOBS, STARVATION),
    experiments=(TABLE_2, FIGURE_7, TABLES_6_7, TABLE_9, A3, APART, WAITING_ROOM),
    verdict=_verdict,
)
