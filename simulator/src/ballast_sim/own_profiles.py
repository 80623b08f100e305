"""Hardware profiles from HardwareProfile manifests, beside the shipped ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ballast_api.errors import InvalidInput
from ballast_api.hardware_profile import HardwareProfile as Manifest
from ballast_api.loading import load_manifest_files
from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile


class ProfileFileError(ValueError):
    """A file of profiles that cannot be used; the message names option, file, profile, and the fix."""


def read_profiles(paths: Iterable[Path]) -> Mapping[str, HardwareProfile]:
    """The shipped profiles and those of manifests, as `ballast profile fit` writes them, by name.

    Objects of other kinds are passed over. A name means one set of numbers: an entry with a name that is taken is
    refused unless its numbers are the same. Raises `ProfileFileError`.
    """
    known = dict(SHIPPED_PROFILES)
    for path in paths:
        for profile in _profiles_of(path):
            taken = known.setdefault(profile.name, profile)
            if taken != profile:
                owner = "a shipped profile" if profile.name in SHIPPED_PROFILES else "another one read before it"
                differs = ", ".join(
                    name for name in profile.__dataclass_fields__ if getattr(profile, name) != getattr(taken, name)
                )
                raise ProfileFileError(
                    f"--profiles: {path}: {profile.name} is also the name of {owner}, which differs in {differs}; "
                    "give it another metadata.name"
                )
    return known


def read_node_selectors(paths: Iterable[Path]) -> Mapping[str, Mapping[str, str]]:
    """Of the manifests' profiles that have one, by the profile's name. Raises `ProfileFileError`."""
    manifests = [item for path in paths for item in _manifests_of(path)]
    return {item.name: dict(item.spec.node_selector) for item in manifests if item.spec.node_selector}


def _profiles_of(path: Path) -> list[HardwareProfile]:
    manifests = _manifests_of(path)
    try:
        return [item.spec.to_simulate(item.name) for item in manifests]
    except ValueError as error:
        raise ProfileFileError(f"--profiles: {path}: {error}") from None


def _manifests_of(path: Path) -> list[Manifest]:
    if path.is_dir() or not path.exists():
        reason = "is a folder" if path.is_dir() else "does not exist"
        raise ProfileFileError(f"--profiles: {path}: {reason}; name a file of HardwareProfile manifests")
    try:
        resources = load_manifest_files(path)
    except InvalidInput as error:
        raise ProfileFileError(f"--profiles: {error}") from None
    manifests = [item for item in resources if isinstance(item, Manifest)]
    if not manifests:
        raise ProfileFileError(
            f"--profiles: {path}: holds no HardwareProfile; `ballast profile fit --output FILE` writes one"
        )
    return manifests
