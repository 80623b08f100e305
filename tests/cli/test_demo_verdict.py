"""The demo's last line: what the run showed, or why it shows nothing."""

import re

import pytest

from ballast_cli.demo.cases import CASES
from ballast_cli.demo.plan import plan_fleet
from ballast_cli.demo.report import verdict
from ballast_cli.demo.session import resources_of
from ballast_sim.load import MOST_LATE_S, LoadReport
from ballast_sim.load.report import RequestResult, build_report
from ballast_sim.simulation.inputs.objective import Objective

OBJECTIVE = Objective(ttft_s=2.0)


def report(*, good: int, bad: int = 0, late_s: float = 0.0, failed: int = 0) -> LoadReport:
    """Of requests with a TTFT of 1 s and of 3 s."""
    ttfts = [1.0] * good + [3.0] * bad
    results = [
        RequestResult(
            request_id=str(index),
            arrival_s=0.0,
            input_tokens=1,
            asked_tokens=2,
            received_tokens=2,
            first_token_s=ttft_s,
            last_token_s=ttft_s,
            reason="broken" if index < failed else None,
        )
        for index, ttft_s in enumerate(ttfts)
    ]
    return build_report(results, objective=OBJECTIVE, time_scale=1.0, wall_s=1.0, late_s=[late_s] * len(ttfts))


def test_the_best_policy_is_named_with_what_the_others_kept() -> None:
    words, style = verdict({"plain": report(good=71, bad=29), "ours": report(good=99, bad=1)}, OBJECTIVE)
    assert words == "ours: 99.0% of requests within the SLO instead of 71.0% (plain)."
    assert "green" in style


def test_a_tie_is_called_one() -> None:
    words, style = verdict({"plain": report(good=100), "ours": report(good=100)}, OBJECTIVE)
    assert words.startswith("No difference: 100.0% of requests")
    assert "green" not in style


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (report(good=100, late_s=2 * MOST_LATE_S), "this machine was too slow. Requests left up to 200 ms late"),
        (report(good=100, failed=1), "not every request was answered"),
    ],
)
def test_a_run_that_shows_nothing_says_so(last: LoadReport, why: str) -> None:
    words, _ = verdict({"plain": report(good=50, bad=50), "ours": last}, OBJECTIVE)
    assert re.match(f"No verdict: {why}", words)


def test_the_cases_are_the_fleets_that_they_speak_of() -> None:
    shapes = {name: plan_fleet(resources_of(case.manifests)).shape for name, case in CASES.items()}
    assert shapes == {"busy": "6P4D", "quiet": "2P4D"}
