"""The rule of verdicts: pure functions of what was measured and what the paper says.

- *holds*: the whole interval supports the claim, and the mean is at least half of the paper's effect (a level: within a
  tenth of the paper's; a ratio of about 1: within 3 %);
- *holds in part*: the whole interval supports the claim, and the mean is smaller (a level: within a third), or some
  of a claim's rows hold and others do not;
- *contradicted*: the whole interval lies on the other side of zero, or below a tenth of the paper's effect (a level:
  the whole interval is further off than a third);
- *inconclusive*: all else. So is an interval that touches zero, one that contains what supports and what contradicts,
  and whatever has fewer than three seeds and so no interval.

Only valid runs contradict: those whose arrivals last at least three times as long as their P99 request lives. In a
shorter one the fleet fills and empties, and its tail says more of that than of a policy. Where a run does not tell how
long its requests live it contradicts nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from bench.reproduce.results import FEWEST, Measured

HALF = 0.5
"""An effect of the paper's direction is taken for the paper's if it is at least this share of it."""
TENTH = 0.1
"""Below this share of it there is no effect to speak of."""
ABOUT_1 = 0.03
"""How near a ratio must be to one that says that nothing much changes: a tenth is as large as what policies gain."""
LIFETIMES = 3.0
"""P99 lifetimes of a request that arrivals last in a valid run."""


class Verdict(StrEnum):
    """The outcome of a claim. The report uses these words."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"
    """Our level is not the paper's, or what it names is not to be had here."""
    OPEN = "to be computed"


def valid(ours: Measured) -> bool:
    """Whether its runs are known to last for several lifetimes of a request."""
    return ours.lifetimes is not None and ours.lifetimes >= LIFETIMES


def judge_change(ours: Measured | None, paper: float) -> Verdict:
    """Of a change in percent against the paper's, which is not 0."""
    if ours is None:
        return Verdict.OPEN
    if not paper:
        raise ValueError("paper: a change of 0 has no direction; judge a level")
    share = sorted((ours.low / paper, ours.high / paper))
    if ours.count < FEWEST or share[0] <= 0 <= share[1]:
        return Verdict.INCONCLUSIVE
    if share[1] < TENTH:
        return _contradicted(ours)
    if share[0] < TENTH:
        return Verdict.INCONCLUSIVE
    return Verdict.HOLDS if ours.value / paper >= HALF else Verdict.IN_PART


def judge_direction(ours: Measured | None, direction: float) -> Verdict:
    """Of a change for which the paper has no number: holds where the whole interval has the sign of `direction`."""
    if ours is None:
        return Verdict.OPEN
    low, high = sorted((ours.low * direction, ours.high * direction))
    if ours.count < FEWEST or low <= 0 <= high:
        return Verdict.INCONCLUSIVE
    return Verdict.HOLDS if low > 0 else _contradicted(ours)


def judge_level(ours: Measured | None, paper: float, *, within: float = TENTH) -> Verdict:
    """Of a level, such as a share or a time. It holds in part to `within` times 10 / 3: a third of it by default."""
    if ours is None:
        return Verdict.OPEN
    reach = within * 10 / 3
    low, high, mean = ((each - paper) / abs(paper) for each in (ours.low, ours.high, ours.value))
    if ours.count < FEWEST:
        return Verdict.INCONCLUSIVE
    if low > reach or high < -reach:
        return _contradicted(ours)
    if low < -reach or high > reach:
        return Verdict.INCONCLUSIVE
    return Verdict.HOLDS if abs(mean) <= within else Verdict.IN_PART


def judge_limit(ours: Measured | None, most: float) -> Verdict:
    """Of a figure that the paper has at `most`: holds where the whole interval is at or below it."""
    if ours is None:
        return Verdict.OPEN
    if ours.count < FEWEST or ours.low <= most < ours.high:
        return Verdict.INCONCLUSIVE
    return Verdict.HOLDS if ours.high <= most else _contradicted(ours)


def _contradicted(ours: Measured) -> Verdict:
    return Verdict.CONTRADICTED if valid(ours) else Verdict.INCONCLUSIVE


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of several rows about one claim, by those that are computed.

    All hold, or some do, at least in part; else at least half contradict and none holds.
    """
    known = [each for each in verdicts if each is not Verdict.OPEN]
    if not known:
        return Verdict.OPEN
    if all(each is Verdict.HOLDS for each in known):
        return Verdict.HOLDS
    if Verdict.HOLDS in known or Verdict.IN_PART in known:
        return Verdict.IN_PART
    return Verdict.CONTRADICTED if 2 * known.count(Verdict.CONTRADICTED) >= len(known) else Verdict.INCONCLUSIVE
