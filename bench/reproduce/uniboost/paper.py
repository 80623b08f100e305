"""UniBoost: tail-aware order inside of engines, without predictions."""

from __future__ import annotations

from collections.abc import Mapping

from bench.reproduce.form import Paper
from bench.reproduce.results import Results, measured
from bench.reproduce.uniboost.beyond import APART, WAITING_ROOM
from bench.reproduce.uniboost.design import FIGURE_7, GLOBAL, KNEE, KNOBS, TABLE_9, TABLES_6_7
from bench.reproduce.uniboost.levels import CHUNKS, FIGURE_6, FIGURE_8, OBJECTIVE, TABLE_8
from bench.reproduce.uniboost.orders import BETWEEN, COST, FIRST, ONE_ENGINE, TABLE_2, TAIL
from bench.reproduce.uniboost.reasoning import FIGURE_6_72B
from bench.reproduce.uniboost.scales import SCALE, TABLE_10
from bench.reproduce.uniboost.starvation import A3, STARVATION


def _verdict(results: Mapping[str, Results]) -> str:
    one, setting = results[ONE_ENGINE.name], ("0.8/uniboost", "0.8/srpt")
    tail, mean, first = (one.change(*setting, figure) for figure in ("e2e_p99_s", "e2e_mean_s", "ttft_mean_s"))
    if tail is None or mean is None or first is None:
        return ""
    return (
        f"**In short.** On one of the eight engines at load 0.8 P99 TTLT is {measured(tail, '% change')} against SRPT "
        f"with perfect lengths (paper -35.1 %), the mean {measured(mean, '% change')} (+19.1 %), mean TTFT "
        f"{measured(first, '% change')} (-52.1 %). The paper's rates are not given. 10,000 requests are too few for a "
        "P99 lifetime: the longest live about as long as requests arrive."
    )


PAPER = Paper(
    name="uniboost",
    title="UniBoost: tail-aware order without predictions",
    set_up="Not given by the paper: rates of table 2, gamma to begin with, its bounds and window, delta's unit. Work "
    "is counted in seconds at the profile's rates, quantised by rounding down, in both phases.",
    claims=(TAIL, COST, FIRST, BETWEEN, GLOBAL, KNEE, KNOBS, STARVATION, CHUNKS, SCALE, OBJECTIVE),
    experiments=(
        TABLE_2,
        ONE_ENGINE,
        FIGURE_6,
        FIGURE_6_72B,
        FIGURE_7,
        FIGURE_8,
        TABLES_6_7,
        TABLE_8,
        TABLE_9,
        TABLE_10,
        A3,
        APART,
        WAITING_ROOM,
    ),
    verdict=_verdict,
)
