"""How far SIBYL's survival curve is off (figure 7)."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Row, Run, Setting
from bench.reproduce.results import Results
from bench.reproduce.sibyl.runs import calibration
from bench.reproduce.sibyl.set_up import DATA
from bench.reproduce.tasks import Called
from bench.reproduce.verdicts import judge_limit

CALIBRATION = Claim(
    name="sibyl/calibration",
    short="error of the survival curve",
    number="below 14, 9 %",
    where="5.2, figure 7",
    says="the survival curve is off by less than 14 % on ShareGPT, mostly below 5 %, and by less than 9 % on Zeta",
)

PAPER_CALIBRATION = {"sharegpt-reasoning": 14.0, "zeta": 9.0}


def _calibration(results: Results) -> Finding:
    rows = []
    for workload, limit in PAPER_CALIBRATION.items():
        largest = results.mean(workload, "ema_largest")
        rows += [
            Row(
                what=f"{DATA[workload]}, largest error of the survival curve",
                ours=largest,
                unit="%",
                paper=f"below {limit:g} %",
                setting=Setting.THEIRS,
                claim=CALIBRATION.name,
                verdict=judge_limit(largest, limit),
            ),
            Row(
                what=f"{DATA[workload]}, share of the surface below 5 %",
                ours=results.mean(workload, "ema_below_5"),
                unit="%",
                paper="the vast majority" if limit > 10 else "",
                setting=Setting.THEIRS,
            ),
            Row(
                what=f"{DATA[workload]}, largest error of the curve that knows of requests still running",
                ours=results.mean(workload, "censoring_largest"),
                unit="%",
                setting=Setting.BEYOND,
            ),
        ]
    text = (
        "The curve is as good as the paper says. What SIBYL does with it is the problem, not the curve; and lengths "
        "drawn from one distribution, as here, are the easy case: `docs/calibration.md` has traces that change."
    )
    return Finding(rows=rows, text=text)


FIGURE_7 = Experiment(
    name="sibyl/figure-7",
    title="The survival curve (figure 7)",
    text=(
        "Learned online from the first half of 6,000 requests (Eq. 4), scored on the other half over ages and "
        "look-aheads."
    ),
    runs=[
        Run(workload, Called(calibration, {"workload": workload, "requests": 6000}), cost_s=0.5)
        for workload in PAPER_CALIBRATION
    ],
    analyse=_calibration,
    figures=("ema_mean", "ema_largest", "ema_below_5", "censoring_mean", "censoring_largest", "censoring_below_5"),
)
