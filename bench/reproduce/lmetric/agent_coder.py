"""LMetric's Agent (Qwen) and Coder workloads: figures 12, 22 and 23."""

from __future__ import annotations

from collections.abc import Iterator

from ballast_sim.simulation.inputs.source import WorkloadSource
from bench.reproduce.form import Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.lmetric.policies import FIGURES, FRESH, POLICIES, STRONG, change_row, colocated
from bench.reproduce.lmetric.workloads import Agent, Coder
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.verdicts import judge_change, judge_direction

OTHERS = Claim(
    name="lmetric/agent-coder",
    short="Agent, Coder: mean TTFT and TPOT against all others",
    number="lower",
    where="6, figures 22, 23, 25",
    says="Agent (Qwen) and Coder: lower TTFT and TPOT than vLLM, the production scheduler, Dynamo and llm-d (plots, no "
    "number)",
)
RANGE = Claim(
    name="lmetric/filter-range",
    short="Coder: P50 TTFT and TPOT, filter range 16 for 4",
    number="-44, -15 %",
    where="4.5, figure 12",
    says="a filter's range needs tuning: from 4 to 16 P50 TTFT falls by 44 % and TPOT by 15 % for Coder; 16 is better "
    "for API (Agent), too",
)

AGENT_RPS = 90.0
"""Half of 180: of 4,000 requests, 170 a second leave the queue of least-requests as it is, and 190 do not."""
CODER_RPS = 12.0
"""Half of 24, where all KV is full by arithmetic (80 requests an endpoint); 3,000 requests are too few to show it."""
WORKLOADS: dict[str, WorkloadSource] = {
    "Agent": Agent(rate_rps=AGENT_RPS, limit=4000),
    "Coder": Coder(rate_rps=CODER_RPS, limit=2800),
}
RATES = {"Agent": AGENT_RPS, "Coder": CODER_RPS}
COSTS_S = {"Agent": 4.5, "Coder": 10.5}
COMPARED = ("vllm-jsq", "linear-kv 0.55", "linear-kv 0.7", "dynamo-cost 0.5", "predicted-ttft")
NARROW, WIDE = "range-filter-kv 4", "range-filter-kv 16"
RUN = ("lmetric", *COMPARED, NARROW, WIDE, *STRONG)
MEANS = (("ttft_mean_s", "mean TTFT"), ("tpot_mean_s", "mean TPOT"))
MEDIANS = (("ttft_p50_s", "P50 TTFT", -44.0), ("tpot_p50_s", "P50 TPOT", -15.0))


def _against_others(results: Results, workload: str) -> Iterator[Row]:
    for against in (*COMPARED, *STRONG):
        for figure, title in MEANS:
            ours = results.change(f"{workload}/lmetric", f"{workload}/{against}", figure)
            yield Row(
                what=f"{title}, {workload}, against {against}",
                ours=ours,
                unit="% change",
                paper="lower",
                setting=Setting.REALISTIC if against in STRONG else Setting.THEIRS,
                claim=OTHERS.name,
                verdict=judge_direction(ours, -1.0),
            )


def _ranges(results: Results, workload: str) -> Iterator[Row]:
    for figure, title, paper in MEDIANS:
        ours = results.change(f"{workload}/{WIDE}", f"{workload}/{NARROW}", figure)
        known = workload == "Coder"
        yield Row(
            what=f"{title}, {workload}, filter range 16 instead of 4",
            ours=ours,
            unit="% change",
            paper=f"{paper:+.1f} %" if known else "lower",
            setting=Setting.THEIRS,
            claim=RANGE.name,
            verdict=judge_change(ours, paper) if known else judge_direction(ours, -1.0),
        )


def _beyond(results: Results, workload: str) -> Iterator[Row]:
    pairs = [("lmetric", each, "tpot_p99_s", "P99 TPOT") for each in ("predicted-ttft", *STRONG)]
    pairs += [("lmetric", WIDE, figure, title) for figure, title in MEANS]
    pairs += [("linear-kv 0.7", "linear-kv 0.55", figure, title) for figure, title in MEANS]
    if workload == "Agent":
        pairs += [(FRESH, "vllm-jsq", *each) for each in MEANS] + [("lmetric", FRESH, *each) for each in MEANS]
    for run, against, figure, title in pairs:
        yield change_row(
            results,
            f"{workload}/{run}",
            f"{workload}/{against}",
            figure,
            f"{title}, {workload}, {run} against {against}",
            paper=None,
            claim=None,
            setting=Setting.BEYOND,
        )
    for name in ("lmetric", "vllm-jsq", "predicted-ttft"):
        hits = results.mean(f"{workload}/{name}", "kv_hit_ratio", 100)
        yield Row(what=f"KV hits, {workload}, {name}", ours=hits, unit="%", setting=Setting.BEYOND)


def _chart(results: Results, workload: str, figure: str, title: str) -> Whiskers:
    bars = [
        Whisker(name, results.mean(f"{workload}/{name}", figure, 1e3), style=colour(index))
        for index, name in enumerate(RUN)
    ]
    return Whiskers(f"{title}, {workload}", "ms", bars, from_zero=True)


def _analyse(results: Results) -> Finding:
    parts = (_against_others, _ranges, _beyond)
    charts = [_chart(results, workload, *each) for workload in WORKLOADS for each in MEANS]
    return Finding(
        rows=[row for part in parts for workload in WORKLOADS for row in part(results, workload)],
        plots=[Plot(name="latency", caption="Mean TTFT and TPOT", charts=charts)],
        text=_text(results),
    )


def _text(results: Results) -> str:
    fresh = results.change(f"Agent/{FRESH}", "Agent/vllm-jsq", "ttft_mean_s")
    blind = results.change("Agent/lmetric", "Agent/vllm-jsq", "ttft_mean_s")
    if fresh is None or blind is None:
        return ""
    return (
        f"LMetric's mean TTFT on Agent is {blind.value:+.0f} % against vLLM's balancer as it is. Scraped every 10 ms "
        f"instead of 200 ms, that balancer alone changes by {fresh.value:+.0f} %: so much of the distance is the age "
        "of its counts."
    )


AGENT_CODER = Experiment(
    name="lmetric/agent-coder",
    reduced_seeds=(),
    title="Agent and Coder on 16 colocated endpoints (figures 12, 22, 23)",
    text=(
        "Generators in place of the two traces, which are public but not at hand, and of which the paper prints no "
        "moments: they have those that others counted of the published files (`bench/reproduce/lmetric/workloads.py` "
        "has both and names the guesses). *Agent*: calls of 900 + 90 tokens on average, each on "
        "its own; half of the input are the prompts of 300 applications, popular by 1/rank. *Coder*: sessions of 1.6 "
        "turns on average, most of one, some of over ten; 5,700 + 810 tokens, inputs of up to 14,500; an unbounded "
        "cache would hit two thirds of the input, most of it in what 30 applications begin with. Pauses between turns "
        f"shrink as the rate grows, as where a trace's stamps are scaled. Rates: half of the highest, {AGENT_RPS:g} "
        f"and {CODER_RPS:g} requests/s. The paper's Agent runs are on Qwen2-7B, its Coder runs on Qwen3-30B; all of "
        "ours are on the model above. Its Coder trace is taken to be the one that was published since. The weight of "
        "the Dynamo-like policy is 0.5, here and at other rates, while the paper tunes it for each workload: with 0.7 "
        "it comes within 2 % of LMetric on conversations (figure 21)."
    ),
    runs=[
        Run(
            "Agent/" + FRESH,
            colocated(POLICIES["vllm-jsq"], AGENT_RPS, WORKLOADS["Agent"], scrape_interval_s=0.01),
            cost_s=COSTS_S["Agent"],
        ),
        *(
            Run(
                f"{workload}/{name}",
                colocated(POLICIES[name], RATES[workload], source),
                cost_s=COSTS_S[workload],
            )
            for workload, source in WORKLOADS.items()
            for name in RUN
        ),
    ],
    analyse=_analyse,
    figures=FIGURES,
)
