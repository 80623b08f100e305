"""Libra's cuts: where (figure 5), how many (table 7), by wrong predictions (table 5), with KV in chunks (6.5)."""

from __future__ import annotations

from bench.reproduce.form import MANY_SEEDS, Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.libra.runs import CHUNKED, LOCAL_SLO, PAPERS, System, chunks, fixed_rate, pinned
from bench.reproduce.libra.set_up import FIGURES, FIXED_FIGURES, MOST_GOODPUT, SYSTEMS, capacity_run
from bench.reproduce.plots import Whisker, Whiskers
from bench.reproduce.results import Results
from bench.reproduce.tasks import Called
from bench.reproduce.verdicts import ABOUT_1, judge_change, judge_level

ERRORS = Claim(
    name="libra/prediction-errors",
    short="goodput when lengths deviate by 100",
    number="0.971x",
    where="6.5, table 5",
    says="goodput falls by 2.9 % when output lengths deviate by sigma = 100 tokens from the 1,467 predicted",
)
THREE = Claim(
    name="libra/three-segments",
    short="goodput by a third segment",
    number="+9.0 %",
    where="6.7, table 7",
    says="a third segment for thinking brings goodput from 336 to 366 tokens/s, 9.0 % (the text says 12)",
)
SPLIT = Claim(
    name="libra/best-cut",
    short="best cut beyond the prompt",
    number="+47 %",
    where="4.1, figure 5",
    says="1,024 in and 1,024 out on two A100 (32B): the best cut, 1,358, lies beyond the prompt's end",
)
TRANSFER = Claim(
    name="libra/chunked-transfer",
    short="exposed transfer time, in chunks",
    number="-94 %",
    where="6.5",
    says="KV in chunks leaves 6 % of the transfer time exposed (Mini Reasoning)",
)

# --- table 5 ----------------------------------------------------------------------------------------------------------

SIGMAS = {0: 3606.93, 10: 3591.00, 50: 3564.90, 100: 3501.85}


def _errors(results: Results) -> Finding:
    rows = []
    for sigma, goodput in list(SIGMAS.items())[1:]:
        ours, paper = results.ratio(f"sigma-{sigma}", "sigma-0", "goodput_tok_s"), goodput / SIGMAS[0]
        rows.append(
            Row(
                what=f"goodput, sigma {sigma} over 0",
                ours=ours,
                unit="x",
                paper=f"{paper:.3f} x",
                setting=Setting.THEIRS,
                claim=ERRORS.name,
                verdict=judge_level(ours, paper, within=ABOUT_1),
            )
        )
    return Finding(rows=rows)


TABLE_5 = Experiment(
    name="libra/table-5",
    title="Wrong predictions (table 5)",
    text="219 tokens in, 1,467 out and a predictor that says so; outputs deviate. 4.5 requests/s: near capacity.",
    runs=[
        Run(
            f"sigma-{sigma}",
            Called(
                fixed_rate,
                {
                    "system": SYSTEMS["libra"],
                    "workload": "P219/D1467",
                    "rate_rps": 4.5,
                    "requests": 1350,
                    "sigma": float(sigma),
                    "told_tokens": 1467.0,
                },
            ),
            cost_s=3.0,
        )
        for sigma in SIGMAS
    ],
    analyse=_errors,
    figures=FIXED_FIGURES,
)

# --- table 7 ----------------------------------------------------------------------------------------------------------


def _three(results: Results) -> Finding:
    ours = results.change("three", "two", "goodput_most_tok_s")
    against = results.change("two", "disaggregated", "goodput_most_tok_s")
    return Finding(
        rows=[
            Row(
                what="goodput, three segments against two",
                ours=ours,
                unit="% change",
                paper="+9.0 %",
                setting=Setting.THEIRS,
                claim=THREE.name,
                verdict=judge_change(ours, 9.0),
            ),
            Row(
                what="goodput, two segments against disaggregation",
                ours=against,
                unit="% change",
                paper="+29.3 %",
                setting=Setting.THEIRS,
                claim=THREE.name,
                verdict=judge_change(against, 29.3),
            ),
        ]
    )


TABLE_7 = Experiment(
    name="libra/table-7",
    title="Prefill, thinking and answer apart (table 7)",
    text="Mini Reasoning on three GPUs (1P2D, 3F); 80 % of the output is thinking, for which 200 ms between tokens do. "
    f"{MOST_GOODPUT} That holds for three segments: their queue grows at rates at which they have more tokens in time.",
    runs=[
        capacity_run(name, system, "libra-reasoning", 4.0, reduced=False)
        for name, system in (
            ("disaggregated", System("1P2D@14b-tp1")),
            ("two", System("3F@14b-tp1", LOCAL_SLO, PAPERS, CHUNKED)),
            ("three", SYSTEMS["libra-3"]),
        )
    ],
    analyse=_three,
    figures=FIGURES,
)

# --- figure 5 ---------------------------------------------------------------------------------------------------------

CUTS = {512: None, 1024: 1.7, 1200: None, 1358: 2.5, 1536: None}
"""Positions, and the slower endpoint's requests/s where the paper gives them."""


def _cuts(results: Results) -> Finding:
    gain = results.change("1358", "1024", "capacity_rps")
    rows = [
        Row(
            what="requests/s, cut at 1,358 against 1,024",
            ours=gain,
            unit="% change",
            paper="+47 %",
            setting=Setting.THEIRS,
            claim=SPLIT.name,
            verdict=judge_change(gain, 47.0),
        )
    ]
    rows += [
        Row(
            what=f"cut at {position:,}",
            ours=results.mean(str(position), "capacity_rps"),
            unit="req/s",
            paper="" if paper is None else f"{paper} req/s",
            setting=Setting.THEIRS,
        )
        for position, paper in CUTS.items()
    ]
    whiskers = [
        Whisker(f"{position:,}", results.mean(str(position), "capacity_rps"), paper) for position, paper in CUTS.items()
    ]
    chart = Whiskers("1,024 in, 1,024 out, by position of the cut", "requests/s", whiskers)
    return Finding(rows=rows, plots=[Plot(name="cuts", caption="throughput by cut", charts=[chart])])


FIGURE_5 = Experiment(
    name="libra/figure-5",
    title="Where to cut (figure 5)",
    text="Qwen2.5-32B, two endpoints of one A100 each (32,664 KV tokens by our arithmetic; not in the paper), the "
    "first part always on the first one. The rate at which the queue begins to grow. Ours are a fifth of the paper's: "
    "so much KV holds some sixteen such requests, where its rates need about forty at a time.",
    runs=[capacity_run(str(position), pinned(position), "P1024/D1024", 1.0, tbt=False) for position in CUTS],
    analyse=_cuts,
    figures=FIGURES,
    seeds=MANY_SEEDS,
)

# --- section 6.5 ------------------------------------------------------------------------------------------------------


def _exposed(results: Results) -> Finding:
    ours = results.change("chunked", "whole", "kv_exposed_s")
    return Finding(
        rows=[
            Row(
                what="transfer time that is exposed, in chunks against whole",
                ours=ours,
                unit="% change",
                paper="-94 %",
                setting=Setting.THEIRS,
                claim=TRANSFER.name,
                verdict=judge_change(ours, -94.0),
            )
        ]
    )


CHUNKED_TRANSFER = Experiment(
    name="libra/chunked-transfer",
    title="KV transfer in chunks (section 6.5)",
    text="Mini Reasoning at 3 requests/s, chunks of 256 tokens, 200 Gbit/s after 5 ms.",
    runs=[
        Run(
            transfer,
            Called(
                fixed_rate,
                {
                    "system": chunks(SYSTEMS["libra"], transfer),
                    "workload": "libra-reasoning",
                    "rate_rps": 3.0,
                    "requests": 900,
                },
            ),
            cost_s=3.0,
        )
        for transfer in ("whole", "chunked")
    ],
    analyse=_exposed,
    figures=FIXED_FIGURES,
)
