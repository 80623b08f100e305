"""The custom resources: those that people write, by kind, and those that the operator makes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from ballast_api.common import Resource
from ballast_api.engine_pool import EnginePool
from ballast_api.hardware_profile import HardwareProfile
from ballast_api.scheduling_policy import SchedulingPolicy
from ballast_api.service_level_objective import ServiceLevelObjective
from ballast_api.serving_pool import ServingPool

AnyResource: TypeAlias = ServingPool | SchedulingPolicy | ServiceLevelObjective | HardwareProfile

KINDS: Mapping[str, type[AnyResource]] = MappingProxyType(
    {model.kind_name: model for model in (ServingPool, SchedulingPolicy, ServiceLevelObjective, HardwareProfile)}
)
"""Those that people write."""
ALL: tuple[type[Resource], ...] = (*KINDS.values(), EnginePool)
"""Those that a cluster has."""
