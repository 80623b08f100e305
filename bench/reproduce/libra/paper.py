"""Libra: requests cut at any token over endpoints that do both stages, and steps sized by the time between tokens."""

from __future__ import annotations

from collections.abc import Mapping

from bench.reproduce.form import (
    MANY_SEEDS,
    Claim,
    Experiment,
    Finding,
    Paper,
    Plot,
    Row,
    Run,
    Setting,
)
from bench.reproduce.libra import loads
from bench.reproduce.libra.runs import (
    CHUNKED,
    LOCAL_SLO,
    PAPERS,
    System,
    capacity,
    chunks,
    fixed_rate,
    pinned,
    systems,
    unlike,
)
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.tasks import Called
from bench.reproduce.verdicts import judge_change, judge_level

WORKLOADS = {
    "libra-chat": ("BurstGPT", 15.0),
    "libra-code": ("Azure Code", 4.0),
    "libra-summary": ("arXiv", 3.0),
    "libra-reasoning": ("Mini Reasoning", 3.0),
}
"""The paper's name, and where the search for the capacity begins (requests a second)."""
CHUNKS = (256, 512, 1024, 2048)
REDUCED_CHUNKS = (512, 2048)
SYSTEMS = systems()
MIXED = "libra-code+libra-reasoning"
LASTS_S = {"libra-reasoning": 300.0, "P219/D1467": 300.0, "P1024/D1024": 300.0, MIXED: 240.0}
"""Arrivals of a probe: some times as long as a request runs; else 90 s."""

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
RIGIDITY = Claim(
    name="libra/rigidity",
    short="requests/s of both at saturation",
    number="0.83 to 2.86",
    where="2.4, table 1",
    says="at saturation, on two GPUs, colocation (chunks of 2,048) serves 1.49 / 2.83 / 2.86 requests/s with a P99 TBT "
    "of 353 / 337 / 163 ms, disaggregation 0.83 / 2.56 / 1.68 within 75 ms",
)
ERRORS = Claim(
    name="libra/prediction-errors",
    short="goodput when lengths deviate by 100",
    number="0.971x",
    where="6.5, table 5",
    says="goodput falls by 2.9 % when output lengths deviate by sigma = 100 tokens from the 1,467 predicted",
)
UNLIKE = Claim(
    name="libra/unlike-tensor-parallelism",
    short="goodput per GPU against unlike parallelism",
    number="1.19x to 2.62x",
    where="6.6, table 6",
    says="goodput per GPU is 18.6 to 74.2 % above that of disaggregation at any tensor parallelism (4P1D 68.8, 1P4D "
    "33.1, 2P1D 73.2, 1P2D 49.8, 1P1D 65.1, Libra 86.8 tokens/s)",
)
THREE = Claim(
    name="libra/three-segments",
    short="goodput by a third segment",
    number="+9.0 %",
    where="6.7, table 7",
    says="a third segment for thinking brings goodput from 336 to 366 tokens/s, 9.0 % (the text says 12)",
)
SPLIT = Claim(
    name="libra/best-cut",
    short="best cut beyond the prompt",
    number="+47 %",
    where="4.1, figure 5",
    says="1,024 in and 1,024 out on two A100 (32B): the best cut, 1,358, lies beyond the prompt's end",
)
TRANSFER = Claim(
    name="libra/chunked-transfer",
    short="exposed transfer time, in chunks",
    number="-94 %",
    where="6.5",
    says="KV in chunks leaves 6 % of the transfer time exposed (Mini Reasoning)",
)

FIGURES = (
    "arrivals_s",
    "e2e_p99_s",
    "capacity_rps",
    "goodput_most_tok_s",
    "tbt_p99_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "goodput_tok_s",
    "split_ratio",
)
FIXED_FIGURES = (
    "arrivals_s",
    "e2e_p99_s",
    "tbt_p99_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "goodput_tok_s",
    "late_ratio",
    "kv_exposed_s",
    "throughput_tok_s",
)


def _capacity(
    name: str, system: System, workload: str, start_rps: float, *, reduced: bool = True, tbt: bool = True
) -> Run:
    arguments = {
        "system": system,
        "workload": workload,
        "start_rps": start_rps,
        "tbt": tbt,
        "lasts_s": LASTS_S.get(workload, 90.0),
    }
    return Run(name, Called(capacity, arguments), reduced, cost_s=9.0)


def _tuned(results: Results, setting: str, figure: str) -> str:
    """The run with the best chunk there; the first one where nothing is known."""
    names = [f"{setting}/colocated-{chunk}" for chunk in CHUNKS]
    known = [(measured.value, name) for name in names if (measured := results.mean(name, figure)) is not None]
    return max(known)[1] if known else names[1]


# --- figures 8 and 9 --------------------------------------------------------------------------------------------------


def _capacity_runs() -> list[Run]:
    others = ("disaggregated", "libra", "libra-profile", "libra-no-memory", "libra-prompt-cuts", "colocated-slo")
    reduced = ("disaggregated", "libra", "colocated-slo")
    return [
        *(
            _capacity(
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
            _capacity(f"{workload}/{name}", SYSTEMS[name], workload, start, reduced=name in reduced)
            for workload, (_, start) in WORKLOADS.items()
            for name in others
        ),
        *(
            _capacity(f"{workload}/libra-at-cut", SYSTEMS["libra-at-cut"], workload, start, reduced=False)
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
                ours=results.ratio(f"{workload}/libra", _tuned(results, workload, "capacity_rps"), "ttft_p99_s"),
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
    return _tuned(results, workload, figure) if against == TUNED else f"{workload}/{against}"


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
                    _tuned(results, workload, "capacity_rps") if other == "tuned" else f"{workload}/{other}",
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
    "Libra's engines aim at 80 ms, so that the 99th percentile lies within 100; KV moves in chunks.",
    runs=_capacity_runs(),
    analyse=_capacities,
    figures=FIGURES,
)

# --- table 1 ----------------------------------------------------------------------------------------------------------

SHAPES = {
    "P8192/D32": (1.0, 0.83, 1.49, 353),
    "P2048/D512": (2.5, 2.56, 2.83, 337),
    "P219/D1467": (2.0, 1.68, 2.86, 163),
}
"""Where to begin, disaggregation's and colocation's requests/s, colocation's P99 TBT in ms."""


def _shapes(results: Results) -> Finding:
    rows = []
    for shape, (_, apart, together, tbt_ms) in SHAPES.items():
        for name, label, figure, paper, unit, factor in (
            ("disaggregated", "disaggregation", "capacity_rps", apart, "req/s", 1.0),
            ("colocated-2048", "colocation", "capacity_rps", together, "req/s", 1.0),
            ("colocated-2048", "colocation, P99 TBT", "tbt_p99_s", tbt_ms, "ms", 1e3),
        ):
            ours = results.mean(f"{shape}/{name}", figure, factor)
            rows.append(
                Row(
                    what=f"{shape}, {label}",
                    ours=ours,
                    unit=unit,
                    paper=f"{paper:g} {unit}",
                    setting=Setting.THEIRS,
                    claim=RIGIDITY.name,
                    verdict=judge_level(ours, paper),
                )
            )
        rows += [
            Row(
                what=f"{shape}, {name}, {title}",
                ours=results.mean(f"{shape}/{name}", figure, factor),
                unit=unit,
                setting=Setting.BEYOND,
            )
            for name in ("libra", "colocated-512")
            for figure, title, unit, factor in (
                ("capacity_rps", "saturation", "req/s", 1.0),
                ("tbt_p99_s", "P99 TBT", "ms", 1e3),
            )
        ]
    return Finding(rows=rows)


TABLE_1 = Experiment(
    name="libra/table-1",
    reduced_seeds=(),
    title="Three shapes on two GPUs (table 1)",
    text="Rates at which the queue begins to grow, whatever the time between tokens.",
    runs=[
        _capacity(f"{shape}/{name}", SYSTEMS[name], shape, start, tbt=False)
        for shape, (start, *_) in SHAPES.items()
        for name in ("disaggregated", "colocated-2048", "colocated-512", "libra")
    ],
    analyse=_shapes,
    figures=FIGURES,
)

# --- tables 5, 6, 7, figure 5, chunked transfer -----------------------------------------------------------------------

SIGMAS = {0: 3606.93, 10: 3591.00, 50: 3564.90, 100: 3501.85}


def _errors(results: Results) -> Finding:
    rows = []
    for sigma, goodput in list(SIGMAS.items())[1:]:
        ours, paper = results.ratio(f"sigma-{sigma}", "sigma-0", "goodput_tok_s"), goodput / SIGMAS[0]
        rows.append(
            Row(
                what=f"goodput, sigma {sigma} over 0",
                ours=ours,
                unit="x",
                paper=f"{paper:.3f} x",
                setting=Setting.THEIRS,
                claim=ERRORS.name,
                verdict=judge_level(ours, paper, within=0.03),
            )
        )
    return Finding(rows=rows)


TABLE_5 = Experiment(
    name="libra/table-5",
    title="Wrong predictions (table 5)",
    text="219 tokens in, 1,467 out and a predictor that says so; outputs deviate. 4.5 requests/s: near capacity.",
    runs=[
        Run(
            f"sigma-{sigma}",
            Called(
                fixed_rate,
                {
                    "system": SYSTEMS["libra"],
                    "workload": "P219/D1467",
                    "rate_rps": 4.5,
                    "requests": 1350,
                    "sigma": float(sigma),
                    "told_tokens": 1467.0,
                },
            ),
            cost_s=3.0,
        )
        for sigma in SIGMAS
    ],
    analyse=_errors,
    figures=FIXED_FIGURES,
)

TENSOR_PARALLEL = {
    "4P1D": (4, 1, 68.8),
    "1P4D": (1, 4, 33.1),
    "2P1D": (2, 1, 73.2),
    "1P2D": (1, 2, 49.8),
    "1P1D": (1, 1, 65.1),
}
"""GPUs of the prefill and of the decode endpoint; goodput per GPU."""
LIBRA_PER_GPU = 86.8


def _unlike(results: Results) -> Finding:
    rows = []
    for name, (prefill, decode, paper) in TENSOR_PARALLEL.items():
        ratio = results.ratio("libra", name, "goodput_most_tok_s")
        ours = None if ratio is None else ratio.times((prefill + decode) / 2)
        value = LIBRA_PER_GPU / paper
        rows.append(
            Row(
                what=f"goodput per GPU, Libra over {name}",
                ours=ours,
                unit="x",
                paper=f"{value:.2f} x",
                setting=Setting.THEIRS,
                claim=UNLIKE.name,
                verdict=judge_level(ours, value),
            )
        )
    ratio = results.ratio("libra", "colocated-512", "goodput_most_tok_s")
    rows.append(
        Row(what="goodput per GPU, Libra over colocation, chunks of 512", ours=ratio, unit="x", setting=Setting.BEYOND)
    )
    return Finding(rows=rows)


TABLE_6 = Experiment(
    name="libra/table-6",
    title="Disaggregation with unlike tensor parallelism (table 6)",
    text="Half Azure Code, half Mini Reasoning. 4P1D is a prefill endpoint of four GPUs and a decode endpoint of one. "
    "14B on two and four GPUs is taken to gain what 32B gains in the public tables. Goodput is the most at any rate.",
    runs=[
        *(
            _capacity(name, unlike(prefill, decode), MIXED, 2.0)
            for name, (prefill, decode, _) in TENSOR_PARALLEL.items()
        ),
        _capacity("libra", SYSTEMS["libra"], MIXED, 2.0),
        _capacity("colocated-512", SYSTEMS["colocated-512"], MIXED, 2.0),
    ],
    analyse=_unlike,
    figures=FIGURES,
)


def _three(results: Results) -> Finding:
    ours = results.change("three", "two", "goodput_most_tok_s")
    against = results.change("two", "disaggregated", "goodput_most_tok_s")
    return Finding(
        rows=[
            Row(
                what="goodput, three segments against two",
                ours=ours,
                unit="% change",
                paper="+9.0 %",
                setting=Setting.THEIRS,
                claim=THREE.name,
                verdict=judge_change(ours, 9.0),
            ),
            Row(
                what="goodput, two segments against disaggregation",
                ours=against,
                unit="% change",
                paper="+29.3 %",
                setting=Setting.THEIRS,
                claim=THREE.name,
                verdict=judge_change(against, 29.3),
            ),
        ]
    )


TABLE_7 = Experiment(
    name="libra/table-7",
    title="Prefill, thinking and answer apart (table 7)",
    text="Mini Reasoning on three GPUs (1P2D, 3F); 80 % of the output is thinking, for which 200 ms between tokens do.",
    runs=[
        _capacity(name, system, "libra-reasoning", 4.0, reduced=False)
        for name, system in (
            ("disaggregated", System("1P2D@14b-tp1")),
            ("two", System("3F@14b-tp1", LOCAL_SLO, PAPERS, CHUNKED)),
            ("three", SYSTEMS["libra-3"]),
        )
    ],
    analyse=_three,
    figures=FIGURES,
)

CUTS = {512: None, 1024: 1.7, 1200: None, 1358: 2.5, 1536: None}
"""Positions, and the slower endpoint's requests/s where the paper gives them."""


def _cuts(results: Results) -> Finding:
    gain = results.change("1358", "1024", "capacity_rps")
    rows = [
        Row(
            what="requests/s, cut at 1,358 against 1,024",
            ours=gain,
            unit="% change",
            paper="+47 %",
            setting=Setting.THEIRS,
            claim=SPLIT.name,
            verdict=judge_change(gain, 47.0),
        )
    ]
    rows += [
        Row(
            what=f"cut at {position:,}",
            ours=results.mean(str(position), "capacity_rps"),
            unit="req/s",
            paper="" if paper is None else f"{paper} req/s",
            setting=Setting.THEIRS,
        )
        for position, paper in CUTS.items()
    ]
    whiskers = [
        Whisker(f"{position:,}", results.mean(str(position), "capacity_rps"), paper) for position, paper in CUTS.items()
    ]
    chart = Whiskers("1,024 in, 1,024 out, by position of the cut", "requests/s", whiskers)
    return Finding(rows=rows, plots=[Plot(name="cuts", caption="throughput by cut", charts=[chart])])


FIGURE_5 = Experiment(
    name="libra/figure-5",
    title="Where to cut (figure 5)",
    text="Qwen2.5-32B, two endpoints of one A100 each (32,664 KV tokens by our arithmetic; not in the paper), the "
    "first part always on the first one. The rate at which the queue begins to grow. Ours are a fifth of the paper's: "
    "so much KV holds some sixteen such requests, where its rates need about forty at a time.",
    runs=[_capacity(str(position), pinned(position), "P1024/D1024", 1.0, tbt=False) for position in CUTS],
    analyse=_cuts,
    figures=FIGURES,
    seeds=MANY_SEEDS,
)


def _exposed(results: Results) -> Finding:
    ours = results.change("chunked", "whole", "kv_exposed_s")
    return Finding(
        rows=[
            Row(
                what="transfer time that is exposed, in chunks against whole",
                ours=ours,
                unit="% change",
                paper="-94 %",
                setting=Setting.THEIRS,
                claim=TRANSFER.name,
                verdict=judge_change(ours, -94.0),
            )
        ]
    )


CHUNKED_TRANSFER = Experiment(
    name="libra/chunked-transfer",
    title="KV transfer in chunks (section 6.5)",
    text="Mini Reasoning at 3 requests/s, chunks of 256 tokens, 200 Gbit/s after 5 ms.",
    runs=[
        Run(
            transfer,
            Called(
                fixed_rate,
                {
                    "system": chunks(SYSTEMS["libra"], transfer),
                    "workload": "libra-reasoning",
                    "rate_rps": 3.0,
                    "requests": 900,
                },
            ),
            cost_s=3.0,
        )
        for transfer in ("whole", "chunked")
    ],
    analyse=_exposed,
    figures=FIXED_FIGURES,
)


def _verdict(results: Mapping[str, Results]) -> str:
    served = results[FIGURE_9.name]

    def over(other: str, name: str = "libra") -> list[float]:
        changes = [served.change(f"{setting}/{name}", f"{setting}/{other}", "capacity_rps") for setting in WORKLOADS]
        return [each.value for each in changes if each is not None]

    def over_tuned(figure: str) -> list[float]:
        changes = [served.change(f"{setting}/libra", _tuned(served, setting, figure), figure) for setting in WORKLOADS]
        return [each.value for each in changes if each is not None]

    apart, prompts = over("disaggregated"), over("libra-prompt-cuts", "libra-profile")
    tuned, good = over_tuned("capacity_rps"), over_tuned("goodput_most_tok_s")
    if not (apart and prompts and tuned and good):
        return ""
    return (
        f"**In short.** Cutting serves {min(apart):+.0f} to {max(apart):+.0f} % against prefill and decode apart (the "
        f"paper has +37 % on average), and {min(tuned):+.0f} to {max(tuned):+.0f} % against colocation with the best "
        "of four chunks (the paper has +137 % against its colocation; the effect of the chunk is described below); "
        f"its highest goodput is {min(good):+.0f} to {max(good):+.0f} % against the same. "
        f"Cuts anywhere are {min(prompts):+.0f} to {max(prompts):+.0f} % against cuts within prompts only, which "
        "are all that stock vLLM can stream."
    )


PAPER = Paper(
    name="libra",
    title="Libra: requests cut at any token",
    set_up="Qwen2.5-14B on two A100 80 GB, 100 ms between tokens, Poisson arrivals; profiles scaled from Qwen3's, for "
    "which tables are public. Colocation, disaggregation and Libra run on the same engines and links. Not given and "
    "decided: which endpoint takes the first part (the better one by prediction), the load that names the pair "
    "(predicted completion), the think part's time between tokens (200 ms). What this needs of vLLM: cuts within the "
    "prompt work on stock vLLM; a cut in the output of a client that streams needs a small connector plug-in. "
    "Left out: figure 11, which replays 42 minutes of BurstGPT's arrivals that are not at hand; figures 3 and 6 "
    "(lengths, kernels).",
    claims=(CAPACITY, GOODPUT, RIGIDITY, ERRORS, UNLIKE, THREE, SPLIT, TRANSFER, *loads.CLAIMS),
    experiments=(
        FIGURE_9,
        TABLE_1,
        TABLE_5,
        TABLE_6,
        TABLE_7,
        FIGURE_5,
        CHUNKED_TRANSFER,
        *loads.EXPERIMENTS,
    ),
    verdict=_verdict,
)
