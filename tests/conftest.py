"""What every test may use: `--update-golden` and the fixture `golden`; how many processes `make test` starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# Shared machines stall: no example may fail for being slow. CI tries the same examples every time, people others.
settings.register_profile("ballast", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("ballast")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden; review the diff")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than cores: many tests wait for a socket, a process or a timer."""
    return (os.cpu_count() or 1) + 2


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file of tests/golden, or writes the file with --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} does not exist; run pytest with --update-golden"
        assert text == path.read_text(encoding="utf-8"), "differs; if that is meant: --update-golden, review the diff"

    return check
