"""The documentation as a site: GitHub's Markdown stays what it is, and what is broken or loaded elsewhere is found."""

from __future__ import annotations

from pathlib import Path

import markdown
import pytest
import yaml

from docs_site.built import faults
from docs_site.commonmark import with_wide_lists

ROOT = Path(__file__).parents[2]


def html(text: str) -> str:
    """As the site renders it, in one line."""
    made = markdown.markdown(with_wide_lists(text), extensions=["tables", "sane_lists", "pymdownx.superfences"])
    return made.replace("\n", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"),
        ("words:\n- a\n- b", "<p>words:</p><ul><li>a</li><li>b</li></ul>"),
        ("- a\n  goes on\n- b", "<ul><li>a    goes on</li><li>b</li></ul>"),
        (
            "- a\n\n  | x |\n  | --- |\n  | 1 |\n- b",
            "<tbody><tr><td>1</td></tr></tbody></table></li><li><p>b</p></li></ul>",
        ),
        ("1. a\n\n       code\n2. b", "<ol><li><p>a</p><pre><code>code</code></pre></li><li><p>b</p></li></ol>"),
        ("- a\n  ```\n  - code\n  ```\n- b", "- code</code></pre></div></li><li>b</li></ul>"),
        ("```\n- a\n  - b\n```", "- a  - b</code></pre></div>"),
        ("- a\n\nwords", "<ul><li>a</li></ul><p>words</p>"),
    ],
)
def test_lists_are_those_that_github_shows(text: str, shown: str) -> None:
    assert html(text).endswith(shown)


def site(folder: Path, body: str, *, style: str = "") -> Path:
    (folder / "index.html").write_text(f"<html><body id='top'>{body}</body></html>")
    (folder / "other.html").write_text("<html><body><h2 id='there'>There</h2></body></html>")
    (folder / "site.css").write_text(style)
    return folder


def test_a_sound_site_has_no_faults(tmp_path: Path) -> None:
    body = (
        "<a href='other.html#there'>x</a> <a href='#top'>x</a> <a href='.'>x</a> <a href='https://example.org/a'>x</a>"
    )
    assert faults(site(tmp_path, body + "<link rel='stylesheet' href='site.css'>", style="a {color: red}")) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<a href='gone.html'>x</a>", "index.html: gone.html leads nowhere"),
        ("<a href='other.html#here'>x</a>", "index.html: other.html#here leads nowhere"),
        ("<a href='../outside.html'>x</a>", "index.html: ../outside.html leads nowhere"),
        ("<a href='https://no host/'>x</a>", "index.html: https://no host/ leads nowhere"),
        ("<img src='gone.png'>", "index.html: loads gone.png, which is not there"),
        (
            "<script src='https://cdn.example/x.js'></script>",
            "index.html: loads https://cdn.example/x.js from elsewhere",
        ),
        (
            "<link rel='stylesheet' href='//fonts.example/a.css'>",
            "index.html: loads //fonts.example/a.css from elsewhere",
        ),
        ("<pre class='mermaid'></pre>", "index.html: a diagram that the theme draws with a library from another host"),
    ],
)
def test_what_is_broken_or_comes_from_elsewhere_is_found(tmp_path: Path, body: str, fault: str) -> None:
    assert faults(site(tmp_path, body)) == [fault]


def test_a_style_that_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    style = "@font-face {src: url('https://fonts.example/a.woff2')}"
    assert faults(site(tmp_path, "", style=style)) == ["site.css: a style that loads from elsewhere"]


def test_the_settings_ask_no_other_host() -> None:
    """The theme's own: no web fonts, no analytics, no script from elsewhere; and MkDocs' warnings are errors' form."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = yaml.safe_load(text)
    assert settings["theme"]["font"] is False
    assert "://" not in text.replace("127.0.0.1:", "")
    assert set(settings["validation"].values()) == {"warn"}
