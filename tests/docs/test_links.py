"""Links of the documentation lead somewhere, down to the heading, and the files and modules that it names exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs_site.links import dead_links, pages

ROOT = Path(__file__).parents[2]
PAGES = pages(ROOT)
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""All but the changelog, which names files as they were."""

_PATH = re.compile(r"`((?:tests|bench|gateway|operator|simulator|cli|e2e|tools|charts|crds|manifests|docs)/[\w./*-]*)`")
_MODULE = re.compile(r"`(ballast_(?:api|cli|core|gateway|operator|sim)(?:\.[a-z_]+)*)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_and_modules_exist(page: Path) -> None:
    """Names in backticks, from the root: `bench/matrix`, `ballast_core.beliefs`."""
    text = page.read_text()
    assert [path for path in _PATH.findall(text) if not any(ROOT.glob(path.rstrip("/")))] == []
    assert [name for name in _MODULE.findall(text) if find_spec(name) is None] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_stands_in_the_middle_of_a_merge(page: Path) -> None:
    assert [line for line in page.read_text().splitlines() if line.startswith(("<" * 7, ">" * 7))] == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    """A missing file or heading and a malformed address are dead; code is not looked at."""
    (tmp_path / "other.md").write_text("# Two words, `code`\n\n## Again\n\n## Again\n\n```\n# no heading\n```\n")
    page = tmp_path / "page.md"
    good = "[a](other.md#two-words-code) [b](other.md#again-1) [c](#here) [d](https://example.org/x) `[e](gone.md)`"
    page.write_text(f"# Here\n\n{good}\n\n```\n[f](gone.md)\n```\n")
    assert dead_links(page) == []
    bad = (
        "[a](gone.md) [b](other.md#no-heading) [c](#there) [d](other.md#again-2) [e](https://) [f](http://example.org)"
    )
    page.write_text(f"# Here\n\n{bad}\n")
    assert dead_links(page) == [
        "gone.md",
        "other.md#no-heading",
        "#there",
        "other.md#again-2",
        "https://",
        "http://example.org",
    ]
