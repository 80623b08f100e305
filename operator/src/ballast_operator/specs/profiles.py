"""What pods get of a HardwareProfile."""

from __future__ import annotations

from ballast_api.hardware_profile import EngineProfile, HardwareProfileSpec


def numbers_of(profile: HardwareProfileSpec) -> EngineProfile:
    """The numbers alone: an edit of prices or descriptions must not restart anything."""
    return profile.engine_profile().model_copy(update={"hardware": "", "derivation": ""})
