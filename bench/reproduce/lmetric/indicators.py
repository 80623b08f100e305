"""LMetric's indicators, one replaced at a time (figures 18 and 19)."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Row, Run, Setting
from bench.reproduce.lmetric.end_to_end import RATES
from bench.reproduce.lmetric.policies import FIGURES, change_row, colocated, multiplied
from bench.reproduce.results import Results
from bench.reproduce.verdicts import judge_direction

P_TOKEN = Claim(
    name="lmetric/p-token",
    short="P50 and P95 TTFT, P-token for 1 - hit",
    number="-14.4, -42.8 %",
    where="5.1, figure 18",
    says="prefill tokens as the cache indicator: P50 TTFT 14.4 %, P95 TTFT 42.8 % below 1 - hit ratio",
)
BATCH = Claim(
    name="lmetric/batch-size",
    short="batch size beats tokens as load",
    number="lower",
    where="5.1, figure 19",
    says="batch size as the load indicator is better than the total of tokens (a plot, no number)",
)

P_TOKENS = {"type": "least-uncached-tokens"}
MISSES = {"type": "linear-kv", "parameters": {"kv_weight": 1.0}}
REQUESTS = {"type": "least-requests"}
TOKENS = {"type": "least-tokens"}
INDICATORS = {
    "P-token x BS": multiplied("P-token x BS", P_TOKENS, REQUESTS),
    "(1 - hit) x BS": multiplied("(1 - hit) x BS", MISSES, REQUESTS),
    "P-token x tokens": multiplied("P-token x tokens", P_TOKENS, TOKENS),
    "(1 - hit) x tokens": multiplied("(1 - hit) x tokens", MISSES, TOKENS),
}


def _indicators(results: Results) -> Finding:
    rows = []
    for rate in RATES:
        at = f"{rate} of the maximum"
        for figure, title, paper in (
            ("ttft_p50_s", "P50 TTFT", -14.4),
            ("ttft_p95_s", "P95 TTFT", -42.8),
        ):
            rows.append(
                change_row(
                    results,
                    f"{rate}/P-token x BS",
                    f"{rate}/(1 - hit) x BS",
                    figure,
                    f"{title}, P-token instead of 1 - hit, {at}",
                    paper=paper,
                    claim=P_TOKEN,
                    setting=Setting.THEIRS,
                )
            )
        for figure, title in (("ttft_mean_s", "mean TTFT"), ("tpot_mean_s", "mean TPOT"), ("tpot_p99_s", "P99 TPOT")):
            ours = results.change(f"{rate}/P-token x BS", f"{rate}/P-token x tokens", figure)
            rows.append(
                Row(
                    what=f"{title}, batch size instead of tokens, {at}",
                    ours=ours,
                    unit="% change",
                    paper="lower",
                    setting=Setting.THEIRS,
                    claim=BATCH.name,
                    verdict=judge_direction(ours, -1.0),
                )
            )
    return Finding(rows=rows)


FIGURE_18 = Experiment(
    name="lmetric/figure-18",
    title="Which indicators are multiplied (figures 18 and 19)",
    text="The same conversations; the four products of two cache and two load indicators, as compositions.",
    runs=[
        Run(f"{rate}/{name}", colocated(policy, rps), rate == "half", cost_s=7.0)
        for rate, rps in RATES.items()
        for name, policy in INDICATORS.items()
    ],
    analyse=_indicators,
    figures=FIGURES,
)
