"""Profiles by the names that people use: a profile's own, or its hardware alone, as `h20` for `h20-qwen3-32b`."""

from __future__ import annotations

from collections.abc import Mapping

from ballast_core.profiles import HardwareProfile

DEFAULT_MODEL = "qwen3-32b"
"""The model that hardware alone stands for."""


def find_profile(
    name: str, profiles: Mapping[str, HardwareProfile], model: str = DEFAULT_MODEL
) -> HardwareProfile | None:
    """By its own name, as `HARDWARE-MODEL`, or the fewest GPUs of `HARDWARE-MODEL-tpN`; None where there is none."""
    for exact in (name, f"{name}-{model}"):
        if exact in profiles:
            return profiles[exact]
    by_size = [profile for known, profile in profiles.items() if known.startswith(f"{name}-{model}-tp")]
    return min(by_size, key=lambda profile: profile.gpus, default=None)
