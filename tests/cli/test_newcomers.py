"""What a newcomer tries first works, or is refused with the fix."""

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
