"""What every test may use: `--update-golden` and the fixture `golden`; how many processes `make test` starts.

`@pytest.mark.rotating(N)` is for many tests of one kind that are slow and rarely break: each commit and Python runs one
in N of them, others the next time. `--all` runs them all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import settings

# Shared machines stall: no example may fail for being slow. CI tries the same examples every time, people others.
settings.register_profile("ballast", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("ballast")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden; review the diff")
    parser.addoption("--all", action="store_true", help="run rotating tests all, not a sample that each commit changes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the rotating tests whose turn it is not."""
    if config.getoption("--all"):
        return
    turn = f"{_commit()} {sys.version_info.minor}"
    left_out = [item for item in items if not _has_its_turn(item, turn)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _has_its_turn(item: pytest.Item, turn: str) -> bool:
    mark = item.get_closest_marker("rotating")
    return mark is None or int(sha256(f"{turn} {item.nodeid}".encode()).hexdigest(), 16) % mark.args[0] == 0


def _commit() -> str:
    """Of this checkout; empty where there is none."""
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return found.stdout.strip()


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
