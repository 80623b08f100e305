"""The answer to a name that does not exist: the nearest ones, and where the others are listed."""

from __future__ import annotations

import difflib
from collections.abc import Collection

SHORT_LIST = 10
"""Names that are all written out. Of more, the nearest are."""

NEAREST = 3


def known_names(name: str, known: Collection[str], listing: str | None = None) -> str:
    """Such as `did you mean least-requests or least-tokens? 22 are known, see `ballast policies``.

    `listing` is the command that prints them all. Up to `SHORT_LIST` names are written out in its stead.
    """
    near = _nearest(name, known)
    meant = f"did you mean {_either(near)}?" if near else ""
    if len(known) <= SHORT_LIST:
        return f"known: {', '.join(sorted(known))}" + (f"; {meant}" if near else "")
    where = f"see `{listing}`" if listing else f"from {min(known)} to {max(known)}"
    return " ".join(filter(None, (meant, f"{len(known)} are known, {where}")))


def _nearest(name: str, known: Collection[str]) -> list[str]:
    names = sorted(known)
    if not name:
        return []
    near = difflib.get_close_matches(name, names, n=NEAREST, cutoff=0.6)
    return near or [other for other in names if name in other][:NEAREST]


def _either(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
