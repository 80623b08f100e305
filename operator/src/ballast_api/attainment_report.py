"""What a gateway's `/ballast/v1/attainment` answers: counts by objective, window and threshold.

Counts of several gateways add up exactly; shares and intervals are the reader's to make of the sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ballast_core.attainment import Counts, Objective, Threshold

_TALLIED = ("within", "outside", "unknown")
ATTAINMENT = "/ballast/v1/attainment"
"""Path of the admin API."""
Windows = Mapping[int, Mapping[Threshold, Counts]]
"""By seconds of the window."""


class Tally(msgspec.Struct, frozen=True):
    """Requests that ended in a window, for one threshold."""

    within: int
    outside: int
    unknown: int
    """Nobody saw enough of them."""


class ObjectiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one class at one gateway."""

    name: str
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    target: float
    windows: dict[str, dict[str, Tally]]
    """Seconds of the window -> ttft, tpot, e2e (those that are set) or joint -> counts."""

    @classmethod
    def of(cls, objective: Objective, windows: Windows) -> ObjectiveReport:
        """What a gateway has counted."""
        said = {
            str(window_s): {each.name.lower(): Tally(*_columns(by_threshold[each])) for each in objective.thresholds}
            for window_s, by_threshold in windows.items()
        }
        return cls(
            name=objective.name,
            ttft_s=objective.ttft_s,
            tpot_s=objective.tpot_s,
            e2e_s=objective.e2e_s,
            target=objective.target,
            windows=said,
        )

    @property
    def rule(self) -> tuple[str, float | None, float | None, float | None]:
        """As `Objective.rule`."""
        return self.name, self.ttft_s, self.tpot_s, self.e2e_s

    def measures(self, objective: Objective) -> bool:
        """Whether its counts are about the thresholds of this objective."""
        return self.rule == objective.rule

    def counts(self, window_s: int, threshold: Threshold) -> Counts:
        """Of one window; none where the gateway has no such window, or the objective no such threshold."""
        tally = self.windows.get(str(window_s), {}).get(threshold.name.lower())
        return Counts() if tally is None else Counts(tally.within, tally.outside, tally.unknown)


class SideReport(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one side of a canary, over the longest window."""

    served: Tally
    """Within: those that their first endpoints served. Outside: those of which a leg failed, and those that failed."""
    objectives: dict[str, Tally] = {}
    """Joint counts by name of the objective."""


class CanaryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway has counted since it weighs this revision."""

    revision: str
    canary: SideReport
    others: SideReport
    """All other revisions together."""


class AttainmentReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Fields that a later release adds are ignored."""

    unix_s: float
    since_unix_s: float
    """When it began to count: windows that reach back further are of a part of their time."""
    objectives: tuple[ObjectiveReport, ...] = ()
    canary: CanaryReport | None = None
    """Both sides of the settings' canary; left out without one."""


def read_report(body: bytes) -> AttainmentReport:
    """Raises `ValueError`, which names what is wrong."""
    try:
        return msgspec.json.decode(body, type=AttainmentReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{ATTAINMENT}: {error}") from error


def together(reports: Sequence[AttainmentReport]) -> bytes:
    """The report of one gateway whose workers gave these. In JSON. Workers take new objectives one after the other:
    counts of other thresholds stay apart."""
    by_rule: dict[object, list[ObjectiveReport]] = {}
    for report in reports:
        for each in report.objectives:
            by_rule.setdefault(each.rule, []).append(each)
    objectives = []
    for parts in by_rule.values():
        first = parts[0]
        windows = {
            window_s: {
                name: Tally(
                    *(sum(getattr(part.windows[window_s][name], field) for part in parts) for field in _TALLIED)
                )
                for name in tallies
            }
            for window_s, tallies in first.windows.items()
        }
        objectives.append(msgspec.structs.replace(first, windows=windows))
    canaries = [each.canary for each in reports if each.canary is not None]
    newest_s, since_s = max(each.unix_s for each in reports), max(each.since_unix_s for each in reports)
    return msgspec.json.encode(
        AttainmentReport(
            unix_s=newest_s,
            since_unix_s=since_s,
            objectives=tuple(objectives),
            canary=canaries_together(canaries, canaries[0].revision) if canaries else None,
        )
    )


def canaries_together(reports: Sequence[CanaryReport], revision: str) -> CanaryReport:
    """The sums of those that are about this revision."""
    about = [each for each in reports if each.revision == revision]
    return CanaryReport(
        revision=revision,
        canary=_sides_together([each.canary for each in about]),
        others=_sides_together([each.others for each in about]),
    )


def _sides_together(sides: Sequence[SideReport]) -> SideReport:
    named = sorted({name for side in sides for name in side.objectives})
    return SideReport(
        served=_tallied(side.served for side in sides),
        objectives={
            name: _tallied(side.objectives[name] for side in sides if name in side.objectives) for name in named
        },
    )


def _tallied(tallies: Iterable[Tally]) -> Tally:
    found = list(tallies)
    return Tally(*(sum(getattr(each, field) for each in found) for field in _TALLIED))


def summed(reports: Iterable[ObjectiveReport], window_s: int, threshold: Threshold) -> Counts:
    """The counts of several gateways together."""
    total = Counts()
    for report in reports:
        total = total.plus(report.counts(window_s, threshold))
    return total


def _columns(counts: Counts) -> tuple[int, int, int]:
    return counts.within, counts.outside, counts.unknown
