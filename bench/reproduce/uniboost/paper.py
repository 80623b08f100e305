"""UniBoost: tail-aware order inside of engines, without predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from ballast_sim.simulation.inputs.engine_scheduler import parse_scheduler
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from ballast_sim.simulation.policies.choice import parse_policies, with_parts
from bench.reproduce.form import (
    MANY_SEEDS,
    Claim,
    Experiment,
    Finding,
    Paper,
    Plot,
    Row,
    Run,
    Setting,
)
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results, measured
from bench.reproduce.tasks import Called, Simulated, simulated
from bench.reproduce.uniboost.levels import CHUNKS, FIGURE_6, FIGURE_8, OBJECTIVE, TABLE_8
from bench.reproduce.uniboost.mixes import FIGURES, RATE_RPS, SCHEDULERS, SWAP, TABLE_2_FIGURES, mixed
from bench.reproduce.uniboost.runs import starvation
from bench.reproduce.verdicts import judge_change, judge_level

LOADS = (0.5, 0.8, 1.1)
"""Of eight engines; a run takes two minutes and more of processor time."""
ONE_ENGINE_LOADS = (0.5, 0.65, 0.8)
REQUESTS = 10_000
"""As the paper samples (4); at load 0.5 these arrive in 1,670 s, at 1.1 in 760 s."""
PAPER_TABLE_2 = {
    "e2e_mean_s": ("mean TTLT", {"uniboost": 19.1, "distboost": 14.0, "sarathi": 12.3, "sjf": 11.1}),
    "e2e_p95_s": ("P95 TTLT", {"uniboost": -1.1, "distboost": -6.0, "sarathi": 13.2, "sjf": 12.5}),
    "e2e_p99_s": ("P99 TTLT", {"uniboost": -35.1, "distboost": -37.1, "sarathi": 7.6, "sjf": -11.2}),
    "ttft_mean_s": ("mean TTFT", {"uniboost": -52.1, "distboost": 22.8, "sarathi": 49.9, "sjf": 74.6}),
    "ttft_p95_s": ("P95 TTFT", {"uniboost": -97.4, "distboost": 35.0, "sarathi": 40.5, "sjf": 70.5}),
    "ttft_p99_s": ("P99 TTFT", {"uniboost": -34.0, "distboost": 3.4, "sarathi": 8.1, "sjf": 9.7}),
    "tbt_mean_s": ("mean TBT", {"uniboost": 25.3, "distboost": 14.1, "sarathi": 6.8, "sjf": 5.2}),
    "tbt_p95_s": ("P95 TBT", {"uniboost": 8.1, "distboost": 10.2, "sarathi": 8.4, "sjf": 7.1}),
    "tbt_p99_s": ("P99 TBT", {"uniboost": -33.8, "distboost": -18.3, "sarathi": 7.9, "sjf": 6.3}),
    "throughput_tok_s": ("throughput", {"uniboost": 1.2, "distboost": 1.1, "sarathi": -10.9, "sjf": -7.9}),
}
"""Changes against TRAIL+ (srpt with perfect lengths) in percent of its value, with our sign: below is less."""

OTHER_LEVEL = (
    "P99 E2E is 8.5 s in the paper and 490 s on the mix that it names: the lengths and rates behind these tables are "
    "not given"
)

TAIL = Claim(
    name="uniboost/tail",
    short="P99 TTLT against SRPT with perfect lengths",
    number="-35.1 %",
    where="abstract, 4.1, table 2",
    says="on 70 % reasoning requests P99 TTLT is 35.1 % below that of SRPT with perfect lengths",
)
FIRST = Claim(
    name="uniboost/first-token",
    short="mean, P95, P99 TTFT, likewise",
    number="-52, -97, -34 %",
    where="abstract, 4.1, table 2",
    says="mean, P95 and P99 TTFT are 52.1, 97.4 and 34.0 % below those of SRPT with perfect lengths",
)
BETWEEN = Claim(
    name="uniboost/between-tokens",
    short="P99 and mean TBT, likewise",
    number="-33.8, +25.3 %",
    where="4.1, table 2",
    says="P99 TBT is 33.8 % below that of SRPT with perfect lengths, the mean 25.3 % above",
)
COST = Claim(
    name="uniboost/mean",
    short="mean TTLT, likewise",
    number="+19.1 %",
    where="table 2",
    says="mean E2E is 19.1 % above that of SRPT with perfect lengths",
)
GLOBAL = Claim(
    name="uniboost/global",
    short="P99 E2E under global placements",
    number="-13.5 to -23.5 %",
    cannot=OTHER_LEVEL,
    where="A.5, table 9",
    says="against vLLM, P99 E2E falls by 13.9 % under random, 13.5 % under round-robin and 23.5 % under JSQ placement",
)
KNEE = Claim(
    name="uniboost/phases",
    short="P99 TTFT by phase of the design",
    number="halved twice",
    cannot="the paper's curve speaks of hundreds of milliseconds to seconds at 0.24 req/s; an answer of mix-1 takes "
    "minutes on such a card, and the lengths that it had are not given",
    where="4.3, figure 7",
    says="each phase of the design cuts the tail near the knee: unified order about halves P99 against DISTBOOST, "
    "MemGuard cuts it by another 1.5 to 2 times, learned gamma is best",
)
KNOBS = Claim(
    name="uniboost/knobs",
    short="P99 E2E at other delta and k",
    number="within 2 %",
    cannot=OTHER_LEVEL,
    where="A.4, tables 6 and 7",
    says="delta 0 costs 11.6 % of P99 E2E against 0.1; other values of delta and k change it by 2 % or less",
)
STARVATION = Claim(
    name="uniboost/starvation",
    short="worst long request, against Sarathi",
    number="246, 206 s",
    where="A.3, tables 3 and 4",
    says="90 % short and 10 % long requests at load 0.99: the worst long request takes 245.9 s, 205.5 s under Sarathi; "
    "latency does not grow with the order of arrival",
)


# --- table 2 ----------------------------------------------------------------------------------------------------------


def _mix_runs(endpoints: int, loads: tuple[float, ...], *, reduced: bool) -> list[Run]:
    return [
        Run(
            f"{load:g}/{name}",
            mixed(
                scheduler,
                lengths=lengths,
                shape=f"{endpoints}C@a100-llama3-8b",
                rate_rps=load * RATE_RPS["mix-2"] * endpoints / 8,
                requests=REQUESTS * endpoints // 8,
            ),
            reduced=reduced and load == 0.8 and name in ("srpt", "uniboost"),
            cost_s=9.0 * endpoints,
        )
        for load in loads
        for name, (scheduler, lengths) in SCHEDULERS.items()
        if name in IN_TABLE_2 or (load == 0.8 and endpoints == 1)
    ]


IN_TABLE_2 = ("srpt", "sjf", "sarathi", "distboost", "uniboost")
JUDGED = {
    "e2e_p99_s": TAIL,
    "e2e_mean_s": COST,
    "ttft_mean_s": FIRST,
    "ttft_p95_s": FIRST,
    "ttft_p99_s": FIRST,
    "tbt_mean_s": BETWEEN,
    "tbt_p99_s": BETWEEN,
}


def _mixes(loads: tuple[float, ...], results: Results) -> Finding:
    rows = []
    for load in loads:
        for figure, (title, papers) in PAPER_TABLE_2.items():
            for name, paper in papers.items():
                change = results.change(f"{load:g}/{name}", f"{load:g}/srpt", figure)
                claim = JUDGED.get(figure) if name == "uniboost" else None
                rows.append(
                    Row(
                        what=f"{title}, load {load:g}, {name} against srpt (oracle)",
                        ours=change,
                        unit="% change",
                        paper=f"{paper:+.1f} %",
                        setting=Setting.THEIRS,
                        claim=None if claim is None else claim.name,
                        verdict=None if claim is None else judge_change(change, paper),
                    )
                )
    charts = [
        Whiskers(
            f"{title}, mix-2 at load 0.8",
            "s",
            [
                Whisker(name, results.mean(f"0.8/{name}", figure), style=colour(number))
                for number, name in enumerate(IN_TABLE_2)
            ],
        )
        for figure, title in (("e2e_p99_s", "P99 TTLT"), ("e2e_mean_s", "mean TTLT"), ("ttft_p99_s", "P99 TTFT"))
    ]
    return Finding(rows=rows, plots=[Plot(name="tails", caption="orders inside of engines", charts=charts)])


def _one_engine(results: Results) -> Finding:
    found = _mixes(ONE_ENGINE_LOADS, results)
    others = [
        Row(
            what=f"{title}, load 0.8, uniboost against {other}",
            ours=results.change("0.8/uniboost", f"0.8/{other}", figure),
            unit="% change",
            setting=Setting.BEYOND,
        )
        for other in ("srpt-noisy", "las", "fcfs", "uniboost-low")
        for figure, title in (("e2e_p99_s", "P99 TTLT"), ("ttft_p99_s", "P99 TTFT"))
    ]
    return replace(found, rows=[*found.rows, *others])


TABLE_2 = Experiment(
    name="uniboost/table-2",
    title="Orders on a mix with 70 % reasoning (table 2)",
    text="Eight colocated A100 with an 8B model, 10,000 requests, round-robin, chunks of 1,024 tokens, KV swapped over "
    "PCIe where an order preempts. The paper says 'high load'; load 1 is the rate at which KV fills.",
    runs=_mix_runs(8, LOADS, reduced=False),
    analyse=partial(_mixes, LOADS),
    figures=TABLE_2_FIGURES,
)
ONE_ENGINE = Experiment(
    name="uniboost/table-2-one-engine",
    title="The same on one engine (table 2)",
    text="One of the eight with its share, 1,250 requests, by more seeds: orders work inside of an engine. Engines of "
    "the eight see a little less of bursts, as round-robin deals requests out.",
    runs=_mix_runs(1, ONE_ENGINE_LOADS, reduced=True),
    analyse=_one_engine,
    figures=TABLE_2_FIGURES,
    seeds=tuple(range(6)),
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
"""Where KV fills here."""


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
    reduced_seeds=(),
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
                )
            )
    return Finding(rows=rows)


TABLES_6_7 = Experiment(
    name="uniboost/tables-6-7",
    reduced_seeds=(),
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
            )
        )
    return Finding(rows=rows)


TABLE_9 = Experiment(
    name="uniboost/table-9",
    reduced_seeds=(),
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
            cost_s=9.0,
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
    runs=[Run(name, _waits(*parts), cost_s=5.0) for name, parts in WAITING.items()],
    analyse=_waiting,
    figures=FIGURES,
    seeds=MANY_SEEDS,
)


def _verdict(results: Mapping[str, Results]) -> str:
    one, setting = results[ONE_ENGINE.name], ("0.8/uniboost", "0.8/srpt")
    tail, mean, first = (one.change(*setting, figure) for figure in ("e2e_p99_s", "e2e_mean_s", "ttft_mean_s"))
    if tail is None or mean is None or first is None:
        return ""
    return (
        f"**In short.** On one of the eight engines at load 0.8 P99 TTLT is {measured(tail, '% change')} against SRPT "
        f"with perfect lengths (paper -35.1 %), the mean {measured(mean, '% change')} (+19.1 %), mean TTFT "
        f"{measured(first, '% change')} (-52.1 %). The paper's rates are not given. 10,000 requests are too few for a "
        "P99 lifetime: the longest live about as long as requests arrive."
    )


PAPER = Paper(
    name="uniboost",
    title="UniBoost: tail-aware order without predictions",
    set_up="Not given by the paper: rates of table 2, gamma to begin with, its bounds and window, delta's unit. Work "
    "is counted in seconds at the profile's rates, quantised by rounding down, in both phases.",
    claims=(TAIL, COST, FIRST, BETWEEN, GLOBAL, KNEE, KNOBS, STARVATION, CHUNKS, OBJECTIVE),
    experiments=(
        TABLE_2,
        ONE_ENGINE,
        FIGURE_6,
        FIGURE_7,
        FIGURE_8,
        TABLES_6_7,
        TABLE_8,
        TABLE_9,
        A3,
        APART,
        WAITING_ROOM,
    ),
    verdict=_verdict,
)
