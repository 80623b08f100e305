"""Which series and labels a PromQL expression names: enough of the language for our own expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\}|(\())?")
_OPERATORS = frozenset({"and", "or", "unless", "bool"})


@dataclass(frozen=True, slots=True)
class Named:
    """What an expression names."""

    selectors: tuple[tuple[str, frozenset[str]], ...]
    """Each series with the labels that it is selected by."""
    grouped: frozenset[str]
    """Labels that results are grouped or matched by."""


def named(expression: str) -> Named:
    """What this expression names. Example: `sum by (x) (rate(a{b="c"}[5m]))` -> a with b; x."""
    text = re.sub(r"\[[^\]]*\]|\boffset \w+", "", _STRING.sub('""', expression))
    grouped = frozenset(label for found in _GROUPING.findall(text) for label in re.findall(r"\w+", found))
    text = _GROUPING.sub(" ", text)
    selectors = tuple(
        (name, frozenset(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers or "")))
        for name, matchers, called in _SELECTOR.findall(text)
        if not called and name not in _OPERATORS
    )
    return Named(selectors, grouped)


def as_asked(expression: str) -> str:
    """A panel's expression as Grafana asks it, of all ServingPools."""
    return expression.replace("$__rate_interval", "1m").replace("$namespace", ".*").replace("$serving_pool", ".*")
