"""A claim of a paper is judged by what it says: its own baseline, every part of it, and nothing that it leaves open."""

from collections.abc import Mapping

import pytest

from bench.reproduce.form import Claim, Finding, Row
from bench.reproduce.lmetric.end_to_end import FIGURE_21, UNTUNED
from bench.reproduce.results import Results
from bench.reproduce.verdicts import Verdict, together


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
