"""Shapes of fleets: `8P@a100-qwen3-32b,4D@h20-qwen3-32b`, or `2P4D` with one profile everywhere.

P prefill, D decode, F flexible: both, for one request or for different ones. C colocated: each endpoint does both
stages of its own requests, and there is no hand-off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ballast_core.model import Endpoint, EndpointId, Role
from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from ballast_sim.hardware_names import find_profile
from ballast_sim.naming import known_names
from ballast_sim.settings import SettingError

_PART = re.compile(r"(\d+)([PDFC])", re.ASCII)
_ROLES = {"P": Role.PREFILL, "D": Role.DECODE, "F": Role.FLEXIBLE, "C": Role.FLEXIBLE}


MOST_ENDPOINTS = 10_000


class ShapeError(SettingError):
    """A shape that cannot be read or cannot serve; the message names the fix."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One endpoint of the fleet and the hardware under it."""

    endpoint: Endpoint
    profile: HardwareProfile
    started_as: Role | None = None
    """The role for which its engine was configured, where the endpoint's has changed since; None: the endpoint's."""

    @property
    def engine_role(self) -> Role:
        """The role for which its engine is configured."""
        return self.started_as or self.endpoint.role


def parse_shape(
    text: str, profile: str | None = None, profiles: Mapping[str, HardwareProfile] = SHIPPED_PROFILES
) -> tuple[Machine, ...]:
    """The machines of a shape; `profile` is the one of parts that name none. Raises `ShapeError`.

    Hardware alone stands for its profile of `DEFAULT_MODEL`.
    """
    if profile is not None and find_profile(profile, profiles) is None:
        raise ShapeError(
            "profile", f"unknown profile {profile!r}; " + known_names(profile, profiles, "ballast profiles")
        )
    machines: list[Machine] = []
    letters: set[str] = set()
    for part in text.split(","):
        counts, _, named = part.strip().partition("@")
        name = named or profile
        found = _PART.findall(counts)
        if not found or "".join(number + letter for number, letter in found) != counts:
            raise ShapeError("endpoints", f"cannot read {part.strip()!r}; write such as 2P4D or 8P@PROFILE,4D@PROFILE")
        if name is None:
            raise ShapeError("endpoints", f"{part.strip()!r} names no profile; add @PROFILE or --profile PROFILE")
        hardware = find_profile(name, profiles)
        if hardware is None:
            raise ShapeError(
                "endpoints", f"unknown profile {name!r}; " + known_names(name, profiles, "ballast profiles")
            )
        for number, letter in found:
            if not number.strip("0"):
                raise ShapeError("endpoints", f"{part.strip()!r} asks for 0 endpoints; ask for 1 or more")
            letters.add(letter)
            if len(number) > len(str(MOST_ENDPOINTS)) or len(machines) + int(number) > MOST_ENDPOINTS:
                raise ShapeError("endpoints", f"more than {MOST_ENDPOINTS:,} endpoints; ask for fewer")
            first = sum(machine.endpoint.role is _ROLES[letter] for machine in machines)
            for index in range(first, first + int(number)):
                endpoint_id = EndpointId(f"{letter.lower()}{index:03d}")
                address, role = f"{endpoint_id}:8000", _ROLES[letter]
                endpoint = Endpoint(endpoint_id, address, role, pool=hardware.name, profile=hardware.name)
                machines.append(Machine(endpoint, hardware))
    if "C" in letters and len(letters) > 1:
        raise ShapeError(
            "endpoints",
            "colocated endpoints (C) keep both stages of a request and share it with none; "
            "take C alone, or F for endpoints that work with P and D",
        )
    roles = {machine.endpoint.role for machine in machines}
    if Role.FLEXIBLE not in roles and not roles >= {Role.PREFILL, Role.DECODE}:
        raise ShapeError(
            "endpoints",
            "needs at least one prefill (P) and one decode (D) endpoint, or a flexible one (F), or a colocated one (C)",
        )
    return tuple(machines)
