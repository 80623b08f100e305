"""LMetric where prefill and decode are apart, which the paper does not run."""

from __future__ import annotations

from bench.reproduce.form import Experiment, Finding, Run, Setting
from bench.reproduce.lmetric.end_to_end import CHATBOT
from bench.reproduce.lmetric.policies import FIGURES, HARDWARE, change_row
from bench.reproduce.results import Results
from bench.reproduce.tasks import simulated

APART = "12P4D@h20-llama3-8b"
APART_RPS = {"half": 45.0, "nine tenths": 80.0}
APART_POLICIES = (
    "lmetric/least-requests",
    "lmetric/lmetric",
    "least-uncached-tokens/least-requests",
    "predicted-ttft/least-requests",
    "least-requests/least-requests",
    "least-uncached-tokens/ballast",
)


def _apart(results: Results) -> Finding:
    rows = []
    for rate in APART_RPS:
        for against in APART_POLICIES[2:]:
            strong = against != "least-requests/least-requests"
            for figure, title, paper in (("ttft_mean_s", "mean TTFT", -92.0), ("ttft_p99_s", "P99 TTFT", None)):
                rows.append(
                    change_row(
                        results,
                        f"{rate}/lmetric/least-requests",
                        f"{rate}/{against}",
                        figure,
                        f"{title}, {rate}: lmetric/least-requests against {against}",
                        paper=paper if strong else None,
                        claim=CHATBOT if strong and paper is not None else None,
                        setting=Setting.REALISTIC if strong and paper is not None else Setting.BEYOND,
                    )
                )
        rows.append(
            change_row(
                results,
                f"{rate}/lmetric/lmetric",
                f"{rate}/lmetric/least-requests",
                "tpot_p99_s",
                f"P99 TPOT, {rate}: lmetric/lmetric against lmetric/least-requests",
                paper=None,
                claim=None,
                setting=Setting.BEYOND,
            )
        )
    return Finding(rows=rows)


DISAGGREGATED = Experiment(
    name="lmetric/disaggregated",
    reduced_seeds=(),
    title="Prefill and decode apart",
    text=(
        "The paper leaves disaggregated serving out. Here the prefill stage multiplies with the prefill queue: the "
        "same "
        "conversations on 12P4D, at two rates."
    ),
    runs=[
        Run(
            f"{rate}/{policy}",
            simulated(APART, policy, workload="multi-turn", rate_rps=rps, limit=5000, hardware=HARDWARE),
            rate == "half" and policy != "lmetric/lmetric",
            cost_s=8.0,
        )
        for rate, rps in APART_RPS.items()
        for policy in APART_POLICIES
    ],
    analyse=_apart,
    figures=FIGURES,
)
