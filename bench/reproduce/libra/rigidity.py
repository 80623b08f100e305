"""How rigid the systems are that Libra is compared with: by shape (table 1), with unlike parallelism (table 6)."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Row, Setting
from bench.reproduce.libra.runs import unlike
from bench.reproduce.libra.set_up import FIGURES, MIXED, MOST_GOODPUT, SYSTEMS, capacity_run
from bench.reproduce.results import Results, in_percent
from bench.reproduce.verdicts import judge_change, judge_level

RIGIDITY = Claim(
    name="libra/rigidity",
    short="requests/s of both at saturation",
    number="0.83 to 2.86",
    where="2.4, table 1",
    says="at saturation, on two GPUs, colocation (chunks of 2,048) serves 1.49 / 2.83 / 2.86 requests/s with a P99 TBT "
    "of 353 / 337 / 163 ms, disaggregation 0.83 / 2.56 / 1.68 within 75 ms",
)
UNLIKE = Claim(
    name="libra/unlike-tensor-parallelism",
    short="goodput per GPU against unlike parallelism",
    number="1.19x to 2.62x",
    where="6.6, table 6",
    says="goodput per GPU is 18.6 to 74.2 % above that of disaggregation at any tensor parallelism (4P1D 68.8, 1P4D "
    "33.1, 2P1D 73.2, 1P2D 49.8, 1P1D 65.1, Libra 86.8 tokens/s)",
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
        capacity_run(f"{shape}/{name}", SYSTEMS[name], shape, start, tbt=False)
        for shape, (start, *_) in SHAPES.items()
        for name in ("disaggregated", "colocated-2048", "colocated-512", "libra")
    ],
    analyse=_shapes,
    figures=FIGURES,
)

# --- table 6 ----------------------------------------------------------------------------------------------------------

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
                verdict=judge_change(None if ours is None else in_percent(ours), 100 * (value - 1)),
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
    "14B on two and four GPUs is taken to gain what 32B gains in the public tables. "
    f"{MOST_GOODPUT}",
    runs=[
        *(
            capacity_run(name, unlike(prefill, decode), MIXED, 2.0)
            for name, (prefill, decode, _) in TENSOR_PARALLEL.items()
        ),
        capacity_run("libra", SYSTEMS["libra"], MIXED, 2.0),
        capacity_run("colocated-512", SYSTEMS["colocated-512"], MIXED, 2.0),
    ],
    analyse=_unlike,
    figures=FIGURES,
)
