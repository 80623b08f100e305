"""A plain installation says in one line which extra a command needs (`make installed` tries fresh environments)."""

import sys
from importlib.metadata import metadata

import pytest
from typer.testing import CliRunner

from ballast_cli import start
from ballast_cli.extras import EXTRA_OF, missing_extra
from ballast_cli.main import app


def _without(monkeypatch: pytest.MonkeyPatch, missing: str, *importers: str) -> None:
    """As if `missing` were not installed; `importers` are imported anew."""
    for name in list(sys.modules):
        if name.partition(".")[0] == missing or name.startswith(importers):
            monkeypatch.delitem(sys.modules, name)

    class Nowhere:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name.partition(".")[0] == missing:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Nowhere(), *sys.meta_path])


def test_extras_are_those_of_the_distribution_and_commands_those_of_the_program() -> None:
    assert {*EXTRA_OF.values(), "all"} <= set(metadata("ballast").get_all("Provides-Extra") or ())
    listed = CliRunner().invoke(app, ["--help"]).output
    assert all(f"\n  {command} " in listed for command in EXTRA_OF)


def test_a_command_whose_extra_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "kopf", "ballast_operator.run", "ballast_operator.handlers")
    answer = CliRunner().invoke(app, ["operator", "--gateway-image", "image"])
    line = (
        "error: ballast operator needs the extra 'operator' (no module kopf is installed): "
        "pip install 'ballast[operator]'\n"
    )
    assert (answer.exit_code, answer.stderr, answer.stdout) == (2, line, "")


def test_the_agent_says_it_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _without(monkeypatch, "uvloop", "ballast_gateway.agent.command")
    monkeypatch.setattr(sys, "argv", ["ballast", "agent", "--help"])
    with pytest.raises(SystemExit) as ended:
        start.run()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("pip install 'ballast[gateway]'\n")


def test_what_no_extra_brings_is_no_extras_fault() -> None:
    assert missing_extra("simulate", ModuleNotFoundError(name="my_policy")) is None
    assert missing_extra("gateway", ModuleNotFoundError(name="ballast_gateway.mistyped")) is None
