"""SIBYL without one of its parts each (figure 8, appendix J)."""

from __future__ import annotations

from ballast_sim.simulation.policies.choice import PolicyChoice
from bench.reproduce.form import Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import Whisker, Whiskers
from bench.reproduce.results import Results
from bench.reproduce.sibyl.policies import sibyl
from bench.reproduce.sibyl.set_up import paper_run
from bench.reproduce.verdicts import judge_change

VARIANTS_CLAIM = Claim(
    name="sibyl/variants",
    short="P99 TPOT without probabilities, type 1; P99.9 by requests",
    number="1.53x, 1.99x; 1.83x",
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
PAPER_VARIANTS = {
    ("prob-at-1", "tpot_p99_s"): 1.53,
    ("prob-at-1", "tpot_p999_s"): 1.45,
    ("without-type-1", "tpot_p99_s"): 1.99,
    ("request-level", "tpot_p999_s"): 1.83,
}


def variant(name: str) -> PolicyChoice:
    """SIBYL with a switch of appendix J."""
    return sibyl(name, **VARIANTS[name])


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
    reduced_seeds=(),
    title="Variants (figure 8, appendix J)",
    text=("ShareGPT at 64 decode endpoints as above; the paper does not say on which set-up figure 8 was measured."),
    runs=[
        Run("sibyl", paper_run("sharegpt-reasoning", 64, "sibyl")),
        *(Run(name, paper_run("sharegpt-reasoning", 64, variant(name))) for name in VARIANTS),
    ],
    analyse=_variants,
)
