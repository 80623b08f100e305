"""What gateways have learned of engines, one ServingPool and HardwareProfile at a time, and what follows. Pure.

A profile that is more than `OFF` from what was learned is not accurate, until it is within `NEAR` again. One that
declares no speed has what was learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

import msgspec

from ballast_api.profile_report import LearnedProfile
from ballast_core.model import Role
from ballast_core.profiles import HardwareProfile
from ballast_operator.scaling.steered import Steered, SteeredPool

OFF: Final = 0.25
NEAR: Final = 0.2
LEAST_OBSERVATIONS: Final = 60
"""Of steps, and of prefills: fewer say nothing of a profile."""
MOST_ERROR: Final = 0.5
"""Predictions of steps that miss by more, in the median, are not learned well."""
MATERIAL: Final = 0.05
"""Ratios that differ by less are not worth writing."""


class Accuracy(Enum):
    """Of a declared profile in one ServingPool."""

    UNKNOWN = auto()
    ACCURATE = auto()
    SLOWER = auto()
    """Engines are, than declared."""
    FASTER = auto()
    LEARNED = auto()
    """Nothing is declared, and enough was learned."""

    @property
    def off(self) -> bool:
        """Whether the profile is not accurate."""
        return self in {Accuracy.SLOWER, Accuracy.FASTER}

    @property
    def corrects(self) -> bool:
        """Whether what was learned counts in place of the profile."""
        return self.off or self is Accuracy.LEARNED


@dataclass(frozen=True, slots=True)
class Taught:
    """A ServingPool whose gateways are asked."""

    uid: str
    model: str
    profiles: frozenset[str]
    """HardwareProfiles that its pools name."""
    token: bytes = field(repr=False)
    """Signs what they are asked."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the gateways of one ServingPool have learned of one HardwareProfile."""

    learned: LearnedProfile
    accuracy: Accuracy = Accuracy.UNKNOWN
    model: str = ""

    @property
    def step_ratio(self) -> float | None:
        """Learned over declared time of a decode step; None where too little is known."""
        known = self.learned.observations >= LEAST_OBSERVATIONS and self.learned.median_error_ratio <= MOST_ERROR
        return self.learned.step_ratio if known else None

    @property
    def prefill_ratio(self) -> float | None:
        """Learned over declared time of a prefill; None where too little is known."""
        return self.learned.prefill_ratio if self.learned.prefills >= LEAST_OBSERVATIONS else None

    @property
    def ratios(self) -> tuple[float, ...]:
        """Those that are known."""
        return tuple(each for each in (self.step_ratio, self.prefill_ratio) if each is not None)


def judged(lesson: Lesson, before: Accuracy) -> Lesson:
    """The lesson with its judgement; `before`: the last one."""
    if not lesson.ratios:
        return replace(lesson, accuracy=Accuracy.UNKNOWN)
    if lesson.learned.guessed:
        return replace(lesson, accuracy=Accuracy.LEARNED)
    furthest = max(lesson.ratios, key=lambda ratio: max(ratio, 1 / max(ratio, 1e-9)))
    bound = NEAR if before.off else OFF
    if 1 / (1 + bound) <= furthest <= 1 + bound:
        return replace(lesson, accuracy=Accuracy.ACCURATE)
    return replace(lesson, accuracy=Accuracy.SLOWER if furthest > 1 else Accuracy.FASTER)


def corrected(steered: Steered, lessons: Mapping[str, Lesson]) -> Steered:
    """With learned numbers in place of those of profiles that are not accurate, or declare none."""
    pools = tuple(
        replace(pool, profile=_corrected(pool, lesson))
        if (lesson := lessons.get(pool.profile.name)) is not None
        and lesson.accuracy.corrects
        and _is_of(lesson.learned, pool.profile)
        else pool
        for pool in steered.pools
    )
    return replace(steered, pools=pools)


def _is_of(learned: LearnedProfile, profile: HardwareProfile) -> bool:
    """Whether it was learned beside these very numbers: ratios to others say nothing of them."""
    if learned.declared is None or learned.guessed is profile.speed_known:
        return False
    numbers = msgspec.structs.asdict(learned.declared)
    if learned.declared_s_ms_per_pair is not None:
        numbers["s_ms_per_pair"] = learned.declared_s_ms_per_pair
    return numbers == {name: getattr(profile, name) for name in numbers}


def kept(before: LearnedProfile, after: LearnedProfile) -> LearnedProfile:
    """What is known after gateways or engines were replaced: what was learned of the last ones counts until as much is
    known of the new ones."""
    if before.beside != after.beside:
        return after
    found = after
    if after.observations < LEAST_OBSERVATIONS <= before.observations:
        of_steps = ("learned", "step_ratio", "observations", "median_error_ratio", "bias_ratio", "endpoints")
        found = msgspec.structs.replace(found, **{name: getattr(before, name) for name in of_steps})
    if after.prefills < LEAST_OBSERVATIONS <= before.prefills:
        found = msgspec.structs.replace(found, prefill_ratio=before.prefill_ratio, prefills=before.prefills)
    return found


def _corrected(pool: SteeredPool, lesson: Lesson) -> HardwareProfile:
    """Decode steps have coefficients of their own; a prefill has one factor, of what computes prompts."""
    profile, step, prefill = pool.profile, lesson.learned.learned, lesson.prefill_ratio
    numbers: dict[str, float] = {}
    if step is not None and lesson.step_ratio is not None and pool.role is not Role.PREFILL:
        numbers |= msgspec.structs.asdict(step)
    if prefill is not None and pool.role is not Role.DECODE:
        fields = ["d_ms_per_token", "s_ms_per_pair"]
        fields += ["overhead_ms", "a_ms"] if pool.role is Role.PREFILL else []
        numbers |= {field: getattr(profile, field) * prefill for field in fields}
    if not numbers:
        return profile
    known = profile.speed_known or (
        (pool.role is Role.PREFILL or lesson.step_ratio is not None)
        and (pool.role is Role.DECODE or prefill is not None)
    )
    return replace(profile, name=f"{profile.name} as learned", speed_known=known, **numbers)  # type: ignore[arg-type]


def differ(one: Lesson, other: Lesson) -> bool:
    """Whether figures differ by as much as a status tells."""
    pairs = ((one.step_ratio, other.step_ratio), (one.prefill_ratio, other.prefill_ratio))
    return any(
        (a is None) != (b is None) or (a is not None and b is not None and abs(b / a - 1) > MATERIAL) for a, b in pairs
    )
