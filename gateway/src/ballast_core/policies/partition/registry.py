"""Every partition policy that Ballast ships, by type name. None is the default: requests stay whole."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ballast_core.policies.partition.fixed import Fixed
from ballast_core.policies.partition.libra import Libra
from ballast_core.policies.partition.protocol import Partition

_SHIPPED: tuple[type[Partition], ...] = (Fixed, Libra)

PARTITIONS: Mapping[str, type[Partition]] = MappingProxyType({policy.type: policy for policy in _SHIPPED})
"""Every partition policy, by type name."""
