"""Every rescheduling policy that Ballast ships, by type name. `policies.registry.build` makes one of plain values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ballast_core.policies.rescheduling.ares import Ares
from ballast_core.policies.rescheduling.protocol import Rescheduling

_SHIPPED: tuple[type[Rescheduling], ...] = (Ares,)

RESCHEDULINGS: Mapping[str, type[Rescheduling]] = MappingProxyType({policy.type: policy for policy in _SHIPPED})
"""Every rescheduling policy, by type name."""
