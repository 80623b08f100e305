"""SIBYL's tails on its own physics: at 64 decode endpoints (figure 9), and at 128 and 256 (figure 15)."""

from __future__ import annotations

from collections.abc import Mapping

from ballast_sim.workloads import ArrivalProcess
from bench.reproduce.form import Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.sibyl.policies import BASELINES, THREE
from bench.reproduce.sibyl.set_up import CLUSTERED, DATA, FIGURES, HEADLINE_LOAD, OTHER_LOADS, paper_run
from bench.reproduce.verdicts import judge_change

PAPER_TAIL = {
    ("sharegpt-reasoning", 64): {"round-robin": -24.5, "ils": -47.7},
    ("zeta", 64): {"round-robin": -14.4, "ils": -78.0},
    ("sharegpt-reasoning", 128): {"round-robin": -44.1, "ils": -53.9},
    ("zeta", 128): {"ils": -71.5},
    ("sharegpt-reasoning", 256): {"round-robin": -31.6, "ils": -62.5},
    ("zeta", 256): {"ils": -82.9},
}
"""Changes of P99 TPOT in percent by data set and decode endpoints, SIBYL against the baseline (5.4, I.3)."""

TAIL = Claim(
    name="sibyl/tail-at-64",
    short="P99 TPOT against round-robin and ILS, 64 endpoints",
    number="-24.5, -47.7 %",
    where="5.4, figure 9",
    says="simulated, 64 decode endpoints: P99 TPOT 24.5 % below round-robin and 47.7 % below ILS on ShareGPT, 14.4 % "
    "and 78.0 % on Zeta",
)
SCALE = Claim(
    name="sibyl/tail-at-scale",
    short="P99 TPOT, 128 and 256 endpoints",
    number="-44.1, -53.9 %",
    where="I.3, figure 15",
    says="simulated, 128 and 256 decode endpoints: P99 TPOT 44.1 and 31.6 % below round-robin on ShareGPT; 53.9 and "
    "62.5 % (ShareGPT), 71.5 and 82.9 % (Zeta) below ILS",
)

# --- figure 9 ---------------------------------------------------------------------------------------------------------

SETTINGS: Mapping[str, tuple[str, float, ArrivalProcess | None, tuple[str, ...]]] = {
    "held/0.9": ("sibyl-held", HEADLINE_LOAD, None, tuple(BASELINES)),
    f"held/{OTHER_LOADS[-1]:g}": ("sibyl-held", OTHER_LOADS[-1], None, (*THREE, "least-requests-running")),
    "gamma/0.9": ("sibyl-held", HEADLINE_LOAD, CLUSTERED, THREE),
    "printed/0.9": ("sibyl-printed", HEADLINE_LOAD, None, THREE),
}
"""Physics, load, arrivals and policies of figure 9's runs."""


def tail_runs() -> list[Run]:
    """Those of figure 9, and of table 1."""
    return [
        Run(
            f"{data}/{setting}/{policy}",
            paper_run(workload, 64, policy, load=load, physics=physics, arrivals=arrivals),
            reduced=False,
            cost_s=30.0,
        )
        for setting, (physics, load, arrivals, policies) in SETTINGS.items()
        for workload, data in DATA.items()
        for policy in policies
    ]


def _tail(results: Results) -> Finding:
    rows, whiskers = [], []
    for setting, (_, _, _, policies) in SETTINGS.items():
        for workload, data in DATA.items():
            ran = f"{data}/{setting}"
            for against in policies:
                paper = PAPER_TAIL[workload, 64].get("ils" if against == "least-requests-running" else against)
                if against == "sibyl":
                    continue
                ours = results.change(f"{ran}/sibyl", f"{ran}/{against}", "tpot_p99_s")
                rows.append(
                    Row(
                        what=f"P99 TPOT, {data}, {setting}, against {BASELINES[against]}",
                        ours=ours,
                        unit="% change",
                        paper="" if paper is None else f"{paper:+.1f} %",
                        setting=Setting.BEYOND if paper is None else Setting.THEIRS,
                        claim=None if paper is None else TAIL.name,
                        verdict=None if paper is None else judge_change(ours, paper),
                    )
                )
    for data in DATA.values():
        for number, (policy, label) in enumerate(BASELINES.items()):
            ours = results.mean(f"{data}/held/{HEADLINE_LOAD:g}/{policy}", "tpot_p99_s", 1e3)
            whiskers.append(Whisker(f"{data}: {label}", ours, style=colour(number)))
    chart = Whiskers("P99 TPOT, 64 decode endpoints, Eq. 15 held, load 0.9", "ms", whiskers, log=True)
    return Finding(rows=rows, plots=[Plot(name="tail", caption="P99 TPOT on SIBYL's own physics", charts=[chart])])


FIGURE_9 = Experiment(
    name="sibyl/figure-9",
    title="P99 TPOT at 64 decode endpoints (figure 9)",
    text=(
        "The paper's simulator (appendix I): prefill a delay, decode by Eq. 15, early assignment, lengths of ShareGPT "
        "and Zeta with reasoning, 180 requests for each endpoint, SIBYL with its own estimator. Both readings of ILS, "
        "Eq. 15 as printed and held, Poisson and clustered arrivals (gamma), loads 0.9 and 1.2."
    ),
    runs=tail_runs(),
    analyse=_tail,
    figures=FIGURES,
)

# --- figure 15 --------------------------------------------------------------------------------------------------------

SCALE_POLICIES = ("round-robin", "ils", "least-requests", "sibyl")


def _scale(results: Results) -> Finding:
    rows = []
    for endpoints in (128, 256):
        for workload, data in DATA.items():
            setting = f"{data}/{endpoints}"
            for against, value in PAPER_TAIL[workload, endpoints].items():
                ours = results.change(f"{setting}/sibyl", f"{setting}/{against}", "tpot_p99_s")
                rows.append(
                    Row(
                        what=f"P99 TPOT, {data}, {endpoints} endpoints, against {BASELINES[against]}",
                        ours=ours,
                        unit="% change",
                        paper=f"{value:+.1f} %",
                        setting=Setting.THEIRS,
                        claim=SCALE.name,
                        verdict=judge_change(ours, value),
                    )
                )
            rows.append(
                Row(
                    what=f"P99 TPOT, {data}, {endpoints} endpoints, against least-requests",
                    ours=results.change(f"{setting}/sibyl", f"{setting}/least-requests", "tpot_p99_s"),
                    unit="% change",
                    setting=Setting.BEYOND,
                )
            )
    return Finding(rows=rows)


FIGURE_15 = Experiment(
    name="sibyl/figure-15",
    title="128 and 256 decode endpoints (figure 15)",
    text=f"As figure 9, Eq. 15 held, load {HEADLINE_LOAD:g}.",
    runs=[
        Run(
            f"{data}/{endpoints}/{policy}",
            paper_run(workload, endpoints, policy),
            reduced=False,
            cost_s={128: 25.0, 256: 90.0}[endpoints],
        )
        for endpoints in (128, 256)
        for workload, data in DATA.items()
        for policy in SCALE_POLICIES
    ],
    analyse=_scale,
)
