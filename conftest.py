"""Tests and scenarios that take turns.

`@pytest.mark.rotating(N)` is for what is slow and rarely breaks: each commit and Python runs one in N of these, others
the next time. A module that has the mark as a whole takes turns as a whole, for its tests share a fleet; with
`each=True` each of its tests does. `--all` runs them all, and so does naming some (`-k`, a file, a test). With
`--one-in N` every test takes turns: for a second Python beside one that runs them all, and on a machine that is too
slow today.
"""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run rotating tests all, not a sample that each commit changes")
    parser.addoption("--one-in", type=int, default=1, metavar="N", help="of the tests that read no shared data, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the rotating tests whose turn it is not, but for those that are named."""
    if config.getoption("--all") or config.getoption("keyword"):
        return
    named = {Path(each.partition("::")[0]).resolve() for each in config.args if not Path(each).is_dir()}
    turn, one_in = f"{_commit()} {sys.version_info.minor}", config.getoption("one_in")
    left_out = [item for item in items if item.path not in named and not _has_its_turn(item, turn, one_in)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _has_its_turn(item: pytest.Item, turn: str, one_in: int) -> bool:
    node, mark = next(item.iter_markers_with_node("rotating"), (item, None))
    rotation = mark.args[0] if mark else 1
    every = 1 if item.get_closest_marker("shared") else one_in
    if node is item or (mark is not None and mark.kwargs.get("each")):
        return _comes_up(turn, item.nodeid, max(rotation, every))
    return _comes_up(turn, node.nodeid, rotation) and _comes_up(turn, item.nodeid, every)


def _comes_up(turn: str, name: str, every: int) -> bool:
    return int(sha256(f"{turn} {name}".encode()).hexdigest(), 16) % every == 0


def _commit() -> str:
    """Of this checkout; empty where there is none."""
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return found.stdout.strip()
