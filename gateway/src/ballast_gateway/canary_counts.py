"""Requests of a canary and of all other revisions, counted apart.

A request belongs to the side whose endpoint served it last. One that the canary was to serve, and of which a leg
failed, belongs to the canary, whoever served it in the end: a retry elsewhere must not hide that failure.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from ballast_api.attainment_report import CanaryReport, SideReport, Tally
from ballast_core.attainment import WINDOWS_S, Counts, Objective, Threshold, Windows
from ballast_core.attainment.objective import Judgement
from ballast_core.model import EndpointId
from ballast_core.model.canary import Canary
from ballast_core.state.inventory import Inventory
from ballast_gateway.errors import cancelled
from ballast_gateway.records import RequestRecord

_COUNTED: Final = frozenset({"completed", "failed", "routed"})
"""Outcomes of requests that an endpoint has had."""
_BY_ORDER: Final = cancelled().code
_REMEMBERED: Final = 4096
"""Endpoints whose revision is remembered after they are gone."""


class _Side:
    """Counts of one side. They are few: one set for each objective, of which there are 16 at most at a time."""

    def __init__(self) -> None:
        self.served = Windows()
        self.objectives: defaultdict[tuple[str, float | None, float | None, float | None], Windows] = defaultdict(
            Windows
        )

    def report(self, now_s: float) -> SideReport:
        """What was counted."""
        return SideReport(
            served=_tally(self.served, now_s),
            objectives={rule[0]: _tally(windows, now_s) for rule, windows in self.objectives.items()},
        )


class CanaryCounts:
    """Counts for one canary. Times are seconds on the driver's clock."""

    def __init__(self, canary: Canary, inventory: Inventory) -> None:
        self.canary = canary
        self._inventory = inventory
        self._revisions: dict[str, str] = {}
        self._remember()
        self._sides = {True: _Side(), False: _Side()}

    def served(self, record: RequestRecord) -> None:
        """Count whether the endpoints of a request that has ended served it at once."""
        side = self._side_of(record)
        if side is not None and record.outcome in _COUNTED and record.reason != _BY_ORDER:
            well = None if record.outcome == "routed" else record.outcome == "completed" and not record.faults
            side.served.count((well,) * 4, record.ended_s)

    def judged(self, record: RequestRecord, objective: Objective, judgement: Judgement) -> None:
        """Count what a request was against its objective."""
        side = self._side_of(record)
        if side is not None:
            if len(side.objectives) >= 16 and objective.rule not in side.objectives:
                side.objectives.pop(next(iter(side.objectives)))
            side.objectives[objective.rule].count(judgement, record.ended_s)

    def report(self, now_s: float) -> CanaryReport:
        """Both sides."""
        self._remember()
        canary, others = (self._sides[each].report(now_s) for each in (True, False))
        return CanaryReport(revision=self.canary.revision, canary=canary, others=others)

    def _side_of(self, record: RequestRecord) -> _Side | None:
        """None: no endpoint had it, or nobody knows which revision that was."""
        last = record.decode or record.prefill
        slot = self._inventory.slot_of(EndpointId(last)) if last else None
        if slot is not None:
            self._revisions[last] = self._inventory.endpoint(slot).revision
        revision = self._revisions.get(last)
        if revision is None:
            return None
        return self._sides[revision == self.canary.revision or self._left_canary(record)]

    def _left_canary(self, record: RequestRecord) -> bool:
        """Whether it was to be served by the canary, which was there, and a leg failed."""
        if not record.faults or self.canary.revision not in self._revisions.values():
            return False
        return self.canary.takes(record.id if record.asked is None else record.asked.id)

    def _remember(self) -> None:
        """Endpoints that may be gone when a request of theirs ends."""
        if len(self._revisions) > _REMEMBERED:
            self._revisions.clear()
        for slot in self._inventory.known_slots().tolist():
            endpoint = self._inventory.endpoint(slot)
            self._revisions[endpoint.id] = endpoint.revision


def _tally(windows: Windows, now_s: float) -> Tally:
    counts: Counts = windows.over(now_s)[WINDOWS_S[-1]][Threshold.JOINT]
    return Tally(counts.within, counts.outside, counts.unknown)
