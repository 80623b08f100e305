"""What this gateway has learned of each HardwareProfile's step times, against what is declared.

Nothing is learned unless the policies in use need step times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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


def profiles_report(director: Director, *, now_s: float, unix_s: float) -> bytes:
    """Of all endpoints that are known. `unix_s`: the clock's zero. In JSON."""
    inventory, beliefs = director.inventory, director.beliefs
    models: defaultdict[str, list[StepTimeModel]] = defaultdict(list)
    if Belief.STEP_TIMES in beliefs.kinds:
        for slot in inventory.known_slots().tolist():
            models[inventory.endpoint(slot).profile].append(beliefs.step_times.model(slot))
    declared = director.settings.profiles
    told = tuple(_told(name, declared, models[name]) for name in sorted(models) if name)
    return msgspec.json.encode(ProfilesReport(unix_s=unix_s + now_s, profiles=told))


def _told(name: str, profiles: Mapping[str, HardwareProfile], models: Sequence[StepTimeModel]) -> LearnedProfile:
    profile = profiles.get(name)
    declared = None if profile is None else _step_of(profile)
    counted = [(model, model.error) for model in models if model.error.observations >= LEAST]
    if not counted:
        return LearnedProfile(name=name, declared=declared)
    total = sum(error.observations for _, error in counted)
    shares = [error.observations / total for _, error in counted]
    values = {
        field: sum(share * getattr(model.profile, field) for share, (model, _) in zip(shares, counted, strict=True))
        for field in _FIELDS
    }
    learned_s = sum(share * _step_s(model.profile) for share, (model, _) in zip(shares, counted, strict=True))
    return LearnedProfile(
        name=name,
        declared=declared,
        learned=DecodeStep(**{field: round(value, 9) for field, value in values.items()}),
        endpoints=len(counted),
        observations=total,
        median_error_ratio=_weighed(shares, [error.median_ratio for _, error in counted]),
        bias_ratio=_weighed(shares, [error.bias_ratio for _, error in counted]),
        declared_error_ratio=None if profile is None else round(abs(learned_s / _step_s(profile) - 1), 4),
        decodes=_DECODES,
        context_tokens=_CONTEXT_TOKENS,
    )


def _step_of(profile: HardwareProfile) -> DecodeStep:
    return DecodeStep(**{field: getattr(profile, field) for field in _FIELDS})


def _step_s(profile: HardwareProfile) -> float:
    return profile.step_s(_DECODES, _DECODES * _CONTEXT_TOKENS, 0, _DECODES)


def _weighed(shares: Sequence[float], values: Sequence[float]) -> float:
    return round(sum(share * value for share, value in zip(shares, values, strict=True)), 4)
