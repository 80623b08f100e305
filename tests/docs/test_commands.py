"""Commands of the documentation are ones that `ballast` takes: subcommands, options and the form of their values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup
from typer.exceptions import TyperException

from ballast_cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACEHOLDER = re.compile(r"\.\.\.|…|[\[\]]")


def commands(page: str) -> Iterator[str]:
    """Lines of code that begin with `ballast`, joined where they go on; none with a placeholder for several words."""
    joined = re.sub(r"\\\n\s*", "", page)
    block = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
    fenced = block.sub(lambda found: re.sub(r"(?m)^", "    ", found[1]), joined)
    for line in re.findall(r"(?m)^ {4,}(?:\$ )?(?:\.venv/bin/)?ballast (.*)$", fenced):
        if not PLACEHOLDER.search(line):
            yield line


def words_of(line: str) -> list[str]:
    """Without comments, and only what comes before a pipe, a redirection or the background."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&><;")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&><;"):
            break
        words.append(word)
    return words


def check(words: list[str]) -> None:
    """Parse, and run nothing. Raises TyperException."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("ballast", [*words])
    while isinstance(command, TyperGroup):
        name, command, words = command.resolve_command(context, words)
        context = command.make_context(name, [*words], parent=context)


EXAMPLES = [
    pytest.param(line, id=f"{page.relative_to(ROOT)}: {line[:40]}")
    for page in PAGES
    for line in commands(page.read_text())
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_each_is_taken(line: str) -> None:
    check(words_of(line))


@pytest.mark.parametrize("line", ["simulate --endpoint 2P", "recomend", "recommend --limit many"])
def test_a_wrong_one_is_found(line: str) -> None:
    (found,) = commands(f"Try:\n\n    ballast {line}   # and see\n")
    with pytest.raises(TyperException):
        check(words_of(found))
