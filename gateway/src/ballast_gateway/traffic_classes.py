"""Names of traffic classes, whose output lengths are learned together: model and objective.

Clients write objectives into a header. An objective becomes a class of its own once it has come often; a client that
invents ever new names gets no classes, and memory is bounded. A request without a class of its own counts in that of
its model.
"""

from __future__ import annotations

from typing import Final

LEAST_REQUESTS: Final = 16
"""How many requests an objective needs, more or less in a row, to become a class."""
MOST_CLASSES: Final = 24
"""Most classes with an objective: fewer than there may be survival curves, so that every model has room."""
MOST_CANDIDATES: Final = 256
MOST_CHARS: Final = 128
"""Longest name of a model or objective; longer ones are cut."""


class TrafficClasses:
    """Decides which class a request belongs to."""

    def __init__(self) -> None:
        self._classes: set[str] = set()
        self._seen: dict[str, int] = {}
        """Candidates, counted as Misra and Gries do: a name that makes up 1 in 257 requests or more is never lost."""

    def name(self, model: str, objective: str) -> str:
        """The class of a request; both may be empty."""
        of_model = model[:MOST_CHARS]
        if not objective:
            return of_model
        name = f"{of_model}|{objective[:MOST_CHARS]}"
        if name in self._classes or self._admit(name):
            return name
        return of_model

    def _admit(self, name: str) -> bool:
        if len(self._classes) >= MOST_CLASSES:
            return False
        if name not in self._seen and len(self._seen) >= MOST_CANDIDATES:
            self._seen = {other: count - 1 for other, count in self._seen.items() if count > 1}
            return False
        count = self._seen[name] = self._seen.get(name, 0) + 1
        if count < LEAST_REQUESTS:
            return False
        del self._seen[name]
        self._classes.add(name)
        return True
