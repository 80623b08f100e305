"""The Deployments and LeaderWorkerSets of a ServingPool: what was observed, compared with what is planned. Pure.

The instances of a LeaderWorkerSet are its groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ballast_api import names
from ballast_api.serving_pool import PoolSpec, ServingPoolSpec
from ballast_operator.gateways.gateway_pods import is_ready
from ballast_operator.kinds import DEPLOYMENT, ENGINE_POOL, LEADER_WORKER_SET, WORKLOADS, Manifest, ObjectKey, key_of
from ballast_operator.observed import Observed
from ballast_operator.rollouts.draining import Instance
from ballast_operator.rollouts.rollout import Counts

_LABEL_GROUPS = "leaderworkerset.sigs.k8s.io/name"
"""On pods of a LeaderWorkerSet, by its controller."""
_ENDED = ("Succeeded", "Failed")
"""Phases of pods that run no more."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Pods of one Deployment, compared with what is wanted of it."""

    name: str
    """Name of the Deployment or LeaderWorkerSet."""
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
    targets: Mapping[str, ObjectKey],
    outdated: Collection[ObjectKey],
) -> Fleet:
    """The workloads that `spec` means, with `instances` by pool, and `targets`: those of the wanted revision, by pool.

    `outdated`: objects that the plan wanted otherwise than they were observed. Their counts are of an older spec.
    """

    def of(key: ObjectKey, wanted: int) -> Workload:
        return _workload(key.name, wanted, observed.child(key), outdated=key in outdated)

    def of_pool(pool: PoolSpec) -> Workload:
        key = targets.get(pool.name, DEPLOYMENT.key(names.pool_object_name(observed.name, pool.name)))
        item = of(key, instances[pool.name])
        for other in workloads_of(observed, pool.name):
            if key_of(other) != key:
                old = counts_of(other)
                item = replace(item, total=item.total + old.most, ready=item.ready + old.ready)
        return item

    return Fleet(
        gateway=of(DEPLOYMENT.key(names.gateway_object_name(observed.name)), spec.gateway.replicas),
        pools=tuple((pool, of_pool(pool)) for pool in spec.pools),
    )


def workloads_of(observed: Observed, pool: str) -> tuple[Manifest, ...]:
    """The Deployments and LeaderWorkerSets of a pool, one for each revision, in order of their names."""
    return pool_workloads(observed.name, observed.children, pool)


def pool_workloads(serving_pool: str, children: Sequence[Manifest], pool: str) -> tuple[Manifest, ...]:
    """Those of a pool among the children, in order of their names."""
    kinds = {kind.kind for kind in WORKLOADS}
    first = names.pool_object_name(serving_pool, pool)
    found = [
        child
        for child in children
        if child["kind"] in kinds and (child["metadata"]["name"] == first or _label(child, names.LABEL_POOL) == pool)
    ]
    return tuple(sorted(found, key=lambda child: str(child["metadata"]["name"])))


def id_of(key: ObjectKey) -> str:
    """Tells a ServingPool's workloads apart in one text."""
    return key.name if key.kind == DEPLOYMENT.kind else str(key)


def revision_of(workload: Manifest) -> str:
    """The KV revision of a workload's pods; empty for one that an older release has made."""
    return _label(workload, names.LABEL_REVISION)


def replicas_of(workload: Manifest) -> int:
    """The instances that it asks for; where it says nothing, the API server's default."""
    asked = workload["spec"].get("replicas")
    return 1 if asked is None else int(asked)


def counts_of(workload: Manifest) -> Counts:
    """Its instances."""
    status = workload.get("status") or {}
    return Counts(
        name=id_of(key_of(workload)),
        asked=replicas_of(workload),
        pods=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
    )


def instances_of(observed: Observed, pool: str, deployment: Manifest) -> tuple[Instance, ...]:
    """Pods of a Deployment that are not ending. Where the pool has several, revisions tell whose they are."""
    alone = len(workloads_of(observed, pool)) == 1
    return tuple(
        Instance(
            name=str(pod["metadata"]["name"]),
            ready=is_ready(pod),
            marked_s=observed.marked_s.get(pod["metadata"]["name"]),
            costed=_annotation(pod, names.ANNOTATION_DELETION_COST) == names.LOWEST_DELETION_COST,
        )
        for pod in observed.pods
        if _label(pod, names.LABEL_POOL) == pool
        and not _label(pod, _LABEL_GROUPS)
        and (alone or _label(pod, names.LABEL_REVISION) == revision_of(deployment))
        and not pod["metadata"].get("deletionTimestamp")
        and not has_ended(pod)
    )


def holders_of(observed: Observed, pool: str) -> Iterator[Manifest]:
    """Pods of a pool's Deployments that hold their GPUs."""
    for pod in observed.pods:
        if _label(pod, names.LABEL_POOL) == pool and not _label(pod, _LABEL_GROUPS) and not has_ended(pod):
            yield pod


def ending_of(observed: Observed, pool: str) -> int:
    """Instances that hold their GPUs and that no Deployment counts any more: their pods are ending. A LeaderWorkerSet
    counts its own until they are gone."""
    return sum(
        _label(pod, names.LABEL_POOL) == pool
        and not _label(pod, _LABEL_GROUPS)
        and bool(pod["metadata"].get("deletionTimestamp"))
        and not has_ended(pod)
        for pod in observed.pods
    )


def has_ended(pod: Manifest) -> bool:
    """Whether it runs no more."""
    return (pod.get("status") or {}).get("phase") in _ENDED


def pool_templates(children: Iterable[Manifest]) -> Iterator[Manifest]:
    """Pod templates of the Deployments and LeaderWorkerSets among the children."""
    for child in children:
        if child["kind"] == DEPLOYMENT.kind:
            yield child["spec"].get("template") or {}
        elif child["kind"] == LEADER_WORKER_SET.kind:
            yield (child["spec"].get("leaderWorkerTemplate") or {}).get("leaderTemplate") or {}


def engine_pool_key(serving_pool: str, pool: str) -> ObjectKey:
    """Names the EnginePool of a pool: the same through all rollouts."""
    return ENGINE_POOL.key(names.pool_object_name(serving_pool, pool))


def _annotation(manifest: Manifest, key: str) -> str:
    return str((manifest["metadata"].get("annotations") or {}).get(key, ""))


def _label(manifest: Manifest, key: str) -> str:
    return str((manifest["metadata"].get("labels") or {}).get(key, ""))


def _workload(name: str, wanted: int, deployment: Manifest | None, *, outdated: bool) -> Workload:
    """The counts of a Deployment that may not exist yet."""
    if deployment is None:
        return Workload(name=name, wanted=wanted)
    status: dict[str, Any] = deployment.get("status") or {}
    # A LeaderWorkerSet does not say of which generation its counts are.
    observed_newest = deployment["kind"] == LEADER_WORKER_SET.kind or (
        status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    )
    return Workload(
        name=name,
        wanted=wanted,
        total=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current=observed_newest and not outdated and replicas_of(deployment) == wanted,
        stuck=any(
            condition.get("type") == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded"
            for condition in status.get("conditions") or ()
        ),
    )
