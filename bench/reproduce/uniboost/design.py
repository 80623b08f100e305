"""Parts of UniBoost's design: its phases (figure 7), its parameters (tables 6 and 7), global placements (table 9)."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.uniboost.mixes import FIGURES, SCHEDULERS, SWAP, mixed

OTHER_LEVEL = (
    "P99 E2E is 8.5 s in the paper and 490 s on the mix that it names: the lengths and rates behind these tables are "
    "not given"
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
