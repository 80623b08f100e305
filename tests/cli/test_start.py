"""The command line starts fast: what a sub-command needs is imported when it runs."""

import subprocess
import sys

import pytest

HEAVY = {"numpy", "yaml", "httpx", "kubernetes", "kopf", "grpc", "fastapi", "uvloop", "asyncio", "rich"}


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (("--help",), HEAVY | {"pydantic"}),
        (("simulate", "--help"), HEAVY),  # typer reads the values of options by pydantic
        (("version",), HEAVY),
    ],
)
def test_help_needs_no_heavy_import(words: tuple[str, ...], heavy: set[str]) -> None:
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: sys.stderr.write(repr(sorted({heavy!r} & set(sys.modules)))))\n"
        f"sys.argv = ['ballast', *{words!r}]\n"
        "from ballast_cli.start import run\n"
        "run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]"
    assert done.stdout


def test_help_names_every_command_in_a_whole_sentence_within_80_columns() -> None:
    done = subprocess.run([sys.executable, "-m", "ballast_cli", "--help"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines[1:])
    assert any(line.split()[:2] == ["recommend", "Simulate"] for line in lines)
