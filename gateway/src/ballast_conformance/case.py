"""A case of the suite: what the protocol asks for, and how it is tried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from ballast_conformance.bench import Bench
from ballast_conformance.verdicts import Level, Verdict

Trial: TypeAlias = Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One requirement."""

    id: str
    level: Level
    cites: str
    """Section of the protocol."""
    requires: str
    """In one sentence."""
    trial: Trial


@dataclass(frozen=True, slots=True)
class Result:
    """What a case has shown."""

    case: Case
    verdict: Verdict
    expected: str = ""
    seen: str = ""
    seconds: float = 0.0


class Cases:
    """The cases of one part of the protocol, in order."""

    def __init__(self, part: str) -> None:
        self._part = part
        self.all: list[Case] = []

    def case(self, name: str, level: Level, cites: str, requires: str) -> Callable[[Trial], Trial]:
        """Register a trial under `part.name`. It raises `Failed` or `Skipped`, or passes."""

        def register(trial: Trial) -> Trial:
            self.all.append(Case(f"{self._part}.{name}", level, cites, requires, trial))
            return trial

        return register
