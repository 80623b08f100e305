"""A claim of a paper is judged by what it says: its own baseline, every part of it, and nothing that it leaves open."""

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.reproduce.ares.runs import goodput_name
from bench.reproduce.ares.set_up import MOVES
from bench.reproduce.ares.short_of_memory import GOODPUT, SMALL, SWEPT_MS, TAIL
from bench.reproduce.ares.sizes import SIZES, VARIANCE
from bench.reproduce.form import Claim, Finding, Row
from bench.reproduce.libra.rigidity import TABLE_6, UNLIKE
from bench.reproduce.libra.set_up import MOST_GOODPUT
from bench.reproduce.lmetric.end_to_end import FIGURE_21, UNTUNED
from bench.reproduce.papers import EXPERIMENTS
from bench.reproduce.results import Results
from bench.reproduce.sibyl.assignments import OPTIMAL, TABLE_1
from bench.reproduce.sibyl.cluster import FIGURE_6, MEANS
from bench.reproduce.uniboost.scales import SCALE, TABLE_10
from bench.reproduce.uniboost.starvation import A3, PAPER_WORST_S, STARVATION
from bench.reproduce.verdicts import Verdict, together

DOCS = Path(__file__).parents[2] / "docs"


def results(figures: Mapping[str, Mapping[str, float]], lifetimes: float = 10.0) -> Results:
    """Runs with these figures and three seeds, almost alike."""
    by_seed = {
        run: {seed: {name: value * (1 + 1e-4 * seed) for name, value in known.items()} for seed in range(3)}
        for run, known in figures.items()
    }
    return Results(by_seed, dict.fromkeys(figures, lifetimes))


def about(finding: Finding, claim: Claim) -> list[Row]:
    return [row for row in finding.rows if row.claim == claim.name and row.ours is not None]


def verdict(rows: list[Row]) -> Verdict:
    return together([row.verdict for row in rows if row.verdict is not None])


def test_lmetric_is_judged_against_the_linear_combination_that_is_tuned_as_the_papers_is() -> None:
    """A weight with which the fleet falls behind says nothing of a production scheduler."""
    ttft_s = {
        "lmetric": 0.97,
        "linear-kv 0.4": 1.1,
        "linear-kv 0.55": 1.0,
        "linear-kv 0.7": 1.05,
        "linear-kv 0.9": 90.0,
    }
    runs = {f"half/{name}": {"ttft_mean_s": value, "tpot_mean_s": 0.02} for name, value in ttft_s.items()}
    rows = about(FIGURE_21.analyse(results(runs)), UNTUNED)
    assert [row.what for row in rows] == ["mean TTFT against linear-kv 0.55", "mean TPOT against linear-kv 0.55"]
    assert rows[0].ours is not None
    assert rows[0].ours.value == pytest.approx(-3.0)
    assert [row.verdict for row in rows] == [Verdict.CONTRADICTED, Verdict.INCONCLUSIVE]
    assert verdict(rows) is Verdict.CONTRADICTED


def test_that_predictions_lower_the_variance_further_is_judged_against_moving_without_them() -> None:
    variance = {"vllm": 10.0, "rescheduling": 1.0, "ares-oracle": 1.2, "ares-predictor": 1.2, "ares-survival": 1.2}
    runs = {f"ShareGPT/8/{name}": {"step_variance_ms2": variance[name]} for name in MOVES}
    rows = about(SIZES.analyse(results(runs)), VARIANCE)
    by_prediction = [row for row in rows if row.what.endswith("against without prediction")]
    assert [row.verdict for row in by_prediction] == [Verdict.CONTRADICTED]
    assert verdict(rows) is Verdict.IN_PART


def test_what_prediction_adds_to_moving_on_the_papers_card_is_judged() -> None:
    figures = {"tpot_p99_s": 0.1, **{goodput_name(ms): 1.0 for ms in SWEPT_MS}}
    runs = {f"0.17/ils/{name}": figures for name in ("vllm", "rescheduling")}
    runs["0.17/ils/ares-oracle"] = {
        name: value * (0.8 if name == "tpot_p99_s" else 1.2) for name, value in figures.items()
    }
    finding = SMALL.analyse(results(runs))
    for claim in (TAIL, GOODPUT):
        (added,) = (row for row in about(finding, claim) if "against rescheduling without prediction" in row.what)
        assert added.verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("ratio", "expected"), [(1.01, Verdict.HOLDS), (0.95, Verdict.IN_PART), (0.82, Verdict.CONTRADICTED)]
)
def test_a_throughput_that_the_paper_calls_the_same_is_not_a_tenth_less(ratio: float, expected: Verdict) -> None:
    runs = {f"ShareGPT/{name}": {"throughput_tok_s": 1000.0} for name in ("round-robin", "ils")}
    runs["ShareGPT/sibyl"] = {"throughput_tok_s": 1000.0 * ratio}
    assert [row.verdict for row in about(FIGURE_6.analyse(results(runs)), MEANS)] == [expected, expected]


def test_the_share_of_optimal_assignments_beside_sibyls_on_the_page_is_sibyls() -> None:
    """The page shows a claim's first row beside the paper's number; the order of policies is told in words."""
    shares = {"round-robin": 0.02, "ils": 0.82, "sibyl": 0.68}
    runs = {
        f"{data}/held/0.9/{name}": {"optimal_assignment_ratio": share}
        for data in ("ShareGPT", "Zeta")
        for name, share in shares.items()
    }
    finding = TABLE_1.analyse(results(runs))
    assert OPTIMAL.number.startswith(about(finding, OPTIMAL)[0].paper)
    assert about(finding, OPTIMAL)[0].what == "ShareGPT, SIBYL"
    assert "on ShareGPT SIBYL > round-robin > ILS in the paper, ILS > SIBYL > round-robin here" in finding.text


def test_starvation_is_judged_by_orders_against_each_other_not_by_seconds_of_another_card() -> None:
    figures = {"long_max_s": 250.0, "short_p99_s": 5.0, "long_slope_s": 0.01}
    rows = about(A3.analyse(results(dict.fromkeys(PAPER_WORST_S, figures))), STARVATION)
    assert [row.paper for row in rows] == ["+19.7 %", "0.0003 s"]
    assert verdict(rows) is not Verdict.IN_PART
    assert rows[1].verdict is Verdict.CONTRADICTED


def test_the_price_that_a_claim_names_is_judged_beside_the_gain() -> None:
    """Table 10 has a longer mean TTFT beside the shorter tails."""
    runs = {
        f"32x/{name}": {"e2e_mean_s": 1.0, "e2e_p99_s": tail_s, "ttft_mean_s": tail_s, "ttft_p99_s": tail_s}
        for name, tail_s in (("uniboost", 0.9), ("sarathi", 1.0))
    }
    judged = {row.what.partition(",")[0]: row.verdict for row in about(TABLE_10.analyse(results(runs)), SCALE)}
    assert judged == {
        "P99 TTLT": Verdict.HOLDS,
        "mean TTFT": Verdict.CONTRADICTED,
        "P99 TTFT": Verdict.HOLDS,
    }


def test_a_gain_that_is_larger_than_the_papers_supports_it() -> None:
    """4P1D has five GPUs, 1P1D two: per GPU Libra gains 150 % on the one, and nothing on the other."""
    runs = {name: {"goodput_most_tok_s": 100.0} for name in ("libra", "4P1D", "1P1D")}
    judged = {row.what[-4:]: row.verdict for row in about(TABLE_6.analyse(results(runs)), UNLIKE)}
    assert judged == {"4P1D": Verdict.HOLDS, "1P1D": Verdict.INCONCLUSIVE}


def recorded(table: str, what: str) -> Mapping[str, str]:
    with (DOCS / "reproduction" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        (row,) = (row for row in csv.DictReader(file) if row["what"] == what)
    return row


@pytest.mark.parametrize("data", ["BurstGPT", "arXiv", "Mini Reasoning"])
def test_what_is_said_of_virtual_batches_is_what_is_recorded(data: str) -> None:
    what = f"capacity, {data}, virtual batches from recent ones, with KV memory, against the profile's"
    row = recorded("libra-figure-9", what)
    said = f"{float(row['ours']):+.0f} % ({float(row['low']):+.0f} to {float(row['high']):+.0f})"
    assert said in (DOCS / "limits" / "policies.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("variant", "said"),
    [("ARES, survival curves", "survival curves"), ("rescheduling without prediction", "prediction")],
)
def test_what_is_said_of_goodput_by_prediction_is_what_is_recorded(variant: str, said: str) -> None:
    row = recorded("ares-section-6.4", f"goodput, Alpaca/64/short endpoints, {variant}")
    text = " ".join((DOCS / "choosing.md").read_text(encoding="utf-8").split())
    assert f"{float(row['ours']):+.0f} % with{'out' if said == 'prediction' else ''} {said}" in text


@pytest.mark.parametrize("title", ["mean TTFT", "mean TPOT"])
def test_a_baseline_that_is_not_tuned_as_the_papers_is_said_to_be_so(title: str) -> None:
    tuned = recorded("lmetric-figure-21", f"{title} against dynamo-cost 0.7")
    assert -2 < float(tuned["ours"]) < 0
    assert "with 0.7 it comes within 2 % of LMetric" in (DOCS / "reproduction" / "lmetric.md").read_text(
        encoding="utf-8"
    )


def test_where_goodput_is_that_of_a_search_for_the_capacity_the_text_says_so() -> None:
    shown = {
        name: each.text
        for name, each in EXPERIMENTS.items()
        if any("goodput" in row.what for row in each.analyse(Results()).rows) and "goodput_most_tok_s" in each.figures
    }
    assert set(shown) == {"libra/figure-9", "libra/table-3", "libra/table-6", "libra/table-7"}
    assert [name for name, text in shown.items() if MOST_GOODPUT not in text] == []
