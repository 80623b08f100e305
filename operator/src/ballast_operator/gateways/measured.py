"""What the gateways of one ServingPool have counted, summed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ballast_api.attainment_report import AttainmentReport, CanaryReport, canaries_together, summed
from ballast_core.attainment import WINDOWS_S, Counts, Objective, Threshold


@dataclass(frozen=True, slots=True)
class Followed:
    """A ServingPool whose gateways are asked."""

    uid: str
    """Of the ServingPool: another one of the same name is another one."""
    objectives: tuple[Objective, ...]
    token: bytes = field(repr=False)
    """Signs what they are asked."""


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """The requests of one class at all gateways that answered."""

    objective: Objective
    by_window: Mapping[int, Mapping[Threshold, Counts]]
    """By seconds of the window."""

    @property
    def joint(self) -> Mapping[int, Counts]:
        """Those that met every threshold or not."""
        return {window_s: counts[Threshold.JOINT] for window_s, counts in self.by_window.items()}


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of asking one gateway."""

    gateway: str
    """Name of its pod."""
    report: AttainmentReport | None = None
    problem: str = ""
    """Why there is no report."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One round of asking."""

    classes: tuple[ClassCounts, ...]
    asked: int
    """Gateway pods that should answer."""
    problems: tuple[str, ...] = ()
    """Of those that did not, or that go by other objectives."""
    canaries: Mapping[str, CanaryReport] = field(default_factory=dict)
    """What was counted of a canary, by its revision."""

    def of(self, objective: Objective) -> ClassCounts | None:
        """The counts that are about these thresholds."""
        return next((each for each in self.classes if each.objective.rule == objective.rule), None)


def measured(objectives: Sequence[Objective], answers: Sequence[Answer]) -> Measured:
    """The sum of what gateways answered. A gateway that does not know an objective yet counts as one that is silent."""
    reports = [answer.report for answer in answers if answer.report is not None]
    problems = [f"{answer.gateway}: {answer.problem}" for answer in answers if answer.report is None]
    classes = []
    for objective in objectives:
        parts = [each for report in reports for each in report.objectives if each.measures(objective)]
        if len(parts) < len(reports):
            behind = len(reports) - len(parts)
            problems.append(f"{objective.name}: {behind} of {len(reports)} gateways do not go by it yet")
        if parts:
            windows = {window_s: {each: summed(parts, window_s, each) for each in Threshold} for window_s in WINDOWS_S}
            classes.append(ClassCounts(objective, windows))
    said = [report.canary for report in reports if report.canary is not None]
    canaries = {each: canaries_together(said, each) for each in {one.revision for one in said}}
    return Measured(tuple(classes), len(answers), tuple(problems), canaries)
