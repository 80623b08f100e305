"""LMetric on conversations beside its rivals, at half and nine tenths of the highest rate (figure 21)."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Plot, Run, Setting
from bench.reproduce.lmetric.policies import (
    BASELINES,
    FIGURES,
    FRESH,
    POLICIES,
    STRONG,
    WEIGHTS,
    change_row,
    colocated,
)
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results

MAXIMUM_RPS = 139.0
"""Multi-turn on `FLEET`: `ballast simulate --workload multi-turn --limit 3000 --endpoints 16C@h20-llama3-8b --load "
"1`."""
RATES = {"half": 0.5 * MAXIMUM_RPS, "nine tenths": 0.9 * MAXIMUM_RPS}
REDUCED = {"lmetric", "vllm-jsq", "linear-kv 0.4", "linear-kv 0.7", "range-filter-kv 8", "dynamo-cost 0.5"} | {
    "predicted-ttft",
    "least-requests",
    "ballast",
}

CHATBOT = Claim(
    name="lmetric/chatbot",
    short="ChatBot: mean TTFT and TPOT against vLLM",
    number="-92, -24 %",
    where="6, figure 21",
    says="ChatBot: mean TTFT 92 % and mean TPOT 24 % below vLLM; P99 TPOT 13 % below llm-d, with a similar TTFT",
)
UNTUNED = Claim(
    name="lmetric/no-tuning",
    short="mean TTFT and TPOT against linear scheduler",
    number="-52, -20 %",
    where="abstract, 4.4, 6",
    says="without a parameter it beats the production scheduler (a linear combination), tuned for the workload: mean "
    "TTFT 52 % and mean TPOT 20 % below",
)


def tuned_linear(results: Results, rate: str) -> str:
    """The linear combination whose weight is tuned for the workload, as theirs is: that with the least mean TTFT."""
    names = [f"linear-kv {weight:g}" for weight in WEIGHTS]
    known = [
        (mean.value, name) for name in names if (mean := results.mean(f"{rate}/{name}", "ttft_mean_s")) is not None
    ]
    return min(known)[1] if known else names[0]


def _end_to_end(results: Results) -> Finding:
    rows, whiskers_ttft, whiskers_tpot = [], [], []
    for rate in RATES:
        at = "" if rate == "half" else f", {rate} of the maximum"
        mine, tuned = f"{rate}/lmetric", tuned_linear(results, rate)
        for against, figure, title, paper in (
            ("vllm-jsq", "ttft_mean_s", "mean TTFT", -92.0),
            ("vllm-jsq", "tpot_mean_s", "mean TPOT", -24.0),
            ("predicted-ttft", "tpot_p99_s", "P99 TPOT", -13.0),
        ):
            what = f"{title} against {against}{at}"
            rows.append(
                change_row(
                    results, mine, f"{rate}/{against}", figure, what, paper=paper, claim=CHATBOT, setting=Setting.THEIRS
                )
            )
        rows.append(
            change_row(
                results,
                mine,
                f"{rate}/predicted-ttft",
                "ttft_mean_s",
                f"mean TTFT against predicted-ttft{at}",
                paper=None,
                claim=None,
                setting=Setting.THEIRS,
            )
        )
        for name in BASELINES:
            if name.startswith(("linear-kv", "range-filter", "dynamo")):
                for figure, title, paper in (("ttft_mean_s", "mean TTFT", -52.0), ("tpot_mean_s", "mean TPOT", -20.0)):
                    rows.append(
                        change_row(
                            results,
                            mine,
                            f"{rate}/{name}",
                            figure,
                            f"{title} against {name}{at}",
                            paper=paper if name == tuned else None,
                            claim=UNTUNED if name == tuned else None,
                            setting=Setting.THEIRS,
                        )
                    )
        for name in STRONG:
            for figure, title, paper in (("ttft_mean_s", "mean TTFT", -92.0), ("tpot_mean_s", "mean TPOT", -24.0)):
                rows.append(
                    change_row(
                        results,
                        mine,
                        f"{rate}/{name}",
                        figure,
                        f"{title} against {name}{at}",
                        paper=paper,
                        claim=CHATBOT,
                        setting=Setting.REALISTIC,
                    )
                )
    for figure, title in (("ttft_mean_s", "mean TTFT"), ("tpot_mean_s", "mean TPOT")):
        for run, against in ((f"half/{FRESH}", "half/vllm-jsq"), ("half/lmetric", f"half/{FRESH}")):
            what = f"{title}, {run.removeprefix('half/')} against {against.removeprefix('half/')}"
            rows.append(change_row(results, run, against, figure, what, paper=None, claim=None, setting=Setting.BEYOND))
    for index, name in enumerate(POLICIES):
        ttft, tpot = (results.mean(f"half/{name}", figure, 1e3) for figure in ("ttft_mean_s", "tpot_mean_s"))
        whiskers_ttft.append(Whisker(name, ttft, style=colour(index)))
        whiskers_tpot.append(Whisker(name, tpot, style=colour(index)))
    charts = [
        Whiskers("Mean TTFT, half of the maximum rate", "ms", whiskers_ttft, log=True),
        Whiskers("Mean TPOT, half of the maximum rate", "ms", whiskers_tpot, from_zero=False),
    ]
    return Finding(rows=rows, plots=[Plot(name="latency", caption="TTFT and TPOT", charts=charts)])


FIGURE_21 = Experiment(
    name="lmetric/figure-21",
    title="Conversations on 16 colocated endpoints (figures 11, 12, 21, 25)",
    text=(
        "Multi-turn conversations with shared history in place of the ChatBot trace; half of the highest rate that "
        "least-requests sustains, and nine tenths of it. Every parameter that the paper tunes is swept. Their "
        "production scheduler is the linear combination with the weight of least mean TTFT at that rate, as theirs is "
        "tuned for the workload (6); other weights only inform."
    ),
    runs=[
        Run(f"half/{FRESH}", colocated(POLICIES["vllm-jsq"], RATES["half"], scrape_interval_s=0.01), cost_s=7.0),
        *(
            Run(f"{rate}/{name}", colocated(policy, rps), rate == "half" and name in REDUCED, cost_s=7.0)
            for rate, rps in RATES.items()
            for name, policy in POLICIES.items()
        ),
    ],
    analyse=_end_to_end,
    figures=FIGURES,
)
