"""What the operator has read: one frozen value that holds everything a plan needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast_api.serving_pool import ParentRef
from ballast_operator.kinds import Kind, Manifest, ObjectKey, key_of
from ballast_operator.settings import GatewayDefaults


@dataclass(frozen=True, slots=True)
class ApplyFailure:
    """A write that the API server refused, or that would have taken somebody else's object."""

    key: ObjectKey
    message: str
    conflict: bool = False
    """True when the object belongs to somebody else."""


@dataclass(frozen=True, slots=True)
class Input:
    """One ServingPool and its surroundings at one moment. Objects are as the API server gave them."""

    pool: Manifest
    """The ServingPool."""
    now: str
    """The moment, RFC 3339 in UTC."""
    gateway_defaults: GatewayDefaults
    """For gateways that the spec leaves open."""
    policy: Manifest | None = None
    """The SchedulingPolicy of policyRef; None if there is none of that name."""
    objective: Manifest | None = None
    """The ServiceLevelObjective of sloRef; None if there is none of that name."""
    profiles: Mapping[str, Manifest] = field(default_factory=dict)
    """Those HardwareProfiles of the spec that exist, by name."""
    children: tuple[Manifest, ...] = ()
    """Objects whose controller is this ServingPool."""
    pods: tuple[Manifest, ...] = ()
    """Its pods, if something is not ready; else empty: nobody needs them then."""
    optional_kinds: frozenset[Kind] = frozenset()
    """Those optional kinds that the cluster has."""
    missing_parents: tuple[ParentRef, ...] = ()
    """Gateways of parentRefs that do not exist."""
    failures: tuple[ApplyFailure, ...] = ()
    """Writes of this very round that failed: they belong into the status."""

    def child(self, key: ObjectKey) -> Manifest | None:
        """The child of that name, if it exists."""
        return next((child for child in self.children if key_of(child) == key), None)
