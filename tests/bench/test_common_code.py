"""Digests of code: a change counts for what depends on it, and only if Python can tell."""

from pathlib import Path

import pytest

from ballast_core.policies.registry import build_placement
from ballast_core.policies.suite import Suite
from ballast_sim.simulation.policies.choice import PolicyChoice
from bench.common.code import ENTRY_MODULES, closure, digest, essence, file_of, imports, placement_digest

SOURCE = '''"""What it does."""

# why
LIMIT = "#1"  # of a kind
"""Its meaning."""


def double(number):
    """Twice."""
    return 2 * number
'''


def test_comments_docstrings_and_blank_lines_do_not_count() -> None:
    bare = 'LIMIT = "#1"\ndef double(number):\n    return 2 * number\n'
    assert essence(SOURCE) == essence(bare)


@pytest.mark.parametrize("edit", [("2 * number", "3 * number"), ("#1", "#2"), ("    return", "    pass\n    return")])
def test_code_counts(edit: tuple[str, str]) -> None:
    assert essence(SOURCE) != essence(SOURCE.replace(*edit))


def test_a_digest_is_that_of_content_and_name(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    first = digest([file])
    file.write_text("x = 1  # one\n")
    assert digest([file]) == first
    file.write_text("x = 2\n")
    assert digest([file]) != first


def test_modules_are_found_in_every_form_of_import() -> None:
    source = "import a.b\nfrom a.c import d\ndef f():\n    from e import g\n"
    assert set(imports(source)) == {"a.b", "a.c", "a.c.d", "e", "e.g"}


def test_a_placement_depends_on_its_own_modules() -> None:
    ours = closure(["ballast_core.policies.placement.ballast"])
    assert "ballast_core.policies.placement.projection" in ours
    assert "ballast_core.policies.placement.sibyl" not in ours
    assert "ballast_core.policies.placement.ballast" in closure(["ballast_sim.simulation.policies.oracle"])


def test_what_all_runs_share_holds_no_placement_and_no_tools_around_the_simulator() -> None:
    common = closure(ENTRY_MODULES)
    shared = ("ballast_core.directing.director", "ballast_core.profiles.capacity", "ballast_sim.engine.vllm.scheduler")
    assert set(shared) <= common
    placements = {build_placement(name).__module__ for name in ("ballast", "sibyl", "least-requests", "lmetric")}
    assert not common & placements
    assert not any(module.startswith(("ballast_sim.engine_sim", "ballast_sim.calibration")) for module in common)


def test_unlike_placements_have_unlike_digests() -> None:
    prefill = build_placement("least-uncached-tokens")
    digests = {
        placement_digest(PolicyChoice(name, Suite(prefill=prefill, decode=build_placement(name))))
        for name in ("ballast", "sibyl", "lmetric")
    }
    assert len(digests) == 3


def test_only_core_simulator_and_studies_have_files() -> None:
    assert file_of("ballast_core.directing.director") is not None
    assert file_of("ballast_sim.engine") is not None
    assert file_of("ballast_sim.none_such") is None
    assert file_of("bench.common.code") is not None
    assert file_of("bench") is None
    assert file_of("numpy") is None
