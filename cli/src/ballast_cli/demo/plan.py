"""From manifests to a local fleet: which engines, on which profile, and how the gateway is to be configured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ballast_api import names
from ballast_api.common import ApiModel
from ballast_api.faces import Face
from ballast_api.gateway_files import EndpointEntry, EndpointsFile
from ballast_api.gateway_settings import (
    ClassObjective,
    Discovery,
    GatewaySettings,
    Listeners,
    ServedModel,
)
from ballast_api.hardware_profile import HardwareProfile
from ballast_api.scheduling_policy import SchedulingPolicy, SchedulingPolicySpec
from ballast_api.service_level_objective import ServiceLevelObjective
from ballast_api.serving_pool import PoolSpec, ServingPool

MAX_ENGINES = 16
"""More processes than this share two cores badly."""


class DemoError(Exception):
    """The demo cannot run as asked; the message names the fix."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine to start."""

    name: str
    pool: str
    role: names.RoleName
    profile: HardwareProfile
    tensor_parallel_size: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the manifests ask for, ready to be run as local processes."""

    pool: ServingPool
    engines: tuple[Engine, ...]
    policy_name: str
    policy: SchedulingPolicySpec
    objective: ServiceLevelObjective | None
    """Of the requests that are sent."""

    @property
    def shape(self) -> str:
        """Such as `2P4D`."""
        letters = {"Prefill": "P", "Decode": "D", "Flexible": "F"}
        counts = {role: sum(engine.role == role for engine in self.engines) for role in letters}
        return "".join(f"{count}{letters[role]}" for role, count in counts.items() if count)


def plan_fleet(resources: Sequence[ApiModel]) -> Fleet:
    """The one ServingPool among the manifests with what it refers to. Raises `DemoError`."""
    pools = [resource for resource in resources if isinstance(resource, ServingPool)]
    if len(pools) != 1:
        raise DemoError(f"the manifests must hold exactly one ServingPool, not {len(pools)}")
    (pool,) = pools
    profiles = {r.metadata.name: r for r in resources if isinstance(r, HardwareProfile)}
    engines = tuple(engine for index, part in enumerate(pool.spec.pools) for engine in _engines(index, part, profiles))
    if not engines:
        raise DemoError("spec.pools ask for no instance at all: set replicas to 1 or more")
    if len(engines) > MAX_ENGINES:
        raise DemoError(
            f"spec.pools ask for {len(engines)} instances; the demo runs at most {MAX_ENGINES} on one machine"
        )
    policy_ref = pool.spec.policy_ref
    policies = {r.metadata.name: r for r in resources if isinstance(r, SchedulingPolicy)}
    if policy_ref is not None and policy_ref.name not in policies:
        raise DemoError(f"spec.policyRef names {policy_ref.name!r}, but no manifest holds that SchedulingPolicy")
    return Fleet(
        pool=pool,
        engines=engines,
        policy_name=policy_ref.name if policy_ref else "default",
        policy=policies[policy_ref.name].spec if policy_ref else SchedulingPolicySpec(),
        objective=_objective(pool, {r.metadata.name: r for r in resources if isinstance(r, ServiceLevelObjective)}),
    )


def _objective(pool: ServingPool, known: Mapping[str, ServiceLevelObjective]) -> ServiceLevelObjective | None:
    """That of the demo's requests, which name the model and carry no headers."""
    for name in pool.spec.objective_names:
        if name not in known:
            field = "sloRef" if pool.spec.slo_ref is not None else "sloRefs"
            raise DemoError(f"spec.{field} names {name!r}, but no manifest holds that ServiceLevelObjective")
    asked = (None, pool.spec.model.all_served_names()[0])
    found = (known[name] for name in pool.spec.objective_names)
    return next((one for one in found if one.spec.match.model in asked and not one.spec.match.headers), None)


def _engines(index: int, part: PoolSpec, profiles: dict[str, HardwareProfile]) -> list[Engine]:
    profile = profiles.get(part.hardware)
    if profile is None:
        raise DemoError(
            f"spec.pools[{index}].hardware names {part.hardware!r}, but no manifest holds that HardwareProfile"
        )
    return [
        Engine(
            name=f"{part.name}-{number}",
            pool=part.name,
            role=part.role,
            profile=profile,
            tensor_parallel_size=part.tensor_parallel_size or profile.spec.gpus,
        )
        for number in range(part.wanted_replicas)
    ]


def gateway_settings(
    fleet: Fleet, policy: SchedulingPolicySpec, endpoints: Path, *, proxy_port: int, admin_port: int
) -> GatewaySettings:
    """The settings of a local gateway in front of the fleet, which reads its endpoints from that file."""
    return GatewaySettings(
        model=ServedModel(served_names=fleet.pool.spec.model.all_served_names()),
        face=Face.PROXY,
        policy=policy,
        discovery=Discovery(file=str(endpoints)),
        profiles={engine.profile.metadata.name: engine.profile.spec for engine in fleet.engines},
        objectives=() if fleet.objective is None else (_class_of(fleet.objective),),
        listeners=Listeners(host="127.0.0.1", proxy=proxy_port, admin=admin_port),
        log_level="warning",
    )


def _class_of(objective: ServiceLevelObjective) -> ClassObjective:
    given = {name: getattr(objective.spec, name) for name in objective.spec.model_fields_set}
    return ClassObjective(name=objective.metadata.name, **given)


def endpoints_file(engines: Sequence[Engine], ports: Sequence[int]) -> EndpointsFile:
    """Where the engines listen on this machine; `ports[k]` belongs to `engines[k]`."""
    return EndpointsFile(
        endpoints=tuple(
            EndpointEntry(
                name=engine.name,
                address=f"127.0.0.1:{port}",
                role=names.core_role(engine.role).value,
                pool=engine.pool,
                profile=engine.profile.metadata.name,
            )
            for engine, port in zip(engines, ports, strict=True)
        )
    )
