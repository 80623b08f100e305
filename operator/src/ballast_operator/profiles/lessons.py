"""Between those who ask what gateways have learned and those who write statuses or scale.

A status is written when what is shown changes, so this decides how often: a judgement at once, figures that differ
after `SHOW_S` at the earliest. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ballast_api.profile_report import LearnedProfile
from ballast_operator.gateways.board import Name
from ballast_operator.profiles.learned import Accuracy, Lesson, Taught, differ, judged, kept

SHOW_S: Final = 300.0


@dataclass(slots=True)
class _Entry:
    taught: Taught
    asked: bool = False
    lessons: dict[str, Lesson] = field(default_factory=dict)
    shown: dict[str, Lesson] = field(default_factory=dict)
    since_s: dict[str, float] = field(default_factory=dict)


class Lessons:
    """Times are seconds on one clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Name, _Entry] = {}
        self._asked = False

    def follow(self, namespace: str, name: str, taught: Taught | None) -> None:
        """Ask the gateways of this ServingPool from now on; None: no more."""
        with self._lock:
            entry = self._entries.get((namespace, name))
            if taught is None:
                self._entries.pop((namespace, name), None)
            elif entry is None or entry.taught.uid != taught.uid:
                self._entries[namespace, name] = _Entry(taught)
            else:
                entry.taught = taught
                for each in [each for each in entry.lessons if each not in taught.profiles]:
                    del entry.lessons[each]
                    entry.shown.pop(each, None)

    def followed(self) -> Mapping[Name, Taught]:
        """All whose gateways are to be asked."""
        with self._lock:
            return {name: entry.taught for name, entry in self._entries.items()}

    def unasked(self) -> frozenset[Name]:
        """Those that are followed and have not been asked yet: what an earlier operator knew of them is not known."""
        with self._lock:
            return frozenset(name for name, entry in self._entries.items() if not entry.asked)

    def has_asked(self, name: Name) -> bool:
        """Whether it has been asked: until then an earlier operator's figures of it stand."""
        with self._lock:
            entry = self._entries.get(name)
            return entry is not None and entry.asked

    def asked(self) -> bool:
        """Whether any has been: until then an earlier operator's figures stand."""
        with self._lock:
            return self._asked

    def answered(self, name: Name, uid: str, learned: Mapping[str, LearnedProfile], now_s: float) -> frozenset[str]:
        """What the gateways of one ServingPool say. Returns the HardwareProfiles whose status has something new to
        say."""
        with self._lock:
            self._asked = True
            entry = self._entries.get(name)
            if entry is None or entry.taught.uid != uid:
                return frozenset()
            entry.asked = True
            news = set()
            for profile in entry.taught.profiles & learned.keys():
                before = entry.lessons.get(profile)
                known = learned[profile]
                if before is not None and before.model == entry.taught.model:
                    known = kept(before.learned, known)
                lesson = Lesson(known, model=entry.taught.model)
                lesson = judged(lesson, Accuracy.UNKNOWN if before is None else before.accuracy)
                entry.lessons[profile] = lesson
                shown = entry.shown.get(profile)
                due = shown is None or now_s - entry.since_s[profile] >= SHOW_S
                if shown is None or shown.accuracy is not lesson.accuracy or (due and differ(shown, lesson)):
                    entry.shown[profile], entry.since_s[profile] = lesson, now_s
                    news.add(profile)
            return frozenset(news)

    def of(self, name: Name) -> Mapping[str, Lesson]:
        """By HardwareProfile, as known now."""
        with self._lock:
            entry = self._entries.get(name)
            return {} if entry is None else dict(entry.lessons)

    def shown(self, profile: str) -> Mapping[Name, Lesson]:
        """What the status of a HardwareProfile is to say, by ServingPool."""
        with self._lock:
            return {name: each.shown[profile] for name, each in sorted(self._entries.items()) if profile in each.shown}
