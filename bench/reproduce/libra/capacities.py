"""Libra's serving capacity and goodput on four workloads (figures 8 and 9)."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.libra.set_up import FIGURES, MOST_GOODPUT, SYSTEMS, capacity_run
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.verdicts import judge_change

WORKLOADS = {
    "libra-chat": ("BurstGPT", 15.0),
    "libra-code": ("Azure Code", 4.0),
    "libra-summary": ("arXiv", 3.0),
    "libra-reasoning": ("Mini Reasoning", 3.0),
}
"""The paper's name, and where the search for the capacity begins (requests a second)."""
CHUNKS = (256, 512, 1024, 2048)
REDUCED_CHUNKS = (512, 2048)

CAPACITY = Claim(
    name="libra/capacity",
    short="mean capacity against disaggregation, colocation",
    number="1.37x, 2.37x",
    where="6.3, figure 9",
    says="serving capacity under 100 ms P99 TBT is on average 2.37 times that of colocation and 1.37 times that of "
    "disaggregation (14B, four workloads)",
)
GOODPUT = Claim(
    name="libra/goodput",
    short="most goodput against disaggregation, colocation",
    number="1.61x, 1.91x",
    where="6.2, figure 8",
    says="goodput is up to 1.91 times that of colocation and 1.61 times that of disaggregation",
)


def best_chunk(results: Results, setting: str, figure: str) -> str:
    """The run with the best chunk there; the first one where nothing is known."""
    names = [f"{setting}/colocated-{chunk}" for chunk in CHUNKS]
    known = [(measured.value, name) for name in names if (measured := results.mean(name, figure)) is not None]
    return max(known)[1] if known else names[1]


def _capacity_runs() -> list[Run]:
    others = ("disaggregated", "libra", "libra-profile", "libra-no-memory", "libra-prompt-cuts", "colocated-slo")
    reduced = ("disaggregated", "libra", "colocated-slo")
    return [
        *(
            capacity_run(
                f"{workload}/colocated-{size}",
                SYSTEMS[f"colocated-{size}"],
                workload,
                start,
                reduced=size in REDUCED_CHUNKS,
            )
            for workload, (_, start) in WORKLOADS.items()
            for size in CHUNKS
        ),
        *(
            capacity_run(f"{workload}/{name}", SYSTEMS[name], workload, start, reduced=name in reduced)
            for workload, (_, start) in WORKLOADS.items()
            for name in others
        ),
        *(
            capacity_run(f"{workload}/libra-at-cut", SYSTEMS["libra-at-cut"], workload, start, reduced=False)
            for workload, (_, start) in WORKLOADS.items()
        ),
    ]


def _capacities(results: Results) -> Finding:
    rows = [_average(results, against, paper) for against, paper in (("disaggregated", 37.0), (TUNED, 137.0))]
    whiskers = []
    for figure, title, papers in (
        ("capacity_rps", "capacity", None),
        ("goodput_most_tok_s", "most goodput", {"disaggregated": 61.0, TUNED: 91.0}),
    ):
        for against, label in AGAINST.items():
            known = []
            for workload, (data, _) in WORKLOADS.items():
                ours = results.change(f"{workload}/libra", _named(results, workload, against, figure), figure)
                known.append(ours)
                rows.append(
                    Row(
                        what=f"{title}, {data}, Libra against {label}",
                        ours=ours,
                        unit="% change",
                        setting=Setting.THEIRS,
                    )
                )
            if papers is not None:
                most = max((each for each in known if each is not None), key=lambda each: each.value, default=None)
                rows.append(
                    Row(
                        what=f"{title}, where it gains most, Libra against {label}",
                        ours=most,
                        unit="% change",
                        paper=f"{papers[against]:+.0f} % (at most)",
                        setting=Setting.THEIRS,
                        claim=GOODPUT.name,
                        verdict=judge_change(most, papers[against]),
                    )
                )
    for workload, (data, _) in WORKLOADS.items():
        for figure, title in (("capacity_rps", "capacity"), ("goodput_most_tok_s", "most goodput")):
            for name, other, label in (
                ("libra", "colocated-2048", "Libra against colocation with vLLM's 2,048"),
                ("libra", "colocated-slo", "Libra against colocation with Libra's own local scheduler"),
                ("libra", "libra-profile", "virtual batches from recent ones, with KV memory, against the profile's"),
                ("libra", "libra-no-memory", "virtual batches from recent ones, KV memory against none"),
                ("libra-profile", "libra-prompt-cuts", "the profile's batches, cuts anywhere against the prompt only"),
            ):
                rows.append(
                    Row(
                        what=f"{title}, {data}, {label}",
                        ours=results.change(f"{workload}/{name}", f"{workload}/{other}", figure),
                        unit="% change",
                        setting=Setting.BEYOND,
                    )
                )
        rows.append(
            Row(
                what=f"P99 TTFT at its capacity, {data}, Libra over colocation at its best chunk",
                ours=results.ratio(f"{workload}/libra", best_chunk(results, workload, "capacity_rps"), "ttft_p99_s"),
                unit="x",
                setting=Setting.BEYOND,
            )
        )
        for number, name in enumerate(("colocated-512", "colocated-2048", "colocated-slo", "disaggregated", "libra")):
            whiskers.append(
                Whisker(f"{data}: {name}", results.mean(f"{workload}/{name}", "capacity_rps"), style=colour(number))
            )
    chart = Whiskers("Highest rate with P99 TBT within 100 ms", "requests/s", whiskers, log=True)
    return Finding(
        rows=rows,
        plots=[Plot(name="capacity", caption="serving capacity on two A100, Qwen2.5-14B", charts=[chart])],
        text=_why_colocation_loses(results),
    )


TUNED = "tuned"
AGAINST = {"disaggregated": "disaggregation", TUNED: "colocation at its best chunk"}


def _named(results: Results, workload: str, against: str, figure: str) -> str:
    """The run of a workload that is meant."""
    return best_chunk(results, workload, figure) if against == TUNED else f"{workload}/{against}"


def _average(results: Results, against: str, paper: float) -> Row:
    """Capacity as the paper judges it: on average over its four workloads."""
    pairs = [(f"{each}/libra", _named(results, each, against, "capacity_rps")) for each in WORKLOADS]
    ours = results.mean_change(pairs, "capacity_rps")
    return Row(
        what=f"capacity, mean of four workloads, Libra against {AGAINST[against]}",
        ours=ours,
        unit="% change",
        paper=f"{paper:+.0f} % (on average)",
        setting=Setting.THEIRS,
        claim=CAPACITY.name,
        verdict=judge_change(ours, paper),
    )


def _why_colocation_loses(results: Results) -> str:
    """Against which colocation the gain is one."""
    gains = {
        other: [
            gain.value
            for workload in WORKLOADS
            if (
                gain := results.change(
                    f"{workload}/libra",
                    best_chunk(results, workload, "capacity_rps") if other == "tuned" else f"{workload}/{other}",
                    "capacity_rps",
                )
            )
            is not None
        ]
        for other in ("colocated-2048", "tuned", "colocated-slo")
    }
    if not all(gains.values()):
        return ""
    ranges = {other: f"{min(values):+.0f} to {max(values):+.0f} %" for other, values in gains.items()}
    return (
        f"Libra's capacity is {ranges['colocated-2048']} against colocation with vLLM's default chunk of 2,048, but "
        f"{ranges['tuned']} against the best of four chunks: most of what colocation loses in the paper is lost to its "
        f"chunk. Against colocation with Libra's own local scheduler it is {ranges['colocated-slo']}: on like "
        "endpoints, placing whole requests on the emptier one balances them, too, and pulls nothing."
    )


FIGURE_9 = Experiment(
    name="libra/figure-9",
    title="Serving capacity and goodput (figures 8 and 9)",
    text="Two A100 with Qwen2.5-14B, Poisson arrivals, our generators for the four data sets, output lengths known to "
    "Libra's predictor. Capacity as Sarathi-Serve defines it: P99 TBT within 100 ms while the queue does not grow. "
    f"Libra's engines aim at 80 ms, so that the 99th percentile lies within 100; KV moves in chunks. {MOST_GOODPUT}",
    runs=_capacity_runs(),
    analyse=_capacities,
    figures=FIGURES,
)
