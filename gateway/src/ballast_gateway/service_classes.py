"""Classes of requests and their objectives: which one a request belongs to, by its model and headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ballast_api.gateway_settings import ClassObjective
from ballast_core.attainment import Objective


class _Class(NamedTuple):
    model: str | None
    headers: tuple[tuple[str, str], ...]
    objective: Objective


class ServiceClasses:
    """The objectives in the order in which they are matched; `adopt` others at any time."""

    __slots__ = ("_classes",)

    def __init__(self, objectives: Iterable[ClassObjective] = ()) -> None:
        self._classes: tuple[_Class, ...] = ()
        self.adopt(objectives)

    def adopt(self, objectives: Iterable[ClassObjective]) -> None:
        """Go by these from now on. Requests keep the objective that they got at their arrival."""
        self._classes = tuple(
            _Class(
                each.match.model,
                tuple((header.name, header.value) for header in each.match.headers),
                each.to_core(each.name),
            )
            for each in objectives
        )

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """All of them."""
        return tuple(each.objective for each in self._classes)

    def names(self) -> tuple[str, ...]:
        """Of all objectives."""
        return tuple(each.objective.name for each in self._classes)

    def objective(self, model: str, header: Callable[[str], str | None]) -> Objective | None:
        """That of the first class that a request belongs to; None if it belongs to none.

        `header(name)` returns the first value of a header; names are in lower case.
        """
        for each in self._classes:
            if each.model is not None and each.model != model:
                continue
            if all(header(name) == value for name, value in each.headers):
                return each.objective
        return None
