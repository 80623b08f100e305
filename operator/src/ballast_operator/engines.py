"""The engines of a ServingPool: templates, their KV revision, and a Deployment for each pool and revision. Pure.

A Deployment keeps its KV revision as long as it has pods. The first is named after its pool; while that name is taken
by another revision, the next one has its revision in its name. Those of older revisions lose their pods step by step
and then go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast_api import names
from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_api.serving_pool import PoolSpec, ServingPoolSpec
from ballast_operator.kinds import DEPLOYMENT, Manifest, ObjectKey
from ballast_operator.observed import Observed
from ballast_operator.rollout import Counts, Rolling, allowance, next_counts
from ballast_operator.specs.engine_deployment import engine_deployment, engine_of, engine_template, resized
from ballast_operator.specs.meta import Owner
from ballast_operator.specs.revision import kv_revision
from ballast_operator.workloads import counts_of, deployments_of, revision_of


@dataclass(frozen=True, slots=True)
class Engines:
    """The Deployments of all pools."""

    apply: tuple[Manifest, ...] = ()
    """Those of the wanted revision."""
    resize: tuple[Manifest, ...] = ()
    """Those of older ones that still have pods: how many they may have."""
    held: frozenset[ObjectKey] = frozenset()
    """Those that wait for something that is missing."""
    deployments: Mapping[str, str] = field(default_factory=dict)
    """Name of the Deployment of the wanted revision, by name of the pool, of the pools that are not held."""


def wanted_instances(observed: Observed, spec: ServingPoolSpec) -> Mapping[str, int]:
    """Instances by name of the pool."""
    return {pool.name: _instances(observed, pool) for pool in spec.pools}


def _instances(observed: Observed, pool: PoolSpec) -> int:
    """With autoscaling, the number that is there counts, within the bounds: another controller may scale."""
    if pool.autoscaling is None:
        return pool.wanted_replicas
    found = deployments_of(observed, pool.name)
    if not found:
        return pool.autoscaling.min_replicas
    now = found[0]["spec"].get("replicas", 1)
    if len(found) > 1:  # in the middle of a rollout the status remembers what was wanted
        counts = (observed.pool.get("status") or {}).get("pools") or ()
        now = next((each["replicas"] for each in counts if each.get("name") == pool.name), now)
    return int(min(max(now, pool.autoscaling.min_replicas), pool.autoscaling.max_replicas))


def engines(
    owner: Owner,
    spec: ServingPoolSpec,
    instances: Mapping[str, int],
    profiles: Mapping[str, HardwareProfileSpec],
    observed: Observed,
    *,
    hold: bool,
) -> Engines:
    """What is to be of them now. A pool whose HardwareProfile is missing is held; `hold` holds all."""
    known = [pool for pool in spec.pools if pool.hardware in profiles]
    templates = {
        pool.name: engine_template(owner, spec, pool, profiles[pool.hardware], observed.gateway_defaults)
        for pool in known
    }
    revision = kv_revision(spec.model.name, map(engine_of, templates.values()))
    if hold or (len(known) < len(spec.pools) and not _is_live(observed, spec, revision)):
        known = []
    targets = {pool.name: _target_name(observed, pool.name, revision) for pool in known}
    rolling = {pool.name: _rolling(observed, spec, pool, instances[pool.name], targets[pool.name]) for pool in known}
    counts = next_counts(list(rolling.values()), spec.rollout.max_skew)
    olds = [old for each in rolling.values() for old in each.old if old.most]
    return Engines(
        apply=tuple(
            engine_deployment(
                owner,
                spec,
                pool,
                templates[pool.name],
                name=targets[pool.name],
                revision=revision,
                replicas=counts[targets[pool.name]],
            )
            for pool in known
        ),
        resize=tuple(
            resized(deployment, counts[old.name])
            for old in olds
            if (deployment := observed.child(DEPLOYMENT.key(old.name))) is not None
        ),
        held=frozenset(
            DEPLOYMENT.key(name) for pool in spec.pools if pool not in known for name in _names(observed, pool.name)
        ),
        deployments=targets,
    )


def _is_live(observed: Observed, spec: ServingPoolSpec, revision: str) -> bool:
    """Whether some pods have this revision, or nothing says that they do not.

    A missing HardwareProfile may have its part in the revision: while it is missing no other revision is rolled out.
    """
    live = {revision_of(each) for pool in spec.pools for each in deployments_of(observed, pool.name)}
    return revision in live or not live - {""}


def _names(observed: Observed, pool: str) -> set[str]:
    live = {str(each["metadata"]["name"]) for each in deployments_of(observed, pool)}
    return live or {names.pool_object_name(observed.name, pool)}


def _target_name(observed: Observed, pool: str, revision: str) -> str:
    """The live Deployment of that revision, or one of an older release, which had none; else a name that is free."""
    found = deployments_of(observed, pool)
    for wanted in (revision, ""):
        for each in found:
            if revision_of(each) == wanted:
                return str(each["metadata"]["name"])
    first = names.pool_object_name(observed.name, pool)
    taken = any(each["metadata"]["name"] == first and counts_of(each).most for each in found)
    return f"{first}-{revision}" if taken else first


def _rolling(observed: Observed, spec: ServingPoolSpec, pool: PoolSpec, wanted: int, target: str) -> Rolling:
    counts = [counts_of(each) for each in deployments_of(observed, pool.name)]
    return Rolling(
        wanted=wanted,
        surge=allowance(spec.rollout.max_surge, wanted, up=True),
        unavailable=allowance(spec.rollout.max_unavailable, wanted, up=False),
        new=next((each for each in counts if each.name == target), Counts(target, 0)),
        old=tuple(each for each in counts if each.name != target),
    )
