"""LMetric on public traces."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Run, Setting
from bench.reproduce.lmetric.policies import FIGURES, FLEET, HARDWARE, POLICIES, STRONG, change_row
from bench.reproduce.results import Results
from bench.reproduce.tasks import TRACES, simulated

TOOLAGENT = Claim(
    name="lmetric/toolagent",
    short="ToolAgent: mean TTFT and TPOT against llm-d",
    number="+10, -30 %",
    where="6, figure 25",
    says="ToolAgent: mean TTFT 10 % above llm-d (worse), mean TPOT 30 % below",
)

TRACE_RUNS = {
    "Mooncake": ("mooncake_conversation_w1.jsonl.gz", FLEET, 1300, 1.2),
    "agent": ("agent_miniswe.jsonl.gz", "4C@h20-llama3-8b", 402, 3.0),
}
"""File, fleet, requests, rate scale."""
TRACE_POLICIES = (
    "lmetric",
    "vllm-jsq",
    "linear-kv 0.55",
    "linear-kv 0.7",
    "dynamo-cost 0.5",
    "predicted-ttft",
    *STRONG,
)


def _traces(results: Results) -> Finding:
    rows = []
    for trace in TRACE_RUNS:
        for figure, title, paper in (("ttft_mean_s", "mean TTFT", 10.0), ("tpot_mean_s", "mean TPOT", -30.0)):
            rows.append(
                change_row(
                    results,
                    f"{trace}/lmetric",
                    f"{trace}/predicted-ttft",
                    figure,
                    f"{title}, {trace}, against predicted-ttft",
                    paper=paper,
                    claim=TOOLAGENT,
                    setting=Setting.THEIRS,
                )
            )
        for against in TRACE_POLICIES[1:]:
            rows += [
                change_row(
                    results,
                    f"{trace}/lmetric",
                    f"{trace}/{against}",
                    figure,
                    f"{title}, {trace}, against {against}",
                    paper=None,
                    claim=None,
                    setting=Setting.BEYOND,
                )
                for figure, title in (("ttft_p99_s", "P99 TTFT"), ("tpot_p99_s", "P99 TPOT"))
            ]
    return Finding(rows=rows)


TRACED = Experiment(
    name="lmetric/traces",
    title="Public traces with prefix blocks",
    text=(
        "Mooncake's conversation trace on 16 colocated endpoints, and an agent trace on four. ToolAgent itself is "
        "not at "
        "hand; Mooncake's conversations come from the same operator. Every seed reads another part, or moves sessions."
    ),
    runs=[
        Run(
            f"{trace}/{name}",
            simulated(
                fleet,
                POLICIES[name],
                workload=TRACES / file,
                limit=limit,
                rate_scale=scale,
                hardware=HARDWARE,
            ),
            reduced=False,
            needs=TRACES / file,
            cost_s=6.0,
        )
        for trace, (file, fleet, limit, scale) in TRACE_RUNS.items()
        for name in TRACE_POLICIES
    ],
    analyse=_traces,
    figures=FIGURES,
)
