"""The hardware budget: `a100=4,h20=8`, in GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from ballast_sim.hardware_names import find_profile
from ballast_sim.naming import known_names
from ballast_sim.settings import SettingError

MOST_GPUS = 4096


class BudgetError(SettingError):
    """A budget that cannot be read or that no engine fits; the message names option and fix."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Engines of one profile that the budget pays for."""

    profile: HardwareProfile
    instances: int
    gpus: int
    """GPUs of the budget; those that make no whole engine stay unused."""


def parse_budget(
    text: str, model: str, profiles: Mapping[str, HardwareProfile] = SHIPPED_PROFILES
) -> tuple[Hardware, ...]:
    """Reads `a100=4,h20=8` (GPUs by kind of hardware) or `h20-qwen3-32b=8` (by profile). Raises `BudgetError`."""
    found: list[Hardware] = []
    for part in (piece.strip() for piece in text.split(",")):
        name, _, number = part.partition("=")
        if not name or not number.isdecimal() or not 0 < int(number) <= MOST_GPUS:
            raise BudgetError(
                "budget", f"cannot read {part!r}; write GPUs by hardware, such as a100=4,h20=8 (1 to {MOST_GPUS})"
            )
        profile = _profile(name, model, profiles)
        if any(known.profile.name == profile.name for known in found):
            raise BudgetError("budget", f"{name} is named twice; give it once")
        gpus = int(number)
        if gpus < profile.gpus:
            raise BudgetError(
                "budget",
                f"{name}={gpus}: one engine of {profile.name} takes {profile.gpus} GPUs; give more, or name "
                "a profile that takes fewer (`ballast profiles`)",
            )
        found.append(Hardware(profile, gpus // profile.gpus, gpus))
    return tuple(found)


def _profile(name: str, model: str, profiles: Mapping[str, HardwareProfile]) -> HardwareProfile:
    profile = find_profile(name, profiles, model)
    if profile is None:
        fitting = [known for known in profiles if model in known]
        known = known_names(f"{name}-{model}", fitting or profiles, "ballast profiles")
        raise BudgetError("budget", f"no profile of {model} on {name!r}; {known}; or name another --model")
    return profile
