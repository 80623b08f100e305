"""A policy of one's own runs in the simulator by its name, and one that cannot is refused with the reason."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ballast_cli.main import app

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
RUN = ["simulate", "--workload", "chat", "--limit", "40", "--endpoints", "1P@a100,1P2D@h20"]


@pytest.mark.rotating(3)
def test_the_example_runs_beside_the_shipped_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    own = ["--policy-module", "least_kv_share:LeastKvShare"]
    names = ["--policy", "least-kv-share,least-kv-share/least-requests,ballast"]
    done = CliRunner().invoke(app, [*RUN, *own, *names, "--jobs", "2", "--json", "-"])  # workers import it, too
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["placements"] for row in rows] == [
        "least-uncached-tokens/least-kv-share",
        "least-kv-share/least-requests",
        "least-uncached-tokens/ballast",
    ]
    assert all(row["completed"] == 40 for row in rows)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("nothing", "write package.module:Class"),
        ("no_such_module:Policy", "cannot be imported"),
        ("json:Nothing", "cannot be imported"),
        ("json:JSONDecoder", "is no placement"),
        ("ballast_core.policies.placement.placements:RoundRobin", "'round-robin' is taken"),
    ],
)
def test_what_is_no_placement_is_refused(named: str, says: str) -> None:
    done = CliRunner().invoke(app, [*RUN, "--policy-module", named])
    assert done.exit_code == 2
    assert "--policy-module: " in done.output
    assert says in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("costs", "says"),
    [
        ("view.tokenz", ".py, line 7)"),
        ("3.0", "shape () for 2 candidates, not (2,)"),
        ("view.tokens[:1]", "shape (1,) for 2 candidates, not (2,)"),
        ("view.tokens * float('nan')", "costs gives NaN"),
        ("view.tokens.missing()", "AttributeError"),
    ],
)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_costs_that_are_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, costs: str, says: str, jobs: str
) -> None:
    """Not taken for a tie, and no traceback."""
    lines = [
        "from ballast_core.beliefs.kinds import Belief",
        "class Mine:",
        "    type = 'mine'",
        "    needs = Belief.NONE",
        "",
        "    def costs(self, view, request):",
        f"        return {costs}",
    ]
    module = tmp_path.name  # of this test alone, as the interpreter keeps modules
    (tmp_path / f"{module}.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    own = ["--policy-module", f"{module}:Mine", "--policy", "mine,least-requests", "--jobs", jobs]
    done = CliRunner().invoke(app, [*RUN, *own])
    assert done.exit_code == 2, done.output
    assert f"--policy-module: {module}:Mine: costs " in done.output
    assert says in " ".join(done.output.split())


@pytest.mark.parametrize("text", ["raise KeyError('x')", "nothing_of_that_name", "1 / 0"])
def test_a_module_that_cannot_be_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    module = tmp_path.name
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*RUN, "--policy-module", f"{module}:Mine"])
    assert done.exit_code == 2, done.output
    assert f"{module}:Mine: cannot be imported" in done.output
