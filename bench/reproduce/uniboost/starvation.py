"""UniBoost's long requests among many short ones: whether they starve (A.3)."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Row, Run, Setting
from bench.reproduce.results import Results
from bench.reproduce.tasks import Called
from bench.reproduce.uniboost.mixes import SCHEDULERS, mixed
from bench.reproduce.uniboost.runs import starvation
from bench.reproduce.verdicts import judge_change, judge_level

STARVATION = Claim(
    name="uniboost/starvation",
    short="worst long request, against Sarathi",
    number="+19.7 %",
    where="A.3, tables 3 and 4",
    says="90 % short and 10 % long requests at load 0.99: the worst long request takes 245.9 s, 205.5 s under Sarathi; "
    "latency does not grow with the order of arrival (some 0.0003 s a request)",
)

A3_RATE_RPS = 32.0
"""Where the KV of eight engines fills within the run: 10 % hold 5,000 tokens on average for some 290 s."""
PAPER_WORST_S = {"uniboost": 245.9, "sarathi": 205.5, "sjf": 253.9, "srpt": 246.3}
PAPER_SLOPE_S = 0.0003
"""Seconds a request."""
GROWTH = "growth of a long request's TTLT with its number"


def _starvation(results: Results) -> Finding:
    worst = results.change("uniboost", "sarathi", "long_max_s")
    paper = 100 * (PAPER_WORST_S["uniboost"] / PAPER_WORST_S["sarathi"] - 1)
    slope = results.mean("uniboost", "long_slope_s")
    rows = [
        Row(
            what="worst long request, uniboost against sarathi",
            ours=worst,
            unit="% change",
            paper=f"{paper:+.1f} %",
            setting=Setting.THEIRS,
            claim=STARVATION.name,
            verdict=judge_change(worst, paper),
        ),
        Row(
            what=f"{GROWTH}, uniboost",
            ours=slope,
            unit="s",
            paper=f"{PAPER_SLOPE_S:g} s",
            setting=Setting.THEIRS,
            claim=STARVATION.name,
            verdict=judge_level(slope, PAPER_SLOPE_S),
        ),
    ]
    for name, worst_s in PAPER_WORST_S.items():
        rows += [
            Row(
                what=f"{what}, {name}",
                ours=results.mean(name, figure),
                unit="s",
                paper=said,
                setting=Setting.THEIRS,
            )
            for figure, what, said in (
                ("long_max_s", "worst long request", f"{worst_s:.1f} s"),
                ("short_p99_s", "P99 of short requests", ""),
                *([] if name == "uniboost" else [("long_slope_s", GROWTH, "")]),
            )
        ]
    return Finding(rows=rows)


A3 = Experiment(
    name="uniboost/starvation",
    title="Starvation (A.3)",
    text="90 % of 125 / 100 tokens, 10 % of 2,000 / 6,000; eight A100 with an 8B model where the paper has eight H100: "
    "so not seconds are judged, but an order against another one, and growth. KV fills within the run.",
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
