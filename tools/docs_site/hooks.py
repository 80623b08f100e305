"""MkDocs' hooks: pages as they are for GitHub become pages of the site.

- `NAME/*.md` in the navigation stands for all pages of a folder.
- README is the home page; CHANGELOG, CONTRIBUTING and the like are pages of `project/`; decisions (ADRs) get a list.
- A link to a file outside docs/ leads to a copy of it in the site, below `source/`.
- Headings get GitHub's anchors; lists are widened (`commonmark`).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))  # MkDocs loads this file by its path

from docs_site.commonmark import with_wide_lists
from docs_site.links import anchor

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = "README.md"
_LINK = re.compile(r"(?:^ *```.*?^ *```)|`[^`\n]*`|\]\((?P<link>[^)\s:]+)\)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation without patterns, headings with GitHub's anchors."""
    config.nav = [each for entry in config.nav or [] for each in _expanded(entry)]
    config.mdx_configs["toc"] = {"slugify": lambda text, _: anchor(text), "permalink": True}
    return config


def _expanded(entry: Any) -> list[Any]:
    if isinstance(entry, dict):
        ((title, below),) = entry.items()
        return [{title: [each for one in below for each in _expanded(one)] if isinstance(below, list) else below}]
    if "*" in entry:
        found = ROOT.glob("*.md") if entry == "project/*.md" else DOCS.glob(entry)
        return [_place(path) for path in sorted(found) if path.name != INDEX]
    return [entry]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """With the pages of the repository's root, a list of decisions, and the files outside docs/ that pages link to."""
    sources = set()
    for path in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        sources |= {link for link in _relinked(path)[1] if link.startswith("source/")}
    for path in ROOT.glob("*.md"):
        files.append(File.generated(config, _place(path), content=_relinked(path)[0]))
    for place in sorted(sources):
        files.append(File.generated(config, place, abs_src_path=str(ROOT / place.removeprefix("source/"))))
    files.append(File.generated(config, f"adr/{INDEX}", content=_decisions()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """As Python-Markdown reads it."""
    source = DOCS / page.file.src_uri
    return with_wide_lists(_relinked(source)[0] if source.exists() else markdown)


def _relinked(page: Path) -> tuple[str, list[str]]:
    """A page's text with the links as they are in the site, and where those lead."""
    places: list[str] = []

    def moved(match: re.Match[str]) -> str:
        link = match["link"]
        if not link or link.startswith("#"):
            return match[0]
        name, hash_, heading = link.partition("#")
        places.append(_place((page.parent / name).resolve()))
        return f"]({os.path.relpath(places[-1], Path(_place(page)).parent)}{hash_}{heading})"

    return _LINK.sub(moved, page.read_text(encoding="utf-8")), places


def _place(path: Path) -> str:
    """Where a file of the repository stands in the site."""
    if path.is_relative_to(DOCS):
        return str(path.relative_to(DOCS) / (INDEX if path.is_dir() else ""))
    if path == ROOT / INDEX:
        return "index.md"
    if path.parent == ROOT and path.suffix == ".md":
        return f"project/{path.name.lower()}"
    if not path.is_file():
        raise PluginError(f"a page links to {path}: name a file of the repository, or a folder of docs/")
    return f"source/{path.relative_to(ROOT)}"


def _decisions() -> str:
    titles = {path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in (DOCS / "adr").glob("0*.md")}
    listed = [f"- [{title.lstrip('# ')}]({name})" for name, title in sorted(titles.items())]
    return "\n".join(["# Decisions", "", "Each says what was decided, why, and what was given up.", "", *listed, ""])
