"""What this gateway has learned of each HardwareProfile's step and prefill times, against what is declared.

Nothing is learned unless the policies in use need these times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ballast_api.profile_report import DecodeStep, LearnedProfile, ProfilesReport
from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.step_time import StepTimeModel
from ballast_core.directing.director import Director
from ballast_core.profiles import HardwareProfile

LEAST: Final = 20
"""Observations of an endpoint from which on it counts, each the mean of 2 s: before them its prior still does."""
_DECODES, _CONTEXT_TOKENS = 16, 1024
_FIELDS: Final = DecodeStep.__struct_fields__


@dataclass(slots=True)
class _Observed:
    """Endpoints of one HardwareProfile."""

    steps: list[StepTimeModel] = field(default_factory=list)
    prefills: list[tuple[int, float]] = field(default_factory=list)
    """Of each: prefills that have ended, and their factor."""


def profiles_report(director: Director, *, now_s: float, unix_s: float) -> bytes:
    """Of all endpoints that are known. `unix_s`: the clock's zero. In JSON."""
    inventory, beliefs = director.inventory, director.beliefs
    seen: defaultdict[str, _Observed] = defaultdict(_Observed)
    for slot in inventory.known_slots().tolist():
        of = seen[inventory.endpoint(slot).profile]
        if Belief.STEP_TIMES in beliefs.kinds:
            of.steps.append(beliefs.step_times.model(slot))
        if Belief.PREFILL_TIMES in beliefs.kinds:
            ended = beliefs.prefill_times.error(slot).observations
            of.prefills += [(ended, beliefs.prefill_times.factor(slot))] if ended >= LEAST else []
    declared = director.settings.profiles
    learns = Belief.STEP_TIMES in beliefs.kinds or Belief.PREFILL_TIMES in beliefs.kinds
    told = tuple(_told(name, declared, seen[name]) for name in sorted(seen) if name and learns)
    return msgspec.json.encode(ProfilesReport(unix_s=unix_s + now_s, profiles=told))


def _told(name: str, profiles: Mapping[str, HardwareProfile], seen: _Observed) -> LearnedProfile:
    profile = profiles.get(name)
    prefills = sum(count for count, _ in seen.prefills)
    found = LearnedProfile(
        name=name,
        declared=None if profile is None else _step_of(profile),
        declared_s_ms_per_pair=None if profile is None else profile.s_ms_per_pair,
        guessed=profile is not None and not profile.speed_known,
        prefill_ratio=_weighed([count / prefills for count, _ in seen.prefills], [each for _, each in seen.prefills])
        if prefills and profile is not None
        else None,
        prefills=prefills if profile is not None else 0,
        prefill_endpoints=len(seen.prefills) if profile is not None else 0,
    )
    counted = [(model, model.error) for model in seen.steps if model.error.observations >= LEAST]
    if not counted:
        return found
    total = sum(error.observations for _, error in counted)
    shares = [error.observations / total for _, error in counted]
    values = {
        field: sum(share * getattr(model.profile, field) for share, (model, _) in zip(shares, counted, strict=True))
        for field in _FIELDS
    }
    learned_s = sum(share * _step_s(model.profile) for share, (model, _) in zip(shares, counted, strict=True))
    ratio = None if profile is None else learned_s / _step_s(profile)
    return msgspec.structs.replace(
        found,
        learned=DecodeStep(**{field: round(value, 9) for field, value in values.items()}),
        endpoints=len(counted),
        observations=total,
        median_error_ratio=_weighed(shares, [error.median_ratio for _, error in counted]),
        bias_ratio=_weighed(shares, [error.bias_ratio for _, error in counted]),
        step_ratio=None if ratio is None else round(ratio, 4),
        declared_error_ratio=None if ratio is None else round(abs(ratio - 1), 4),
        decodes=_DECODES,
        context_tokens=_CONTEXT_TOKENS,
    )


def _step_of(profile: HardwareProfile) -> DecodeStep:
    return DecodeStep(**{field: getattr(profile, field) for field in _FIELDS})


def _step_s(profile: HardwareProfile) -> float:
    return profile.step_s(_DECODES, _DECODES * _CONTEXT_TOKENS, 0, _DECODES)


def _weighed(shares: Sequence[float], values: Sequence[float]) -> float:
    return round(sum(share * value for share, value in zip(shares, values, strict=True)), 4)
