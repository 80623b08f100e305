"""Which fault does this request get? Decided from the faults, their dice and what they have had already."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from ballast_sim.engine_sim.misbehave.facts import Facts
from ballast_sim.engine_sim.misbehave.faults import NAMES, Fault, OfRequests, RequestFault, write_fault


class _Scoped:
    """A fault of requests that is switched on."""

    def __init__(self, fault: OfRequests) -> None:
        self.fault = fault
        self.given = 0
        self._dice = Random(fault.scope.seed)

    def takes(self, facts: Facts) -> bool:
        """Whether it takes a request. The die is thrown last, so that its throws belong to requests that may be hit."""
        fault, scope = self.fault, self.fault.scope
        if scope.requests is not None and self.given >= scope.requests:
            return False
        if not _on_path(facts.path, scope.paths or fault.PATHS):
            return False
        if scope.legs not in ("all", facts.leg):
            return False
        if scope.prompt is not None and scope.prompt not in facts.prompt:
            return False
        return fault.touches(facts) and (scope.share == 1.0 or self._dice.random() < scope.share)


def _on_path(path: str, patterns: Iterable[str]) -> bool:
    return any(path.startswith(p[:-1]) if p.endswith("*") else path == p for p in patterns)


class Misbehaviour:
    """The faults that are on, and how often each kind has shown."""

    def __init__(self) -> None:
        """No fault."""
        self._scoped: list[_Scoped] = []
        self._others: list[Fault] = []
        self._shown = dict.fromkeys(NAMES, 0)

    def replace(self, faults: Sequence[Fault]) -> None:
        """These faults from now on, with fresh dice and budgets."""
        self._scoped = [_Scoped(fault) for fault in faults if isinstance(fault, RequestFault)]
        self._others = [fault for fault in faults if not isinstance(fault, RequestFault)]

    def choose(self, facts: Facts) -> OfRequests | None:
        """The request's fault: the first that takes it."""
        for scoped in self._scoped:
            if scoped.takes(facts):
                scoped.given += 1
                return scoped.fault
        return None

    def has_shown(self, fault: Fault, times: int = 1) -> None:
        """A fault took effect."""
        self._shown[fault.fault] += times

    def state(self) -> dict[str, Any]:
        """The faults that are on, with the requests that got each, and how often each kind has shown so far."""
        faults = [{**write_fault(scoped.fault), "given": scoped.given} for scoped in self._scoped]
        return {"faults": faults + [write_fault(fault) for fault in self._others], "shown": dict(self._shown)}
