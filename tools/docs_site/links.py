"""Links as they are written: relative ones lead to a file and a heading, others have the form of an address."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z]+:")
_HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+|localhost|127\.0\.0\.1")


def pages(root: Path) -> list[Path]:
    """Every page of the repository: those at its root and below docs/."""
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])


def anchor(heading: str) -> str:
    """The name that GitHub gives a heading: its text in lower case, without punctuation, blanks as hyphens."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    """All anchors of a page; a repeated heading gets a number."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        name = unique = anchor(heading)
        repeats = 0
        while unique in found:
            repeats += 1
            unique = f"{name}-{repeats}"
        found.add(unique)
    return found


def dead_links(page: Path) -> list[str]:
    """The links of a page that are not well formed, or whose file or heading does not exist. No other host is asked."""
    text = _CODE.sub("", _FENCED.sub("", page.read_text(encoding="utf-8")))
    dead = []
    for link in _LINK.findall(text):
        if _ELSEWHERE.match(link):
            if not well_formed(link):
                dead.append(link)
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (heading and heading not in anchors(target)):
            dead.append(link)
    return dead


def well_formed(address: str) -> bool:
    """Whether an absolute address could be one: https (http on this machine), a host with a name, no blanks."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    if parts.scheme == "mailto":
        return "@" in parts.path
    local = parts.hostname in ("localhost", "127.0.0.1")
    return parts.scheme in (("http", "https") if local else ("https",)) and bool(_HOST.fullmatch(parts.hostname or ""))
