"""UniBoost's long requests among many short ones: whether they starve (A.3)."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Row, Run, Setting
from bench.reproduce.results import Results
from bench.reproduce.tasks import Called
from bench.reproduce.uniboost.mixes import SCHEDULERS, mixed
from bench.reproduce.uniboost.runs import starvation
from bench.reproduce.verdicts import judge_level

STARVATION = Claim(
    name="uniboost/starvation",
    short="worst long request, against Sarathi",
    number="246, 206 s",
    where="A.3, tables 3 and 4",
    says="90 % short and 10 % long requests at load 0.99: the worst long request takes 245.9 s, 205.5 s under Sarathi; "
    "latency does not grow with the order of arrival",
)

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
