"""Every scaling policy that Ballast ships, by type name. `policies.registry.build` makes one of plain values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ballast_core.policies.scaling.ballast import BallastScaling
from ballast_core.policies.scaling.baselines import FixedScaling, MeansScaling, UtilisationScaling
from ballast_core.policies.scaling.protocol import Scaling

_SHIPPED: tuple[type[Scaling], ...] = (BallastScaling, FixedScaling, MeansScaling, UtilisationScaling)

SCALINGS: Mapping[str, type[Scaling]] = MappingProxyType({policy.type: policy for policy in _SHIPPED})
"""Every scaling policy, by type name."""
