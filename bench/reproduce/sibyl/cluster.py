"""SIBYL's cluster of eight GPUs (figure 6), on vLLM's scheduler with the paper's step time."""

from __future__ import annotations

from collections.abc import Mapping

from ballast_core.model import Binding
from ballast_sim.workloads import ArrivalProcess
from bench.reproduce.form import Claim, Experiment, Finding, Row, Run, Setting
from bench.reproduce.results import Results
from bench.reproduce.sibyl.policies import BASELINES, THREE, own
from bench.reproduce.sibyl.set_up import CLUSTERED, HEADLINE_LOAD, OTHER_LOADS
from bench.reproduce.tasks import simulated
from bench.reproduce.verdicts import ABOUT_1, judge_change, judge_level

REAL_CLUSTER = Claim(
    name="sibyl/real-cluster",
    short="P99 TPOT on eight GPUs",
    number="-24.5, -32.7 %",
    where="5.1, figure 6",
    says="8 H20: P99 TPOT 24.5 / 36.3 / 24.2 % below round-robin and 32.7 / 34.3 / 41.9 % below ILS on random / "
    "ShareGPT / Zeta",
)
MEANS = Claim(
    name="sibyl/real-cluster-means",
    short="mean TPOT and throughput on eight GPUs",
    number="-6.7, -12.0 %; 1.03x, 1.21x",
    where="5.1, figure 6",
    says="8 H20: mean TPOT 6.7 / 6 / 18.9 % below round-robin and 12.0 / 6 / 20.7 % below ILS on random / ShareGPT / "
    "Zeta, throughput 1.03 / 1.0 / 1.09 and 1.21 / 1.0 / 1.22 times theirs",
)

CLUSTER = {"random": ("sibyl-random", 2), "ShareGPT": ("sharegpt-reasoning", 4), "Zeta": ("zeta", 4)}
"""Workload and prefill endpoints; four decode endpoints each."""
PAPER_CLUSTER = {
    "random": {"round-robin": -24.5, "ils": -32.7},
    "ShareGPT": {"round-robin": -36.3, "ils": -34.3},
    "Zeta": {"round-robin": -24.2, "ils": -41.9},
}
PAPER_MEANS = {
    "random": {"round-robin": (-6.7, 3.0), "ils": (-12.0, 21.0)},
    "ShareGPT": {"round-robin": (-6.0, 0.0), "ils": (-6.0, 0.0)},
    "Zeta": {"round-robin": (-18.9, 9.0), "ils": (-20.7, 22.0)},
}
"""Changes of mean TPOT and of throughput in percent."""
CLUSTER_POLICIES = (*BASELINES, "ballast")
CLUSTER_SETTINGS: Mapping[str, tuple[float, ArrivalProcess | None]] = {
    f"{HEADLINE_LOAD:g}": (HEADLINE_LOAD, None),
    **{f"{load:g}": (load, None) for load in OTHER_LOADS},
    "gamma": (HEADLINE_LOAD, CLUSTERED),
}
"""Load and arrivals."""
DECODE_RPS = {"sibyl-random": 0.286, "sharegpt-reasoning": 0.183, "zeta": 0.234}
"""Of one `h20-qwen3-32b-sibyl`, 90 % of its KV in use (`ballast_sim.capacity`): what load 1 is on limited KV."""


def _cluster_run(data: str, setting: str, policy: str) -> str:
    """The name of a run of figure 6."""
    return f"{data}/{policy}" if setting == f"{HEADLINE_LOAD:g}" else f"{data}/{setting}/{policy}"


def _cluster_means(results: Results, data: str, setting: str) -> list[Row]:
    """Mean TPOT and throughput, and P99 TPOT where the headline's rows do not have it."""
    rows = []
    for against, (mean, throughput) in PAPER_MEANS[data].items():
        pair = _cluster_run(data, setting, "sibyl"), _cluster_run(data, setting, against)
        at = f"{data}, load {setting}, against {BASELINES[against]}".replace("load gamma", f"gamma, {HEADLINE_LOAD:g}")
        figures = [("tpot_mean_s", "mean TPOT", mean, MEANS), ("throughput_tok_s", "throughput", throughput, MEANS)]
        if setting != f"{HEADLINE_LOAD:g}":
            figures.append(("tpot_p99_s", "P99 TPOT", PAPER_CLUSTER[data][against], REAL_CLUSTER))
        for figure, title, paper, claim in figures:
            ours = results.change(*pair, figure)
            ratio = None if ours is None else results.ratio(*pair, figure)
            rows.append(
                Row(
                    what=f"{title}, {at}",
                    ours=ours if paper else ratio,
                    unit="% change" if paper else "x",
                    paper=f"{paper:+.1f} %" if paper else "1.0 x",
                    setting=Setting.THEIRS,
                    claim=claim.name,
                    verdict=judge_change(ours, paper) if paper else judge_level(ratio, 1.0, within=ABOUT_1),
                )
            )
    return rows


def _cluster(results: Results) -> Finding:
    rows = []
    for data, changes in PAPER_CLUSTER.items():
        for against, paper in (("round-robin", "round-robin"), ("ils", "ils"), ("least-requests-running", "ils")):
            ours = results.change(f"{data}/sibyl", f"{data}/{against}", "tpot_p99_s")
            value = changes[paper]
            rows.append(
                Row(
                    what=f"P99 TPOT, {data}, against {BASELINES[against]}",
                    ours=ours,
                    unit="% change",
                    paper=f"{value:+.1f} %",
                    setting=Setting.THEIRS,
                    claim=REAL_CLUSTER.name,
                    verdict=judge_change(ours, value),
                )
            )
        for against in ("least-requests", "ballast"):
            ours = results.change(f"{data}/sibyl", f"{data}/{against}", "tpot_p99_s")
            rows.append(
                Row(
                    what=f"P99 TPOT, {data}, against {against}",
                    ours=ours,
                    unit="% change",
                    setting=Setting.REALISTIC,
                    claim=REAL_CLUSTER.name,
                    verdict=judge_change(ours, changes["round-robin"]),
                )
            )
    rows += [
        row for data in PAPER_CLUSTER for setting in CLUSTER_SETTINGS for row in _cluster_means(results, data, setting)
    ]
    return Finding(rows=rows)


FIGURE_6 = Experiment(
    name="sibyl/figure-6",
    title="The eight-GPU cluster (figure 6)",
    text=(
        "2P4D for random lengths, 4P4D for ShareGPT and Zeta, Qwen3-32B on H20, early assignment, on vLLM's scheduler "
        "with the step time that the paper's own Eq. 15 implies (`h20-qwen3-32b-sibyl`), KV limited. Load 0.9 of "
        "what four "
        "decode endpoints carry with 90 % of their KV in use, 600 requests; for the paper's three policies also loads "
        "to 1.2 and clustered arrivals (gamma, as its command sets). Open arrivals: throughput differs where some "
        "policy falls behind."
    ),
    runs=[
        Run(
            _cluster_run(data, setting, policy),
            simulated(
                f"{prefills}P4D@h20-qwen3-32b-sibyl",
                own(policy),
                workload=workload,
                arrivals=arrivals,
                rate_rps=load * 4 * DECODE_RPS[workload],
                limit=600,
                binding=Binding.EARLY,
            ),
            reduced=setting == f"{HEADLINE_LOAD:g}",
            cost_s=2.0,
        )
        for setting, (load, arrivals) in CLUSTER_SETTINGS.items()
        for data, (workload, prefills) in CLUSTER.items()
        for policy in (CLUSTER_POLICIES if setting == f"{HEADLINE_LOAD:g}" else THREE)
    ],
    analyse=_cluster,
)
