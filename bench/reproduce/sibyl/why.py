"""Why SIBYL's tails are as they are: what it balances between endpoints, and what sets their speed."""

from __future__ import annotations

from bench.reproduce.form import Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results, known
from bench.reproduce.sibyl.policies import BASELINES, FAIR
from bench.reproduce.sibyl.runs import balance
from bench.reproduce.sibyl.set_up import paper_run
from bench.reproduce.tasks import Called

BALANCE = ("round-robin", "ils", "least-requests", "sibyl")
ROOMY = {"kv_tokens": 20_000_000}
"""So that the KV gauge, a share, never ends at 1; the paper's physics has no KV limit."""


def _why(results: Results) -> Finding:
    rows, whiskers = [], []
    for index, policy in enumerate(BALANCE):
        tokens = results.mean(policy, "tokens_cv", 100)
        sequences = results.mean(policy, "sequences_cv", 100)
        rows += [
            Row(what=f"{BASELINES[policy]}: {what}", ours=ours, unit=unit, setting=Setting.BEYOND)
            for what, ours, unit in (
                ("variation of KV tokens between endpoints", tokens, "%"),
                ("variation of batch sizes between endpoints", sequences, "%"),
                ("largest batch", results.mean(policy, "sequences_most"), ""),
                ("P99 TPOT", results.mean(policy, "tpot_p99_s", 1e3), "ms"),
            )
        ]
        whiskers += [
            Whisker(f"{BASELINES[policy]}: KV tokens", tokens, style=colour(index)),
            Whisker(f"{BASELINES[policy]}: batch size", sequences, style=colour(index)),
        ]
    chart = Whiskers("Coefficient of variation over 64 decode endpoints", "%", whiskers)
    text = ""
    found = known(
        *(results.mean(run, f"{each}_cv", 100) for run in ("sibyl", FAIR) for each in ("tokens", "sequences"))
    )
    if found is not None:
        mine, my_batches, theirs, their_batches = (each.value for each in found)
        text = (
            f"KV tokens vary by {mine:.0f} % between endpoints under SIBYL and by {theirs:.0f} % under "
            f"least-requests, batch sizes by {my_batches:.0f} % and {their_batches:.0f} %. Eq. 15 knows batch sizes "
            f"only. "
            "An endpoint whose long requests have just ended holds few tokens, so SIBYL gives it young requests "
            "until it "
            "holds as many as the others, which takes many of them; these decode slowly together. Counting requests "
            "evens out both."
        )
    return Finding(
        rows=rows, plots=[Plot(name="balance", caption="What each policy balances", charts=[chart])], text=text
    )


WHY = Experiment(
    name="sibyl/why",
    reduced_seeds=(),
    title="Why: tokens are balanced, sequences are not",
    text=(
        "ShareGPT at 64 decode endpoints, Eq. 15 held, load 0.9: how unlike decode endpoints are, sampled every 5 s."
    ),
    runs=[
        Run(
            policy,
            Called(balance, {"run": paper_run("sharegpt-reasoning", 64, policy, hardware=ROOMY)}),
            cost_s=12.0,
        )
        for policy in BALANCE
    ],
    analyse=_why,
    figures=("tpot_p99_s", "sequences_cv", "tokens_cv", "sequences_most"),
)
