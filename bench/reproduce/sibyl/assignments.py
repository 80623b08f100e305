"""How often SIBYL assigns to the endpoint that is the least loaded at hand-off (table 1), also by load."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import Whisker, Whiskers
from bench.reproduce.results import Results
from bench.reproduce.sibyl.policies import BASELINES
from bench.reproduce.sibyl.set_up import DATA, FIGURES, HEADLINE_LOAD, paper_run
from bench.reproduce.sibyl.tails import tail_runs
from bench.reproduce.verdicts import judge_level

PAPER_OPTIMAL = {
    ("sharegpt-reasoning", 64): {"sibyl": 94.2, "round-robin": 79.5, "ils": 71.6},
    ("zeta", 64): {"sibyl": 64.5, "round-robin": 52.2, "ils": 22.6},
}
"""Percent (table 1)."""

OPTIMAL = Claim(
    name="sibyl/optimal-assignment",
    short="hand-offs to the least loaded endpoint",
    number="94.2 %, 64.5 %",
    where="5.4, table 1",
    says="assigns to the least loaded endpoint at hand-off in 94.2 % (ShareGPT) and 64.5 % (Zeta) of cases, "
    "round-robin in 79.5 and 52.2 %, ILS in 71.6 and 22.6 %",
)


def _optimal(results: Results) -> Finding:
    rows, whiskers = [], []
    for workload, data in DATA.items():
        setting = f"{data}/held/{HEADLINE_LOAD:g}"
        for policy, value in PAPER_OPTIMAL[workload, 64].items():
            ours = results.mean(f"{setting}/{policy}", "optimal_assignment_ratio", 100)
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
    return Finding(
        rows=rows,
        plots=[Plot(name="ratio", caption="optimal assignment", charts=[chart])],
        text=_who_assigns_best(results),
    )


def _who_assigns_best(results: Results) -> str:
    """The order of the policies, which verdicts on levels do not see."""
    said = []
    for workload, data in DATA.items():
        papers = PAPER_OPTIMAL[workload, 64]
        setting = f"{data}/held/{HEADLINE_LOAD:g}"
        ours = {each: results.mean(f"{setting}/{each}", "optimal_assignment_ratio", 100) for each in papers}
        known = {each: mean.value for each, mean in ours.items() if mean is not None}
        if len(known) < len(papers):
            return ""
        orders = (sorted(values, key=lambda each: -values[each]) for values in (papers, known))
        theirs, here = (" > ".join(BASELINES[each].partition(",")[0] for each in order) for order in orders)
        said.append(f"on {data} {theirs} in the paper, {here} here")
    return f"Who assigns best: {'; '.join(said)}."


TABLE_1 = Experiment(
    name="sibyl/table-1",
    title="Optimal assignments (table 1)",
    text=(
        "The same runs: the share of hand-offs at which no decode endpoint holds fewer KV tokens than that assigned."
    ),
    runs=[run for run in tail_runs() if f"held/{HEADLINE_LOAD:g}" in run.name],
    analyse=_optimal,
    figures=FIGURES,
)

# --- table 1 by load --------------------------------------------------------------------------------------------------

LOW_LOADS = (0.01, 0.02, 0.03, 0.05)


def _by_load(results: Results) -> Finding:
    rows = []
    for load in LOW_LOADS:
        rows += [
            Row(
                what=f"load {load:g}: optimal assignments by {BASELINES[policy]}",
                ours=results.mean(f"{load:g}/{policy}", "optimal_assignment_ratio", 100),
                unit="%",
                paper=f"{PAPER_OPTIMAL['sharegpt-reasoning', 64][policy]:.1f} %",
                setting=Setting.THEIRS,
            )
            for policy in ("round-robin", "sibyl")
        ]
        rows.append(
            Row(
                what=f"load {load:g}: P99 TPOT, SIBYL against round-robin",
                ours=results.change(f"{load:g}/sibyl", f"{load:g}/round-robin", "tpot_p99_s"),
                unit="% change",
                paper="-24.5 %",
                setting=Setting.BEYOND,
            )
        )
    text = (
        "Round-robin knows no load: of 64 endpoints that all decode something, the one whose turn it is has the least "
        "KV in about one case of 64. It can be right in 79.5 % of cases only where most endpoints are empty, and so "
        "tie. "
        "There no request waits for another, and the tails of both policies are the same. Table 1 and figure 9 can "
        "therefore "
        "not both come from the printed definition at one load; the paper must count as optimal more than the endpoint "
        "with the least load, and does not say what."
    )
    return Finding(rows=rows, text=text)


TABLE_1_LOADS = Experiment(
    name="sibyl/table-1-loads",
    title="At which load round-robin would assign as table 1 says",
    text=("ShareGPT at 64 decode endpoints, Eq. 15 held, 640 requests, scrapes every 5 s."),
    runs=[
        Run(
            f"{load:g}/{policy}",
            paper_run("sharegpt-reasoning", 64, policy, load=load, limit=640, scrape_interval_s=5.0),
            cost_s=2.0,
        )
        for load in LOW_LOADS
        for policy in ("round-robin", "sibyl")
    ],
    analyse=_by_load,
    figures=FIGURES,
)
