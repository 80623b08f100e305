"""Attainment at this gateway: each request that has ended is counted once, against the objective of its class.

A gateway counts the requests that it has a record of: its clients' on the proxy face, those that it dispatched on the
picker face. So the sums of all gateways count each request of the fleet once. What counts:

- completed: by what was seen of it; where nobody saw its tokens or its end, it is not known;
- failed and rejected, once it had asked for an endpoint: missed;
- a client that left, a request that was cancelled by order, and one that was the client's own fault: not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from ballast_api.attainment_report import AttainmentReport, ObjectiveReport
from ballast_api.gateway_settings import ClassObjective
from ballast_core.attainment import Counts, Ended, Objective, Seen, Threshold, Windows, judge
from ballast_gateway.canary_counts import CanaryCounts
from ballast_gateway.errors import cancelled
from ballast_gateway.records import HOLDER_LOST, RequestRecord
from ballast_gateway.service_classes import ServiceClasses

_ENDS: Final[Mapping[str, Ended]] = {
    "completed": Ended.SERVED,
    "routed": Ended.UNSEEN,
    "failed": Ended.MISSED,
    "rejected": Ended.MISSED,
}
_BY_ORDER: Final = cancelled().code


class Attainment:
    """Counts for the objectives of `classes`, which `adopt` replaces. Times are seconds on the driver's clock; `unix_s`
    plus that clock gives seconds since 1970."""

    def __init__(self, classes: ServiceClasses, *, now_s: Callable[[], float], unix_s: float) -> None:
        self._classes = classes
        self._now_s = now_s
        self._unix_s = unix_s
        self._since_s = now_s()
        self._windows = {objective.rule: Windows() for objective in classes.objectives}
        """Of each objective, by what its counts are about."""
        self.canary: CanaryCounts | None = None
        """Counts both sides of a canary apart, while there is one."""

    def adopt(self, objectives: Iterable[ClassObjective]) -> None:
        """Go by these from now on. Counts of an objective stay as long as its name and thresholds do."""
        self._classes.adopt(objectives)
        before, now = self._windows, self._classes.objectives
        self._windows = {objective.rule: before.get(objective.rule) or Windows() for objective in now}

    def __call__(self, record: RequestRecord) -> None:
        """Count a request that has ended, and note on its record whether it met its objective."""
        objective = record.objective
        ended = None if objective is None else _end_of(record)
        if self.canary is not None:
            self.canary.served(record)
        if objective is None or ended is None:
            return
        windows = self._windows.get(objective.rule)
        tokens = record.output_tokens if record.tokens_seen else None
        judgement = judge(objective, Seen(ended, record.ttft_s, record.tpot_s, record.e2e_s, tokens))
        record.met = judgement[Threshold.JOINT]
        if windows is not None:
            windows.count(judgement, record.ended_s)
        if self.canary is not None:
            self.canary.judged(record, objective, judgement)

    def report(self) -> bytes:
        """The answer of `/ballast/v1/attainment`, in JSON."""
        now_s = self._now_s()
        counted = [ObjectiveReport.of(*each) for each in self.over(now_s)]
        since_s, unix_s = self._since_s + self._unix_s, now_s + self._unix_s
        report = AttainmentReport(
            unix_s=round(unix_s, 3),
            since_unix_s=round(since_s, 3),
            objectives=tuple(counted),
            canary=None if self.canary is None else self.canary.report(now_s),
        )
        return msgspec.json.encode(report)

    def over(self, now_s: float) -> list[tuple[Objective, Mapping[int, Mapping[Threshold, Counts]]]]:
        """Each objective with what was counted in its windows, as `Windows.over`."""
        return [(each, self._windows[each.rule].over(now_s)) for each in self._classes.objectives]

    def totals(self) -> Iterable[tuple[Objective, list[int]]]:
        """Each objective with all that was counted since the beginning, as `Windows.totals`."""
        return [(each, self._windows[each.rule].totals) for each in self._classes.objectives]


def _end_of(record: RequestRecord) -> Ended | None:
    """None: it does not count."""
    if record.reason == _BY_ORDER:
        return None
    return Ended.UNSEEN if record.reason == HOLDER_LOST else _ENDS.get(record.outcome)
