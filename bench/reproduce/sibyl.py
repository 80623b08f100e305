"""SIBYL: place decodes by the load projected to the hand-off.

Rates are chosen by load, as the paper gives none: load 1 is where all decode endpoints at the peak of Eq. 15, 1,177
tokens/s each, generate just what arrives.
"""

from __future__ import annotations

from collections.abc import Mapping

from ballast_core.model import Binding
from ballast_core.policies.registry import build_placement
from ballast_core.policies.suite import Suite
from ballast_sim.simulation.gateways import FleetSettings
from ballast_sim.simulation.policy_choice import PolicyChoice
from bench.reproduce.form import (
    STANDARD_FIGURES,
    Claim,
    Experiment,
    Finding,
    Paper,
    Plot,
    Row,
    Run,
    Setting,
    judge_change,
    judge_level,
)
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.tasks import Simulated, simulated

PEAK_TOKENS_PER_S = 1177.0
MEAN_OUTPUT = {"sharegpt-reasoning": 5659.0, "zeta": 4500.0}
DATA = {"sharegpt-reasoning": "ShareGPT", "zeta": "Zeta"}
REQUESTS_PER_ENDPOINT = 45
"""Some 480 s at the headline load; a request lives 160 s."""
FIGURES = (*STANDARD_FIGURES, "optimal_assignment_ratio")

BASELINES = {
    "round-robin": "round-robin",
    "ils": "ILS, tokens",
    "least-requests-running": "ILS, requests",
    "least-requests": "least-requests",
    "least-tokens": "least-tokens",
    "sibyl": "SIBYL",
}
HEADLINE_LOAD = 0.9
OTHER_LOADS = (0.5, 0.7)

PAPER_TAIL = {
    ("sharegpt-reasoning", 64): {"round-robin": -24.5, "ils": -47.7},
    ("zeta", 64): {"round-robin": -14.4, "ils": -78.0},
    ("sharegpt-reasoning", 128): {"round-robin": -44.1, "ils": -53.9},
    ("zeta", 128): {"ils": -71.5},
    ("sharegpt-reasoning", 256): {"round-robin": -31.6, "ils": -62.5},
    ("zeta", 256): {"ils": -82.9},
}
"""Changes of P99 TPOT in percent by data set and decode endpoints, SIBYL against the baseline (5.4, I.3)."""

PAPER_OPTIMAL = {
    ("sharegpt-reasoning", 64): {"round-robin": 79.5, "ils": 71.6, "sibyl": 94.2},
    ("zeta", 64): {"round-robin": 52.2, "ils": 22.6, "sibyl": 64.5},
}
"""Percent (table 1)."""

TAIL = Claim(
    name="sibyl/tail-at-64",
    where="5.4, figure 9",
    says="simulated, 64 decode endpoints: P99 TPOT 24.5 % below round-robin and 47.7 % below ILS on ShareGPT, 14.4 % "
    "and 78.0 % on Zeta",
)
OPTIMAL = Claim(
    name="sibyl/optimal-assignment",
    where="5.4, table 1",
    says="assigns to the least loaded endpoint at hand-off in 94.2 % (ShareGPT) and 64.5 % (Zeta) of cases, "
    "round-robin in 79.5 and 52.2 %, ILS in 71.6 and 22.6 %",
)
VARIANTS_CLAIM = Claim(
    name="sibyl/variants",
    where="5.3, figure 8",
    says="P99 TPOT grows to 1.53 times without survival probabilities and to 1.99 times without type 1; counting "
    "requests, pending ones included, gives 1.83 times the P99.9 TPOT",
)

VARIANTS = {
    "prob-at-1": {"prob_at_one": True},
    "without-type-1": {"without_type_one": True},
    "without-type-2": {"without_type_two": True},
    "without-type-3": {"without_type_three": True},
    "request-level": {"request_level": True},
}


def rate_rps(workload: str, endpoints: int, load: float) -> float:
    """Requests a second of a load."""
    return load * endpoints * PEAK_TOKENS_PER_S / MEAN_OUTPUT[workload]


def paper_run(
    workload: str,
    endpoints: int,
    policy: str | PolicyChoice,
    *,
    load: float = HEADLINE_LOAD,
    physics: str = "sibyl-held",
) -> Simulated:
    """Appendix I: prefill is a delay, decode endpoints share Eq. 15's throughput, early assignment."""
    return simulated(
        f"1P@h20-qwen3-32b,{endpoints}D@h20-qwen3-32b",
        policy,
        workload=workload,
        rate_rps=rate_rps(workload, endpoints, load),
        limit=REQUESTS_PER_ENDPOINT * endpoints,
        binding=Binding.EARLY,
        fleet=FleetSettings(known_limits=False, physics=physics),
    )


def variant(name: str) -> PolicyChoice:
    """SIBYL with a switch of appendix J."""
    prefill = build_placement("least-uncached-tokens")
    return PolicyChoice(name, Suite(prefill=prefill, decode=build_placement("sibyl", VARIANTS[name])))


# --- figure 9 and table 1 ---------------------------------------------------------------------------------------------


def _tail_runs() -> list[Run]:
    runs = []
    for workload, data in DATA.items():
        for physics in ("held", "printed"):
            for load in (HEADLINE_LOAD, *OTHER_LOADS):
                for policy in BASELINES:
                    task = paper_run(workload, 64, policy, load=load, physics=f"sibyl-{physics}")
                    reduced = physics == "held" and load == HEADLINE_LOAD
                    runs.append(Run(f"{data}/{physics}/{load:g}/{policy}", task, reduced))
    return runs


def _tail(results: Results) -> Finding:
    rows, whiskers = [], []
    for workload, data in DATA.items():
        for physics in ("held", "printed"):
            for load in (HEADLINE_LOAD, *OTHER_LOADS):
                place = f"{data}/{physics}/{load:g}"
                for against, paper in (
                    ("round-robin", "round-robin"),
                    ("ils", "ils"),
                    ("least-requests-running", "ils"),
                ):
                    value = PAPER_TAIL[workload, 64][paper]
                    ours = results.change(f"{place}/sibyl", f"{place}/{against}", "tpot_p99_s")
                    label = f"{data}, Eq. 15 {physics}, load {load:g}, against {BASELINES[against]}"
                    rows.append(
                        Row(
                            what=f"P99 TPOT, {label}",
                            ours=ours,
                            unit="% change",
                            paper=f"{value:+.1f} %",
                            setting=Setting.THEIRS,
                            claim=TAIL.name,
                            verdict=judge_change(ours, value),
                        )
                    )
                rows += [
                    Row(
                        what=f"P99 TPOT, {data}, Eq. 15 {physics}, load {load:g}, against {BASELINES[against]}",
                        ours=results.change(f"{place}/sibyl", f"{place}/{against}", "tpot_p99_s"),
                        unit="% change",
                        setting=Setting.BEYOND,
                    )
                    for against in ("least-requests", "least-tokens")
                ]
        place = f"{data}/held/{HEADLINE_LOAD:g}"
        for number, (policy, label) in enumerate(BASELINES.items()):
            ours = results.mean(f"{place}/{policy}", "tpot_p99_s", 1e3)
            whiskers.append(Whisker(f"{data}: {label}", ours, style=colour(number)))
    chart = Whiskers("P99 TPOT, 64 decode endpoints, Eq. 15 held, load 0.9", "ms", whiskers, log=True)
    return Finding(rows=rows, plots=[Plot(name="tail", caption="P99 TPOT on SIBYL's own physics", charts=[chart])])


def _optimal(results: Results) -> Finding:
    rows, whiskers = [], []
    for workload, data in DATA.items():
        place = f"{data}/held/{HEADLINE_LOAD:g}"
        for policy, value in PAPER_OPTIMAL[workload, 64].items():
            ours = results.mean(f"{place}/{policy}", "optimal_assignment_ratio", 100)
            label = BASELINES[policy]
            rows.append(
                Row(
                    what=f"{data}, {label}",
                    ours=ours,
                    unit="%",
                    paper=f"{value:.1f} %",
                    setting=Setting.THEIRS,
                    claim=OPTIMAL.name,
                    verdict=judge_level(ours, value),
                )
            )
            whiskers.append(Whisker(f"{data}: {label}", ours, value))
    chart = Whiskers("Assigned endpoint is the least loaded at hand-off, 64 endpoints", "%", whiskers)
    return Finding(rows=rows, plots=[Plot(name="ratio", caption="optimal assignment", charts=[chart])])


FIGURE_9 = Experiment(
    name="sibyl/figure-9",
    title="P99 TPOT at 64 decode endpoints (figure 9)",
    text="The paper's simulator (appendix I): prefill a delay, decode by Eq. 15, early assignment, lengths of ShareGPT "
    "and Zeta with reasoning, 45 requests for each endpoint. Both readings of ILS, Eq. 15 as printed and held.",
    runs=_tail_runs(),
    analyse=_tail,
    figures=FIGURES,
)
TABLE_1 = Experiment(
    name="sibyl/table-1",
    title="Optimal assignments (table 1)",
    text="The same runs: the share of hand-offs at which no decode endpoint holds fewer KV tokens than that assigned.",
    runs=[run for run in _tail_runs() if f"held/{HEADLINE_LOAD:g}" in run.name],
    analyse=_optimal,
    figures=FIGURES,
)

# --- figure 8 ---------------------------------------------------------------------------------------------------------

PAPER_VARIANTS = {
    ("prob-at-1", "tpot_p99_s"): 1.53,
    ("prob-at-1", "tpot_p999_s"): 1.45,
    ("without-type-1", "tpot_p99_s"): 1.99,
    ("request-level", "tpot_p999_s"): 1.83,
}


def _variants(results: Results) -> Finding:
    rows, whiskers = [], []
    for name in VARIANTS:
        for figure, title in (("tpot_p99_s", "P99 TPOT"), ("tpot_p999_s", "P99.9 TPOT")):
            ours = results.ratio(name, "sibyl", figure)
            paper = PAPER_VARIANTS.get((name, figure))
            change = results.change(name, "sibyl", figure)
            rows.append(
                Row(
                    what=f"{title}, {name} over SIBYL",
                    ours=ours,
                    unit="x",
                    paper="" if paper is None else f"{paper:.2f} x",
                    setting=Setting.THEIRS,
                    claim=None if paper is None else VARIANTS_CLAIM.name,
                    verdict=None if paper is None else judge_change(change, 100 * (paper - 1)),
                )
            )
            whiskers.append(Whisker(f"{name}, {title}", ours, paper))
    chart = Whiskers("TPOT over that of SIBYL", "times SIBYL", whiskers, log=True, guide=1.0)
    return Finding(rows=rows, plots=[Plot(name="variants", caption="SIBYL's variants", charts=[chart])])


FIGURE_8 = Experiment(
    name="sibyl/figure-8",
    title="Variants (figure 8, appendix J)",
    text="ShareGPT at 64 decode endpoints as above; the paper does not say on which set-up figure 8 was measured.",
    runs=[
        Run("sibyl", paper_run("sharegpt-reasoning", 64, "sibyl")),
        *(Run(name, paper_run("sharegpt-reasoning", 64, variant(name))) for name in VARIANTS),
    ],
    analyse=_variants,
)


def _verdict(results: Mapping[str, Results]) -> str:
    return ""


PAPER = Paper(
    name="sibyl",
    title="SIBYL: decodes placed by projected load",
    set_up="",
    claims=(TAIL, OPTIMAL, VARIANTS_CLAIM),
    experiments=(FIGURE_9, TABLE_1, FIGURE_8),
    verdict=_verdict,
)
