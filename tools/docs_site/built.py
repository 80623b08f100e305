"""The built site: every link leads to a file and an anchor of it, and no page loads anything from another host."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs_site.links import well_formed

_LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_NAMING_ONLY = {"canonical", "prev", "next", "alternate"}
_FROM_CSS = re.compile(r"@import|url\(\s*['\"]?(?:https?:)?//")


@dataclass
class Read(HTMLParser):
    """What a page of HTML has of anchors, links and things that a browser loads with it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    diagrams: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if "id" in named:
            self.anchors.add(named["id"])
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        if (source := named.get(_LOADING.get(tag, ""))) and not set(named.get("rel", "").split()) & _NAMING_ONLY:
            self.loaded.append(source)
        if "mermaid" in named.get("class", "").split():  # the theme would fetch a library to draw it
            self.diagrams += 1


def faults(site: Path) -> list[str]:
    """One line for each broken link, and for each thing that a browser would fetch elsewhere."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    found: list[str] = []
    for path, page in pages.items():
        name = path.relative_to(site)
        if name.name == "404.html":
            continue  # its links are absolute: it is shown at any address
        found += [f"{name}: {link} leads nowhere" for link in page.links if not _leads(link, path, site, pages)]
        found += [f"{name}: loads {source} from elsewhere" for source in page.loaded if _foreign(source)]
        found += [f"{name}: loads {source}, which is not there" for source in page.loaded if _missing(source, path)]
        if page.diagrams:
            found.append(f"{name}: a diagram that the theme draws with a library from another host")
    for path in sorted(site.rglob("*.css")):
        if _FROM_CSS.search(path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(site)}: a style that loads from elsewhere")
    return found


def _read(path: Path) -> Read:
    page = Read()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _foreign(source: str) -> bool:
    parts = urlsplit(source)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


def _missing(source: str, page: Path) -> bool:
    parts = urlsplit(source)
    return not parts.scheme and not parts.netloc and not (page.parent / unquote(parts.path)).exists()


def _leads(link: str, page: Path, site: Path, pages: dict[Path, Read]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return well_formed(link)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site) or not target.is_file():
        return False
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].anchors
