"""One pool that comes of one Deployment, and the pods that the operator would make of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ballast_api.hardware_profile import EngineProfile, HardwareProfileSpec
from ballast_api.serving_pool import ServingPool
from ballast_cli.adopting.found import Engine, Manifest
from ballast_cli.adopting.hardware import Hardware
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.profiles import HardwareProfile as CoreProfile
from ballast_operator.settings import GatewayDefaults
from ballast_operator.specs.engine_deployment import engine_template
from ballast_operator.specs.meta import Owner


@dataclass(frozen=True, slots=True)
class Pool:
    """A Deployment of engines, the name of its pool, and its hardware."""

    engine: Engine
    name: str
    hardware: Hardware

    @property
    def profile(self) -> HardwareProfileSpec:
        """The numbers, or any that have the right GPUs: only these are rendered."""
        if self.hardware.spec is not None:
            return self.hardware.spec
        resource = self.engine.gpus[0]
        any_one = spec_of(next(iter(SHIPPED_PROFILES.values())))
        changes: dict[str, Any] = {"gpus": self.engine.tensor_parallel_size, "node_selector": {}}
        return any_one.model_copy(update=changes | ({"resource_name": resource} if resource else {}))


def rendered_pods(found: ServingPool, pool: Pool) -> Manifest:
    """The pods that the operator makes of a pool, without a template of its own."""
    entry = next(each for each in found.spec.pools if each.name == pool.name)
    owner = Owner(name=found.name, namespace=found.namespace, uid="")
    entry = entry.model_copy(update={"template": None})
    return engine_template(owner, found.spec, entry, pool.profile, GatewayDefaults(image=""))


def spec_of(profile: CoreProfile) -> HardwareProfileSpec:
    """The resource's spec of a shipped profile."""
    return HardwareProfileSpec.parse(EngineProfile.from_core(profile).dump())
