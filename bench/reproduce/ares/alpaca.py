"""ARES's section 6.2 with Alpaca's lengths, at the paper's rate and at what three cards sustain."""

from __future__ import annotations

from collections.abc import Mapping

from bench.reproduce.ares.runs import goodput_name
from bench.reproduce.ares.set_up import LABELS
from bench.reproduce.ares.short_of_memory import CARD_FIGURES, CARD_S, SWEPT_MS, card_run
from bench.reproduce.form import Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.verdicts import judge_change as judged

ALPACA_TAIL = Claim(
    name="ares/alpaca-tail",
    short="P99 TPOT on Alpaca by moving, by prediction",
    number="-19.7, -45.4 %",
    where="6.2, figure 10",
    says="P99 TPOT on Alpaca at 1.7 req/s falls from 100.6 to 80.8 ms by rescheduling (-19.7 %), and by another 45.4 % "
    "with predictions",
)

PRINTED_RPS = 1.7
ALPACA_S = {0.17: CARD_S, 0.21: CARD_S, PRINTED_RPS: 200.0}
"""Seconds of arrivals by rate."""
ALPACA_COST_S: Mapping[float, Mapping[str, float]] = {
    0.17: {"vllm": 4.7, "rescheduling": 12.5, "ares-predictor": 17.3},
    0.21: {"vllm": 5.9, "rescheduling": 12.5, "ares-predictor": 24.4, "ares-oracle": 13.8},
    PRINTED_RPS: {"vllm": 3.6, "rescheduling": 5.7, "ares-predictor": 12.3, "ares-oracle": 7.7},
}
"""Processor seconds of the variants that are run at a rate."""
BY_MOVING, BY_PREDICTION = -19.7, -45.4
BOTH = 100 * ((1 + BY_MOVING / 100) * (1 + BY_PREDICTION / 100) - 1)
"""P99 TPOT on Alpaca, in percent: against no moving, against moving, and with both against no moving."""
ALPACA_TAILS = (
    ("rescheduling", "vllm", BY_MOVING),
    ("ares-predictor", "rescheduling", BY_PREDICTION),
    ("ares-predictor", "vllm", BOTH),
)
ALPACA_LEVELS = {"vllm": "100.6 ms", "rescheduling": "80.8 ms", "ares-predictor": "44.1 ms"}
"""P99 TPOT at its rate."""


def _alpaca_tails(results: Results, at: str) -> list[Row]:
    rows = []
    for variant, against, paper in ALPACA_TAILS:
        changed = results.change(f"{at}/{variant}", f"{at}/{against}", "tpot_p99_s")
        rows.append(
            Row(
                what=f"P99 TPOT, {at} req/s, {LABELS[variant]}, against {LABELS[against]}",
                ours=changed,
                unit="% change",
                paper=f"{paper:+.3g} %",
                setting=Setting.THEIRS,
                claim=ALPACA_TAIL.name,
                verdict=judged(changed, paper),
            )
        )
    return rows


def _alpaca(results: Results) -> Finding:
    rows, whiskers = [], []
    goodputs = tuple(map(goodput_name, SWEPT_MS))
    for rate, variants in ALPACA_COST_S.items():
        at = f"{rate:g}"
        rows += _alpaca_tails(results, at)
        rows += [
            Row(what=f"{title}, {at} req/s, {LABELS[variant]}", ours=ours, unit="% change", setting=Setting.THEIRS)
            for variant in list(variants)[1:]
            for title, ours in (
                ("throughput", results.change(f"{at}/{variant}", f"{at}/vllm", "throughput_tok_s")),
                (
                    "goodput at the objective where moving gains most",
                    results.best_change(f"{at}/{variant}", f"{at}/vllm", goodputs),
                ),
            )
        ]
        if "ares-oracle" in variants:
            rows.append(
                Row(
                    what=f"P99 TPOT, {at} req/s, {LABELS['ares-oracle']}, against {LABELS['rescheduling']}",
                    ours=results.change(f"{at}/ares-oracle", f"{at}/rescheduling", "tpot_p99_s"),
                    unit="% change",
                    setting=Setting.THEIRS,
                )
            )
        for number, variant in enumerate(variants):
            run = f"{at}/{variant}"
            tail = results.mean(run, "tpot_p99_s", 1e3)
            rows += [
                Row(
                    what=f"{LABELS[variant]}, {at} req/s: {title}",
                    ours=ours,
                    unit=unit,
                    paper=paper if rate == PRINTED_RPS else "",
                    setting=Setting.THEIRS,
                )
                for title, ours, unit, paper in (
                    ("P99 TPOT", tail, "ms", ALPACA_LEVELS.get(variant, "")),
                    ("throughput", results.mean(run, "throughput_tok_s"), "tok/s", ""),
                    ("preemptions", results.mean(run, "preemptions"), "", ""),
                )
            ]
            whiskers.append(Whisker(f"{at} req/s: {LABELS[variant]}", tail, style=colour(number)))
    chart = Whiskers("P99 TPOT on Alpaca, three cards short of memory", "ms", whiskers)
    return Finding(rows=rows, plots=[Plot(name="tail", caption="their card, Alpaca's lengths", charts=[chart])])


ALPACA = Experiment(
    name="ares/alpaca",
    reduced_seeds=(),
    title="Alpaca on one prefill and three decode cards (6.2)",
    text="As `ares/section-6.2`, with Alpaca's lengths of table 2. The paper's rate is 1.7 req/s, ten times that of "
    "ShareGPT, while a request decodes more tokens, 8,596: 14,600 tokens/s, many times what three cards decode. So 1.7 "
    "req/s is run as printed for 200 s, whose requests then drain for half an hour: an overload, too short to "
    "contradict. 0.17, should the point be misplaced, and 0.21, about what the cards sustain, are run for 3,000 s. The "
    "paper has numbers for P99 TPOT alone; goodput and throughput stand in its figure only, and so inform here. ARES "
    "predicts with the paper's errors; exact lengths stand beside it from 0.21 req/s on.",
    runs=[
        Run(
            f"{rate:g}/{variant}",
            card_run("ils", variant, rate, "alpaca-reasoning", duration_s=ALPACA_S[rate]),
            cost_s=cost_s,
        )
        for rate, costs in ALPACA_COST_S.items()
        for variant, cost_s in costs.items()
    ],
    analyse=_alpaca,
    figures=CARD_FIGURES,
)
