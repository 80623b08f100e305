"""Lists as GitHub reads them, written as Python-Markdown reads them.

GitHub takes the children of an item from where its text begins, Python-Markdown from four blanks on, and only after
an empty line.
"""

from __future__ import annotations

import re

_ITEM = re.compile(r"( *)([-*]|\d+\.)( +)(?=\S)")
_FENCE = re.compile(r" *(```|~~~)")


def with_wide_lists(text: str) -> str:
    """The page with four blanks for each level of its lists, and an empty line before each list."""
    written: list[str] = []
    begins: list[int] = []  # of each open item: the column in which its text begins
    fenced = False
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        blank = not line.strip()
        fence = bool(_FENCE.match(line))
        item = None if fenced else _ITEM.match(line)
        after_blank = not written or not written[-1].strip()
        if not blank and not fenced and (item or after_blank or fence):
            while begins and indent < begins[-1]:
                begins.pop()
        if item and indent - (begins[-1] if begins else 0) < 4:  # else it is code
            first = not begins and not after_blank and not _in_list(written)
            if first:
                written.append("")
            written.append(" " * 4 * len(begins) + line[indent:])
            begins.append(item.end())
        elif blank:
            written.append("")
        else:
            inside = indent - begins[-1] if begins else indent
            written.append(" " * (4 * len(begins) + max(inside, 0)) + line[indent:])
        if fence:
            fenced = not fenced
    return "\n".join(written)


def _in_list(written: list[str]) -> bool:
    """Whether the lines before, back to an empty one, begin with an item."""
    for line in reversed(written):
        if not line.strip():
            return False
        if _ITEM.match(line):
            return True
    return False
