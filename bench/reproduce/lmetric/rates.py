"""LMetric's Agent and Coder workloads from a quarter to nine tenths of the highest rate (figure 25)."""

from __future__ import annotations

from bench.reproduce.form import Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.lmetric.agent_coder import AGENT_RPS, CODER_RPS, MEANS, OTHERS
from bench.reproduce.lmetric.policies import FIGURES, POLICIES, STRONG, colocated
from bench.reproduce.lmetric.workloads import Agent, Coder
from bench.reproduce.plots import lines
from bench.reproduce.results import Results
from bench.reproduce.tasks import Simulated
from bench.reproduce.verdicts import judge_direction

HIGHEST_RPS = {"Agent": 2 * AGENT_RPS, "Coder": 2 * CODER_RPS}
SHARES = {"Agent": (0.25, 0.5, 0.75, 0.9), "Coder": (0.25, 0.5, 0.75)}
"""Of the highest rate. At 0.9 a request of Coder lives for 130 to 300 s: no run of some minutes is long enough."""
LASTS_S = {"Agent": 70.0, "Coder": 330.0}
"""Of arrivals: some three P99 lifetimes of a request at the highest of these rates, more at the others. Under vLLM's
own balancer requests live longer."""
COST_S = {"Agent": 0.0005, "Coder": 0.0014}
"""Of a request."""
BASELINES = ("vllm-jsq", "linear-kv 0.55", "dynamo-cost 0.5", "predicted-ttft")
RUN = ("lmetric", *BASELINES, *STRONG)


def _name(workload: str, share: float, policy: str) -> str:
    return f"{workload}/{share:g}/{policy}"


def _at(workload: str, share: float, policy: str) -> Simulated:
    rate_rps = share * HIGHEST_RPS[workload]
    limit = round(rate_rps * LASTS_S[workload])
    source = (Agent if workload == "Agent" else Coder)(rate_rps=rate_rps, limit=limit)
    return colocated(POLICIES[policy], rate_rps, source)


def _points(results: Results, workload: str, policy: str, figure: str) -> list[tuple[float, float]]:
    """Means in milliseconds by share of the highest rate, of those that are known."""
    return [
        (share, mean.value)
        for share in SHARES[workload]
        if (mean := results.mean(_name(workload, share, policy), figure, 1e3)) is not None
    ]


def _rates(results: Results) -> Finding:
    rows = []
    for workload in HIGHEST_RPS:
        for share in SHARES[workload]:
            for against in (*BASELINES, *STRONG):
                for figure, title in MEANS:
                    ours = results.change(_name(workload, share, "lmetric"), _name(workload, share, against), figure)
                    rows.append(
                        Row(
                            what=f"{title}, {workload} at {share:g} of the highest rate, against {against}",
                            ours=ours,
                            unit="% change",
                            paper="lower",
                            setting=Setting.REALISTIC if against in STRONG else Setting.THEIRS,
                            claim=OTHERS.name,
                            verdict=judge_direction(ours, -1.0),
                        )
                    )
    charts = [
        lines(
            f"{title}, {workload}",
            "share of the highest rate",
            "ms",
            [(policy, points) for policy in RUN if (points := _points(results, workload, policy, figure))],
            log_y=figure == "ttft_mean_s",
        )
        for workload in HIGHEST_RPS
        for figure, title in MEANS
    ]
    return Finding(
        rows=rows,
        plots=[Plot(name="sweep", caption="Mean TTFT and TPOT by rate", charts=charts)],
        text=_text(results),
    )


def _text(results: Results) -> str:
    """Whether the gaps widen."""
    said = []
    for workload in HIGHEST_RPS:
        for figure, title in MEANS:
            gaps = []
            for share in (SHARES[workload][0], SHARES[workload][-1]):
                pairs = [(_name(workload, share, each), _name(workload, share, "lmetric")) for each in BASELINES]
                gap = results.mean_ratio(pairs, figure)
                if gap is None:
                    return ""
                gaps.append(f"{gap.value:.2f}")
            said.append(f"{title} on {workload} {' and '.join(gaps)} times")
    return (
        "The paper says that gaps widen with the rate. Its four baselines on average, against LMetric, at the lowest "
        f"and at the highest of these rates: {'; '.join(said)}."
    )


SWEEP = Experiment(
    name="lmetric/figure-25",
    reduced_seeds=(),
    title="Agent and Coder at other rates (figure 25)",
    text="The generators and the fleet of figures 22 and 23, at a quarter, a half and three quarters (Agent: and nine "
    f"tenths) of the highest rate ({HIGHEST_RPS['Agent']:g} requests/s of Agent, {HIGHEST_RPS['Coder']:g} of Coder), "
    f"for {LASTS_S['Agent']:g} and {LASTS_S['Coder']:g} s. The paper has curves without numbers and says that LMetric "
    "is below all others at all rates on both.",
    runs=[
        Run(
            _name(workload, share, policy),
            _at(workload, share, policy),
            cost_s=COST_S[workload] * share * HIGHEST_RPS[workload] * LASTS_S[workload],
        )
        for workload in HIGHEST_RPS
        for share in SHARES[workload]
        for policy in RUN
    ],
    analyse=_rates,
    figures=FIGURES,
)
