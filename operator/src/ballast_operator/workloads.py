"""The Deployments of a ServingPool: what was observed of each, compared with what is planned. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ballast_api import names
from ballast_api.serving_pool import PoolSpec, ServingPoolSpec
from ballast_operator.kinds import DEPLOYMENT, Manifest, ObjectKey
from ballast_operator.observed import Observed
from ballast_operator.rollout import Counts


@dataclass(frozen=True, slots=True)
class Workload:
    """Pods of one Deployment, compared with what is wanted of it."""

    name: str
    """Name of the Deployment."""
    wanted: int
    """Pods that the spec asks for."""
    total: int = 0
    """Pods that exist, of any revision."""
    ready: int = 0
    """Those that are ready."""
    updated: int = 0
    """Those of the newest revision."""
    current: bool = False
    """Whether these numbers are of the newest spec of the Deployment."""
    stuck: bool = False
    """Whether the Deployment missed its progress deadline."""

    @property
    def complete(self) -> bool:
        """Whether all pods are of the newest revision, in the wanted number, and ready."""
        return self.current and self.wanted == self.total == self.ready == self.updated

    @property
    def replacing(self) -> bool:
        """Whether pods of an older revision are left."""
        return self.total > self.updated


@dataclass(frozen=True, slots=True)
class Fleet:
    """All Deployments of one ServingPool."""

    gateway: Workload
    pools: tuple[tuple[PoolSpec, Workload], ...]
    """In the order of the spec."""

    def workloads(self) -> tuple[Workload, ...]:
        """The gateway's, then the pools'."""
        return (self.gateway, *(item for _, item in self.pools))

    def with_role(self, *roles: names.RoleName) -> tuple[Workload, ...]:
        """Those of the pools that have one of these roles."""
        return tuple(item for pool, item in self.pools if pool.role in roles)


def fleet_of(
    observed: Observed,
    spec: ServingPoolSpec,
    instances: Mapping[str, int],
    deployments: Mapping[str, str],
    outdated: Collection[ObjectKey],
) -> Fleet:
    """The Deployments that `spec` means, with `instances` by pool, and `deployments` of the wanted revision by pool.

    `outdated`: objects that the plan wanted otherwise than they were observed. Their counts are of an older spec.
    """

    def of(name: str, wanted: int) -> Workload:
        key = DEPLOYMENT.key(name)
        return _workload(name, wanted, observed.child(key), outdated=key in outdated)

    def of_pool(pool: PoolSpec) -> Workload:
        name = deployments.get(pool.name, names.pool_object_name(observed.name, pool.name))
        item = of(name, instances[pool.name])
        for other in deployments_of(observed, pool.name):
            if other["metadata"]["name"] != name:
                old = counts_of(other)
                item = replace(item, total=item.total + old.most, ready=item.ready + old.ready)
        return item

    return Fleet(
        gateway=of(names.gateway_object_name(observed.name), spec.gateway.replicas),
        pools=tuple((pool, of_pool(pool)) for pool in spec.pools),
    )


def deployments_of(observed: Observed, pool: str) -> tuple[Manifest, ...]:
    """The Deployments of a pool, one for each revision, in order of their names."""
    first = names.pool_object_name(observed.name, pool)
    found = [
        child
        for child in observed.children
        if child["kind"] == DEPLOYMENT.kind
        and (child["metadata"]["name"] == first or _label(child, names.LABEL_POOL) == pool)
    ]
    return tuple(sorted(found, key=lambda child: str(child["metadata"]["name"])))


def revision_of(deployment: Manifest) -> str:
    """The KV revision of a Deployment's pods; empty for one that an older release has made."""
    return _label(deployment, names.LABEL_REVISION)


def counts_of(deployment: Manifest) -> Counts:
    """Its pods."""
    status = deployment.get("status") or {}
    return Counts(
        name=deployment["metadata"]["name"],
        asked=deployment["spec"].get("replicas", 1),
        pods=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
    )


def _label(manifest: Manifest, key: str) -> str:
    return str((manifest["metadata"].get("labels") or {}).get(key, ""))


def _workload(name: str, wanted: int, deployment: Manifest | None, *, outdated: bool) -> Workload:
    """The counts of a Deployment that may not exist yet."""
    if deployment is None:
        return Workload(name=name, wanted=wanted)
    status: dict[str, Any] = deployment.get("status") or {}
    observed_newest = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return Workload(
        name=name,
        wanted=wanted,
        total=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current=observed_newest and not outdated and deployment["spec"].get("replicas", 1) == wanted,
        stuck=any(
            condition.get("type") == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded"
            for condition in status.get("conditions") or ()
        ),
    )
