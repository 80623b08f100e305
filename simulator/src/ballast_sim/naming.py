"""What somebody may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def known_names(name: str, known: Iterable[str]) -> str:
    """`known: a, b, c`, and the nearest one where there is one near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or [
        other for other in names if name and name in other
    ]
    return f"known: {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else "")
