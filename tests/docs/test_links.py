"""Links of the documentation lead somewhere, down to the heading, and the files and modules that it names exist."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""All but the changelog, which names files as they were."""

_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z]+:")
_PATH = re.compile(r"`((?:tests|bench|gateway|operator|simulator|cli|e2e|tools|charts|crds|manifests|docs)/[\w./*-]*)`")
_MODULE = re.compile(r"`(ballast_(?:api|cli|core|gateway|operator|sim)(?:\.[a-z_]+)*)`")


def anchor(heading: str) -> str:
    """The name that GitHub gives a heading: its text in lower case, without punctuation, blanks as hyphens."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    """All anchors of a page; a repeated heading gets a number."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", page.read_text())):
        name = unique = anchor(heading)
        repeats = 0
        while unique in found:
            repeats += 1
            unique = f"{name}-{repeats}"
        found.add(unique)
    return found


def dead_links(page: Path) -> list[str]:
    """The relative links of a page whose file or heading does not exist."""
    text = _CODE.sub("", _FENCED.sub("", page.read_text()))
    dead = []
    for link in _LINK.findall(text):
        if _ELSEWHERE.match(link):
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (heading and heading not in anchors(target)):
            dead.append(link)
    return dead


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
    """A missing file and a missing heading are dead; code and other sites are not looked at."""
    (tmp_path / "other.md").write_text("# Two words, `code`\n\n## Again\n\n## Again\n\n```\n# no heading\n```\n")
    page = tmp_path / "page.md"
    good = "[a](other.md#two-words-code) [b](other.md#again-1) [c](#here) [d](https://example.org/x) `[e](gone.md)`"
    page.write_text(f"# Here\n\n{good}\n\n```\n[f](gone.md)\n```\n")
    assert dead_links(page) == []
    bad = "[a](gone.md) [b](other.md#no-heading) [c](#there) [d](other.md#again-2)"
    page.write_text(f"# Here\n\n{bad}\n")
    assert dead_links(page) == ["gone.md", "other.md#no-heading", "#there", "other.md#again-2"]
