"""UniBoost beside other orders on a mix with 70 % reasoning (table 2), on eight engines and on one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bench.reproduce.form import Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.uniboost.mixes import RATE_RPS, SCHEDULERS, TABLE_2_FIGURES, mixed
from bench.reproduce.verdicts import judge_change

LOADS = (0.5, 0.8, 1.1)
"""Of eight engines; a run takes two minutes and more of processor time."""
ONE_ENGINE_LOADS = (0.5, 0.65, 0.8)
REQUESTS = 10_000
"""As the paper samples (4); at load 0.5 these arrive in 1,670 s, at 1.1 in 760 s."""
PAPER_TABLE_2 = {
    "e2e_mean_s": ("mean TTLT", {"uniboost": 19.1, "distboost": 14.0, "sarathi": 12.3, "sjf": 11.1}),
    "e2e_p95_s": ("P95 TTLT", {"uniboost": -1.1, "distboost": -6.0, "sarathi": 13.2, "sjf": 12.5}),
    "e2e_p99_s": ("P99 TTLT", {"uniboost": -35.1, "distboost": -37.1, "sarathi": 7.6, "sjf": -11.2}),
    "ttft_mean_s": ("mean TTFT", {"uniboost": -52.1, "distboost": 22.8, "sarathi": 49.9, "sjf": 74.6}),
    "ttft_p95_s": ("P95 TTFT", {"uniboost": -97.4, "distboost": 35.0, "sarathi": 40.5, "sjf": 70.5}),
    "ttft_p99_s": ("P99 TTFT", {"uniboost": -34.0, "distboost": 3.4, "sarathi": 8.1, "sjf": 9.7}),
    "tbt_mean_s": ("mean TBT", {"uniboost": 25.3, "distboost": 14.1, "sarathi": 6.8, "sjf": 5.2}),
    "tbt_p95_s": ("P95 TBT", {"uniboost": 8.1, "distboost": 10.2, "sarathi": 8.4, "sjf": 7.1}),
    "tbt_p99_s": ("P99 TBT", {"uniboost": -33.8, "distboost": -18.3, "sarathi": 7.9, "sjf": 6.3}),
    "throughput_tok_s": ("throughput", {"uniboost": 1.2, "distboost": 1.1, "sarathi": -10.9, "sjf": -7.9}),
}
"""Changes against TRAIL+ (srpt with perfect lengths) in percent of its value, with our sign: below is less."""

TAIL = Claim(
    name="uniboost/tail",
    short="P99 TTLT against SRPT with perfect lengths",
    number="-35.1 %",
    where="abstract, 4.1, table 2",
    says="on 70 % reasoning requests P99 TTLT is 35.1 % below that of SRPT with perfect lengths",
)
FIRST = Claim(
    name="uniboost/first-token",
    short="mean, P95, P99 TTFT, likewise",
    number="-52, -97, -34 %",
    where="abstract, 4.1, table 2",
    says="mean, P95 and P99 TTFT are 52.1, 97.4 and 34.0 % below those of SRPT with perfect lengths",
)
BETWEEN = Claim(
    name="uniboost/between-tokens",
    short="P99 and mean TBT, likewise",
    number="-33.8, +25.3 %",
    where="4.1, table 2",
    says="P99 TBT is 33.8 % below that of SRPT with perfect lengths, the mean 25.3 % above",
)
COST = Claim(
    name="uniboost/mean",
    short="mean TTLT, likewise",
    number="+19.1 %",
    where="table 2",
    says="mean E2E is 19.1 % above that of SRPT with perfect lengths",
)


def _mix_runs(endpoints: int, loads: tuple[float, ...], *, reduced: bool) -> list[Run]:
    return [
        Run(
            f"{load:g}/{name}",
            mixed(
                scheduler,
                lengths=lengths,
                shape=f"{endpoints}C@a100-llama3-8b",
                rate_rps=load * RATE_RPS["mix-2"] * endpoints / 8,
                requests=REQUESTS * endpoints // 8,
            ),
            reduced=reduced and load == 0.8 and name in ("srpt", "uniboost"),
            cost_s=9.0 * endpoints,
        )
        for load in loads
        for name, (scheduler, lengths) in SCHEDULERS.items()
        if name in IN_TABLE_2 or (load == 0.8 and endpoints == 1)
    ]


IN_TABLE_2 = ("srpt", "sjf", "sarathi", "distboost", "uniboost")
JUDGED = {
    "e2e_p99_s": TAIL,
    "e2e_mean_s": COST,
    "ttft_mean_s": FIRST,
    "ttft_p95_s": FIRST,
    "ttft_p99_s": FIRST,
    "tbt_mean_s": BETWEEN,
    "tbt_p99_s": BETWEEN,
}


def _mixes(loads: tuple[float, ...], results: Results) -> Finding:
    rows = []
    for load in loads:
        for figure, (title, papers) in PAPER_TABLE_2.items():
            for name, paper in papers.items():
                change = results.change(f"{load:g}/{name}", f"{load:g}/srpt", figure)
                claim = JUDGED.get(figure) if name == "uniboost" else None
                rows.append(
                    Row(
                        what=f"{title}, load {load:g}, {name} against srpt (oracle)",
                        ours=change,
                        unit="% change",
                        paper=f"{paper:+.1f} %",
                        setting=Setting.THEIRS,
                        claim=None if claim is None else claim.name,
                        verdict=None if claim is None else judge_change(change, paper),
                    )
                )
    charts = [
        Whiskers(
            f"{title}, mix-2 at load 0.8",
            "s",
            [
                Whisker(name, results.mean(f"0.8/{name}", figure), style=colour(number))
                for number, name in enumerate(IN_TABLE_2)
            ],
        )
        for figure, title in (("e2e_p99_s", "P99 TTLT"), ("e2e_mean_s", "mean TTLT"), ("ttft_p99_s", "P99 TTFT"))
    ]
    return Finding(rows=rows, plots=[Plot(name="tails", caption="orders inside of engines", charts=charts)])


def _one_engine(results: Results) -> Finding:
    found = _mixes(ONE_ENGINE_LOADS, results)
    others = [
        Row(
            what=f"{title}, load 0.8, uniboost against {other}",
            ours=results.change("0.8/uniboost", f"0.8/{other}", figure),
            unit="% change",
            setting=Setting.BEYOND,
        )
        for other in ("srpt-noisy", "las", "fcfs", "uniboost-low")
        for figure, title in (("e2e_p99_s", "P99 TTLT"), ("ttft_p99_s", "P99 TTFT"))
    ]
    return replace(found, rows=[*found.rows, *others])


TABLE_2 = Experiment(
    name="uniboost/table-2",
    title="Orders on a mix with 70 % reasoning (table 2)",
    text="Eight colocated A100 with an 8B model, 10,000 requests, round-robin, chunks of 1,024 tokens, KV swapped over "
    "PCIe where an order preempts. The paper says 'high load'; load 1 is the rate at which KV fills.",
    runs=_mix_runs(8, LOADS, reduced=False),
    analyse=partial(_mixes, LOADS),
    figures=TABLE_2_FIGURES,
)
ONE_ENGINE = Experiment(
    name="uniboost/table-2-one-engine",
    title="The same on one engine (table 2)",
    text="One of the eight with its share, 1,250 requests, by more seeds: orders work inside of an engine. Engines of "
    "the eight see a little less of bursts, as round-robin deals requests out.",
    runs=_mix_runs(1, ONE_ENGINE_LOADS, reduced=True),
    analyse=_one_engine,
    figures=TABLE_2_FIGURES,
    seeds=tuple(range(6)),
)
