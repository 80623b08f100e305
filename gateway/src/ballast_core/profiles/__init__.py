"""Hardware profiles: the step-time law, what it can carry, and the profiles that Ballast ships (docs/profiles.md)."""

from collections.abc import Mapping
from types import MappingProxyType

from ballast_core.profiles.derived import DERIVED_PROFILES
from ballast_core.profiles.law import HardwareProfile
from ballast_core.profiles.pinned import A100_QWEN3_32B, H20_QWEN3_32B, H200_LLAMA3_8B
from ballast_core.profiles.uninformed import UNINFORMED_PROFILE

SHIPPED_PROFILES: Mapping[str, HardwareProfile] = MappingProxyType(
    {profile.name: profile for profile in (H20_QWEN3_32B, A100_QWEN3_32B, H200_LLAMA3_8B, *DERIVED_PROFILES)}
)
"""Every shipped profile by name, the pinned ones first."""

__all__ = [
    "A100_QWEN3_32B",
    "H20_QWEN3_32B",
    "H200_LLAMA3_8B",
    "SHIPPED_PROFILES",
    "UNINFORMED_PROFILE",
    "HardwareProfile",
]
