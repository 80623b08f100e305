"""`ballast simulate --autoscale` and `ballast explain scaling`: what they print, and how they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ballast_cli.main import app

FLEET = ("--workload", "chat", "--rate", "8", "--duration", "60", "--profile", "h200-qwen3-32b", "--policy", "ballast")
SLO = ("--slo", "ttft=2,tpot=0.05")


def asked(*words: str) -> Any:
    """The command's result."""
    return CliRunner().invoke(app, list(words))


def test_decisions_costs_and_gpu_hours_stand_beside_attainment(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    said = asked(
        "simulate", *FLEET, *SLO, "--endpoints", "3F", "--autoscale", "ballast", "--no-rehearse",
        "--price", "h200=4", "--json", str(rows),
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    assert "GPU h" in said.stdout
    (row,) = json.loads(rows.read_text())
    scaled = row["autoscaling"]
    assert scaled["cost"] == pytest.approx(4 * scaled["gpu_hours"])
    assert scaled["peak_gpus"] <= 3
    explained = asked("explain", "scaling", str(rows))
    assert explained.exit_code == 0
    first = scaled["decisions"][0]
    for part in (first["reason"], first["message"], "pool flexible-h200-qwen3-32b", "covers", "not tried"):
        assert part in explained.stdout
    last = asked("explain", "scaling", str(rows), "--at", str(first["at_s"]))
    assert last.stdout.splitlines() == explained.stdout.splitlines()[: len(last.stdout.splitlines())]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--endpoints", "3F", *SLO, "--autoscale", "nothing"), "--autoscale: unknown scaling 'nothing'"),
        (("--endpoints", "3F", *SLO, "--autoscale", "ballast:down_s=-1.0"), "--autoscale: ballast: down_s: must be"),
        (("--endpoints", "3F", "--autoscale", "ballast"), "--slo: a scaling policy needs thresholds"),
        (("--endpoints", "3C", *SLO, "--autoscale", "ballast"), "--endpoints: colocated endpoints"),
        (("--endpoints", "3F", *SLO, "--autoscale", "ballast", "--startup", "-1"), "--startup: must be 0 s or more"),
        (("--endpoints", "3F", *SLO, "--autoscale", "fixed", "--min-replicas", "4", "--max-replicas", "2"), "least 4"),
        (("--endpoints", "3F", *SLO, "--autoscale", "ballast", "--price", "h200"), "--price: cannot read 'h200'"),
        (("--endpoints", "3F", *SLO, "--autoscale", "ballast", "--html", "x.html"), "--html: the report draws"),
        (("--endpoints", "3F", *SLO, "--autoscale", "fixed", "--gpu-budget", "-3"), "--gpu-budget: must be 1 or more"),
        (("--endpoints", "3F", *SLO, "--autoscale", "fixed", "--min-ratio", "nan"), "--min-ratio: must be above 0"),
        (("--endpoints", "3F", *SLO, "--autoscale", "fixed", "--max-ratio", "0"), "--max-ratio: must be above 0"),
        (("--endpoints", "3F", *SLO, "--autoscale", "fixed", "--min-ratio", "2", "--max-ratio", "1"), "at least 2 and"),
        (("--endpoints", "3F", *SLO, "--autoscale", "fixed", "--price", "h20=3"), "no engine here is of 'h20', only"),
        (("--endpoints", "3F", *SLO, "--autoscale", "fixed", "--price", "h200=3,h200-qwen3-32b=4"), "is named twice"),
        (("--endpoints", "2P,2D@h20", *SLO, "--autoscale", "fixed", "--price", "h200=3"), "none for h20-qwen3-32b"),
    ],
)  # fmt: skip
def test_what_cannot_be_scaled_is_refused_by_its_option(words: tuple[str, ...], problem: str) -> None:
    said = asked("simulate", *FLEET, *words)
    assert said.exit_code == 2
    assert problem in " ".join(said.stderr.split())


@pytest.mark.parametrize(
    "words",
    [
        ("--min-replicas", "3"),
        ("--max-replicas", "3"),
        ("--min-ratio", "1"),
        ("--gpu-budget", "2"),
        ("--startup", "5"),
        ("--scale-interval", "5"),
        ("--scale-to-zero-after", "5"),
        ("--price", "foo=3"),
        ("--attainment", "nan"),
        ("--rehearse",),
    ],
    ids=lambda words: words[0],
)
def test_options_of_a_scaling_policy_are_refused_without_one(words: tuple[str, ...]) -> None:
    said = asked("simulate", *FLEET, "--endpoints", "3F", *words)
    assert said.exit_code == 2
    assert f"{words[0]}: belongs to a scaling policy; give --autoscale, too" in " ".join(said.stderr.split())


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "3", '{"decisions": [{"reason": "x"}]}', pytest.param("[" * 100_000, id="deep")],
)
def test_a_file_without_a_decision_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    said = asked("explain", "scaling", str(path))
    assert said.exit_code == 2
    assert said.stderr.startswith(f"error: {path}: ")
    assert len(said.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["x" * 300 + ".json", "nul\0.json"], ids=["long", "nul"])
def test_a_name_that_no_file_can_have_is_refused_in_one_line(name: str) -> None:
    said = asked("explain", "scaling", name)
    assert (said.exit_code, len(said.stderr.splitlines())) == (2, 1)
    assert "cannot be read" in said.stderr


def test_a_closed_standard_input_holds_no_decision() -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "ballast_cli", "explain", "scaling", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
