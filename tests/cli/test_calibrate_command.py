"""`ballast calibrate` as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ballast_cli.main import app

FLEET = ["--endpoints", "1P@a100-qwen3-32b,1D@h20-qwen3-32b", "--simulate", "40"]
SMALL = ["--workload", "zeta", "--limit", "400"]


def calibrate(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["calibrate", *arguments, "--json", "-"])
    assert result.exit_code == 0, result.output
    figures: dict[str, Any] = json.loads(result.stdout)
    return figures


@pytest.mark.rotating(3)
def test_the_figures_are_one_object_and_the_same_for_a_seed() -> None:
    figures = calibrate(*SMALL, *FLEET)
    assert (figures["workload"], figures["requests"], figures["seed"]) == ("zeta", 400, 0)
    assert figures["paper"] == "below 9 %"
    assert {(row["estimator"], row["limits"]) for row in figures["lengths"]} == {
        (name, limits) for name in ("ema", "censoring-aware") for limits in (False, True)
    }
    for row in figures["lengths"]:
        assert row["held_back"] == 200
        assert 0 <= row["calibration_error"] <= 1
        assert len(row["surface"]["error"]) == len(row["surface"]["ages_tokens"])
    assert [row["profiles_known"] for row in figures["fleet"]] == [True, False]
    assert figures["fleet"][0]["prefill_time"]["predictions"] == 40
    assert calibrate(*SMALL, *FLEET) == figures
    assert calibrate(*SMALL, "--seed", "1")["lengths"] != figures["lengths"]


def test_a_workload_too_small_to_say_anything_says_so(tmp_path: Path) -> None:
    """Two requests, one of them scored: nothing is known of any age."""
    trace = tmp_path / "two.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n0,1,1\n")
    figures = calibrate("--trace", str(trace))
    assert {row["surface"]["max"] for row in figures["lengths"]} == {None}
    assert CliRunner().invoke(app, ["calibrate", "--trace", str(trace)]).exit_code == 0


@pytest.mark.parametrize("rows", ["0,100,1\n1,100,1\n2,50,1\n", "0,100,20\n0,100,20\n0,50,10\n"])
def test_outputs_of_one_token_and_requests_of_one_instant_are_scored(rows: str, tmp_path: Path) -> None:
    """There is no step to time, and no rate."""
    trace = tmp_path / "rows.csv"
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    result = CliRunner().invoke(app, ["calibrate", "--trace", str(trace), *FLEET])
    assert result.exit_code == 0, result.output
    assert calibrate("--trace", str(trace), *FLEET)["fleet"][0]["prefill_time"]["predictions"] == 3


def test_people_get_tables_with_the_papers_figures_beside() -> None:
    result = CliRunner().invoke(app, ["calibrate", *SMALL, *FLEET])
    assert result.exit_code == 0, result.output
    assert "SIBYL's figure 7, on its own data: below 9 %. Here: ema at most" in result.stdout
    for title in ("output lengths of zeta", "look-ahead up to", "predicted / actual - 1", "projected load"):
        assert title in result.stdout


def test_the_object_goes_to_a_file(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    assert CliRunner().invoke(app, ["calibrate", *SMALL, "--json", str(out)]).exit_code == 0
    assert json.loads(out.read_text())["fleet"] == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "--trace, --workload: give one of them"),
        (["--workload", "nope"], "--workload: unknown workload 'nope'"),
        (["--workload", "chat", "--held-back", "1"], "--held-back: must be above 0 and below 1"),
        (["--workload", "chat", "--limit", "1"], "cannot be split"),
        ([*SMALL, "--json", "no/such/folder.json"], "its folder does not exist"),
        (["--trace", "missing.csv"], "missing.csv: cannot be read"),
        ([*SMALL, "--endpoints", "0P1D", "--profile", "h20-qwen3-32b"], "asks for 0 endpoints"),
        ([*SMALL, *FLEET, "--policy", "nope"], "--policy: unknown placement 'nope'"),
        ([*SMALL, *FLEET, "--policy", "ballast,sibyl"], "--policy: name one placement"),
        ([*SMALL, *FLEET, "--rate-scale", "0"], "--rate-scale: must be above 0"),
    ],
)
def test_what_cannot_work_is_refused_with_the_option(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(app, ["calibrate", *arguments])
    assert result.exit_code == 2
    assert problem in result.stderr
