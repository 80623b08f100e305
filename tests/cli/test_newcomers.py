"""What a newcomer tries first works, or is refused with the fix."""

import contextlib
import os
import pty
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from ballast_cli.main import app
from ballast_sim.recommend.budget import parse_budget
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.policies.choice import check_composition, parse_policies

RUN = ("--workload", "chat", "--limit", "5", "--policy", "round-robin")


def test_a_load_in_percent_is_refused_with_the_share() -> None:
    answer = CliRunner().invoke(app, ["simulate", "--endpoints", "1P1D@h20", *RUN, "--load", "70"])
    assert answer.exit_code == 2
    assert "--load: 70 is 70 times the capacity; write 0.7 for 70 %" in " ".join(answer.output.split())


def test_hardware_has_one_name_in_shapes_and_in_budgets() -> None:
    (machine,) = parse_shape("1C@h20")
    assert machine.profile == parse_budget("h20=8", "qwen3-32b")[0].profile
    assert machine.endpoint.profile == machine.profile.name == "h20-qwen3-32b"
    assert parse_shape("1C", "h20") == parse_shape("1C@h20-qwen3-32b")


def test_the_version_is_an_option_too() -> None:
    for words in (["--version"], ["version"]):
        answer = CliRunner().invoke(app, words)
        assert (answer.exit_code, answer.stdout) == (0, version("ballast") + "\n")


@pytest.mark.parametrize(
    ("shape", "policy", "remarked"),
    [
        ("2P2D@h20", "lmetric", True),
        ("2P2D@h20", "lmetric/least-requests", False),
        ("2P2D@h20", "ballast,sibyl,least-requests,dynamo-cost", False),
        ("2C@h20", "lmetric", False),
    ],
)
def test_a_policy_for_prefills_that_places_decodes_only_is_remarked(shape: str, policy: str, remarked: bool) -> None:
    remarks = check_composition(parse_policies(policy), parse_shape(shape))
    assert remarked == any("lmetric/least-requests places prefills by it" in remark for remark in remarks)


def test_an_unknown_workload_is_answered_with_the_nearest() -> None:
    answer = CliRunner().invoke(app, ["load", "--url", "http://127.0.0.1:9", "--model", "m", "--workload", "chatt"])
    assert answer.exit_code == 2
    assert "did you mean chat?" in " ".join(answer.output.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["simulate", *RUN, "--endpoints", "1P1D@h20", "--rate", "2rps"],
            "'--rate': is not a number; write digits without a unit",
        ),
        (["simulate", *RUN, "--endpoints", "1P1D@h20", "--duration", "5m"], "'--duration': is not a number"),
        (["adopt", "deployment.yaml"], "(deployment.yaml); all that it takes are options"),
        (
            ["simulate", "--workload", "chat", "--endpoints", "1P1D@h20", "--rate", "1e9", "--duration", "5"],
            "--rate: 1e+09 requests a second for 5 s are more than the 100,000,000 requests",
        ),
        (
            ["engine-sim", "serve", "m", "--port", "99999"],
            "argument --port: must be a port from 0 to 65535, not '99999'",
        ),
        (["engine-sim", "serve", "m", "--port", "-1"], "--port"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_cannot_be_meant_is_refused_in_words(words: list[str], said: str) -> None:
    answer = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert answer.exit_code == 2
    assert said in " ".join(answer.output.split())


def test_lists_fit_a_terminal_and_have_one_row_a_line_in_pipes() -> None:
    """80 columns, as `script` gives them; names stay in their own column."""
    command = [sys.executable, "-c", "from ballast_cli.main import app; app()", "policies"]
    piped = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert max(map(len, piped)) > 80
    main, side = pty.openpty()
    with subprocess.Popen(command, stdout=side, env={**os.environ, "COLUMNS": "80"}) as process:
        os.close(side)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes there any more
            while part := os.read(main, 65536):
                shown += part
        assert process.wait() == 0
    os.close(main)
    lines = shown.decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > len(piped)
    assert "".join("".join(lines).split()) == "".join("".join(piped).split())
