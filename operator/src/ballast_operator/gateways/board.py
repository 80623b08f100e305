"""Between those who ask gateways and those who look at ServingPools: what to ask for, and what is shown of the answers.

A status is written when what is shown changes, so this decides how often: figures that differ are shown after `SHOW_S`
at the earliest, a class that is met or missed now, or a gateway that is silent now, at once. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ballast_core.attainment import standing
from ballast_operator.gateways.measured import ClassCounts, Followed, Measured

SHOW_S: Final = 30.0

Name: TypeAlias = tuple[str, str]
"""Namespace and name of a ServingPool."""


@dataclass(slots=True)
class _Entry:
    followed: Followed
    shown: Measured | None = None
    newest: Measured | None = None
    since_s: float = 0.0


class Board:
    """Times are seconds on one clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Name, _Entry] = {}

    def follow(self, namespace: str, name: str, followed: Followed | None) -> None:
        """Ask the gateways of this ServingPool from now on; None: no more."""
        with self._lock:
            entry = self._entries.get((namespace, name))
            if followed is None:
                self._entries.pop((namespace, name), None)
            elif entry is None or entry.followed.uid != followed.uid:
                self._entries[namespace, name] = _Entry(followed)
            else:
                entry.followed = followed

    def followed(self) -> Mapping[Name, Followed]:
        """All whose gateways are to be asked."""
        with self._lock:
            return {name: entry.followed for name, entry in self._entries.items()}

    def shown(self, namespace: str, name: str) -> Measured | None:
        """What a status is to say; None if nothing has been asked yet."""
        with self._lock:
            entry = self._entries.get((namespace, name))
            return None if entry is None else entry.shown

    def newest(self, namespace: str, name: str) -> Measured | None:
        """What came of the last round of asking; None if nothing has been asked yet."""
        with self._lock:
            entry = self._entries.get((namespace, name))
            return None if entry is None else entry.newest

    def answered(self, name: Name, of: Followed, measured: Measured, now_s: float) -> bool:
        """A round of asking is over. Returns whether a status has something new to say."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or entry.followed.uid != of.uid:
                return False
            entry.newest, shown = measured, entry.shown
            if shown is not None and _says(shown) == _says(measured):
                due = now_s - entry.since_s >= SHOW_S and _figures(shown) != _figures(measured)
                if not due:
                    return False
            entry.shown, entry.since_s = measured, now_s
            return True


def _says(measured: Measured) -> object:
    """What cannot wait."""
    stand = [(each.objective, standing(each.joint, each.objective.target, None).met) for each in measured.classes]
    return stand, measured.asked, len(measured.problems)


def _figures(measured: Measured) -> object:
    return [_figure(each) for each in measured.classes], measured.canaries


def _figure(one: ClassCounts) -> object:
    """As people read it: the share to a tenth of a percent, the width of its interval to a percent."""
    counts = standing(one.joint, one.objective.target, None).counts
    lower, upper = counts.interval()
    share = counts.share
    return None if share is None else round(share, 3), round(upper - lower, 2), counts.requests == 0
