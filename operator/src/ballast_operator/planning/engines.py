"""The engines of a ServingPool: templates, their KV revision, and a workload for each pool and revision. Pure.

It is a Deployment, or a LeaderWorkerSet where an instance spans several nodes, and keeps its KV revision as long as it
has pods. A pool's first Deployment is named after it; while that name is taken by another revision, the next one has
its revision in its name. Those of older revisions lose their pods step by step and then go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ballast_api import names
from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_api.serving_pool import PoolSpec, ServingPoolSpec
from ballast_operator.kinds import DEPLOYMENT, LEADER_WORKER_SET, Kind, Manifest, ObjectKey, key_of
from ballast_operator.observed import Observed
from ballast_operator.planning.instances import largest_instances
from ballast_operator.problems import cluster
from ballast_operator.problems.problem import Problem
from ballast_operator.rollouts.allowances import Allowance, allowances
from ballast_operator.rollouts.canary import Canary, Phase, pods_of
from ballast_operator.rollouts.canarying import canary_of, with_canary
from ballast_operator.rollouts.draining import Step, next_step
from ballast_operator.rollouts.rollout import Counts, Rolling, Strength, next_counts, strengths
from ballast_operator.rollouts.workloads import (
    counts_of,
    id_of,
    instances_of,
    revision_of,
    workloads_of,
)
from ballast_operator.specs.drain_marks import with_drains
from ballast_operator.specs.engine_deployment import engine_deployment, engine_of, engine_template, resized
from ballast_operator.specs.engine_group import engine_group, engine_group_name, nodes_of
from ballast_operator.specs.meta import Owner
from ballast_operator.specs.revision import kv_revision


@dataclass(frozen=True, slots=True)
class Engines:
    """The workloads of all pools."""

    apply: tuple[Manifest, ...] = ()
    """Those of the wanted revision."""
    resize: tuple[Manifest, ...] = ()
    """Those of older ones that still have pods: how many they may have."""
    held: frozenset[ObjectKey] = frozenset()
    """Those that wait for something that is missing."""
    workloads: Mapping[str, ObjectKey] = field(default_factory=dict)
    """The one of the wanted revision, by name of the pool, of the pools that are not held."""
    steps: Mapping[str, Step] = field(default_factory=dict)
    """What each pool that is not held does with pods that are to go, by the workload."""
    problems: tuple[Problem, ...] = ()
    """What keeps pools from their workloads."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the engines shall be, as far as it is known."""

    revision: str
    templates: Mapping[str, Manifest] = field(default_factory=dict)
    """By name of the pool; of none if a revision may have part in it that is not known."""
    targets: Mapping[str, ObjectKey] = field(default_factory=dict)
    """The workload of that revision, by name of the pool."""
    rolling: Mapping[str, Rolling] = field(default_factory=dict)
    allowed: Mapping[str, Allowance] = field(default_factory=dict)
    canary: Canary | None = None


def wanted_engines(
    owner: Owner,
    spec: ServingPoolSpec,
    instances: Mapping[str, int],
    profiles: Mapping[str, HardwareProfileSpec],
    observed: Observed,
) -> Wanted:
    """What the spec means, and its canary. A pool whose HardwareProfile or API is missing is left out."""
    known = [pool for pool in spec.pools if pool.hardware in profiles]
    templates = {
        pool.name: engine_template(owner, spec, pool, profiles[pool.hardware], observed.gateway_defaults)
        for pool in known
    }
    revision = kv_revision(spec.model.name, map(engine_of, templates.values()))
    if len(known) < len(spec.pools) and not _is_live(observed, spec, revision):
        return Wanted(revision)
    lacking = _without_api(observed, spec)
    known = [pool for pool in known if pool not in lacking]
    targets = {pool.name: _target(observed, pool, revision) for pool in known}
    asked = {pool.name: sum(counts_of(each).asked for each in workloads_of(observed, pool.name)) for pool in spec.pools}
    gpus = largest_instances(observed, spec, profiles)
    allowed = allowances(spec, instances, gpus, asked)
    order = _strengths(observed, spec)
    rolling = {
        pool.name: _rolling(observed, pool, instances[pool.name], targets[pool.name], allowed[pool.name], order=order)
        for pool in known
    }
    return Wanted(revision, templates, targets, rolling, allowed, canary_of(observed, spec, revision, rolling, targets))


def engines(
    owner: Owner, spec: ServingPoolSpec, wanted: Wanted, observed: Observed, *, hold: bool, informed: bool
) -> Engines:
    """What is to be of them now. `hold` holds all. `informed`: whether all gateways go by the newest settings."""
    known = [] if hold else [pool for pool in spec.pools if pool.name in wanted.targets]
    templates, targets, revision, canary = wanted.templates, wanted.targets, wanted.revision, wanted.canary
    targets = {pool.name: targets[pool.name] for pool in known}
    rolling = {pool.name: wanted.rolling[pool.name] for pool in known}
    if canary is not None:
        rolling = _with_canary(observed, spec, rolling, canary, informed=informed)
    counts = next_counts(list(rolling.values()), spec.rollout.max_skew)
    steps = {
        each.name: _step(observed, spec, pool, each, counts[each.name])
        for pool, roll in rolling.items()
        for each in (roll.new, *roll.old)
    }
    olds = [
        old
        for pool, each in rolling.items()
        for old in (each.new, *each.old)
        if old.name != id_of(targets[pool]) and old.most
    ]
    return Engines(
        apply=tuple(
            with_drains(
                with_canary(
                    (engine_deployment if kind_of_workload(pool) is DEPLOYMENT else engine_group)(
                        owner,
                        spec,
                        pool,
                        templates[pool.name],
                        name=targets[pool.name].name,
                        revision=revision,
                        replicas=steps[id_of(targets[pool.name])].replicas,
                        allowed=wanted.allowed[pool.name],
                    ),
                    canary,
                ),
                steps[id_of(targets[pool.name])],
                observed.child(targets[pool.name]),
            )
            for pool in known
        ),
        resize=tuple(
            with_drains(resized(workload, steps[old.name].replicas), steps[old.name], workload)
            for pool in known
            for workload in workloads_of(observed, pool.name)
            for old in olds
            if old.name == id_of(key_of(workload))
        ),
        held=frozenset(key for pool in spec.pools if pool not in known for key in _held(observed, pool)),
        workloads=targets,
        steps=steps,
        problems=tuple(cluster.no_group_api(spec.pools.index(pool), pool) for pool in _without_api(observed, spec)),
    )


def _with_canary(
    observed: Observed, spec: ServingPoolSpec, rolling: Mapping[str, Rolling], canary: Canary, *, informed: bool
) -> dict[str, Rolling]:
    """The same, as far as the canary lets them go. A paused one gives its pods back to the old revision."""
    if canary.memory.phase is Phase.PROMOTED:
        return dict(rolling)
    if canary.memory.phase is Phase.PAUSED:
        return _back(observed, spec, rolling, canary)
    waits = bool(canary.unfit) or not informed
    return {
        name: replace(roll, canary=0 if waits else pods_of(canary.spec.weight, roll.wanted)) if roll.replaces else roll
        for name, roll in rolling.items()
    }


def _back(
    observed: Observed, spec: ServingPoolSpec, rolling: Mapping[str, Rolling], canary: Canary
) -> dict[str, Rolling]:
    """To the old revision that serves most; where a pool does not have it, to one that it has. Pools with no old pods
    have the canary's by now, and keep them."""
    revisions = {id_of(key_of(each)): revision_of(each) for pool in rolling for each in workloads_of(observed, pool)}
    olds = {revisions[old.name] for roll in rolling.values() for old in roll.old if old.most} - {canary.revision}
    stable = max(olds, key=_strengths(observed, spec).__getitem__, default=None)
    found = {}
    for name, roll in rolling.items():
        there = [old for old in roll.old if old.most and revisions[old.name] != canary.revision]
        kept = next((old for old in there if revisions[old.name] == stable), there[-1] if there else None)
        others = tuple(old for old in roll.old if old is not kept)
        found[name] = roll if kept is None else replace(roll, new=kept, old=(*others, roll.new))
    return found


def _strengths(observed: Observed, spec: ServingPoolSpec) -> Mapping[str, Strength]:
    live = [(pool.role, each) for pool in spec.pools for each in workloads_of(observed, pool.name)]
    return strengths([(role, revision_of(each), counts_of(each)) for role, each in live])


def _without_api(observed: Observed, spec: ServingPoolSpec) -> list[PoolSpec]:
    """Pools whose kind of workload the cluster does not have."""
    return [pool for pool in spec.pools if kind_of_workload(pool) not in (DEPLOYMENT, *observed.optional_kinds)]


def kind_of_workload(pool: PoolSpec) -> Kind:
    """What runs the instances of a pool."""
    return LEADER_WORKER_SET if pool.nodes_per_instance > 1 else DEPLOYMENT


def _step(observed: Observed, spec: ServingPoolSpec, pool: str, counts: Counts, target: int) -> Step:
    """From what a workload asks for to `target` instances. One that is still to be made has none to empty, and a
    LeaderWorkerSet takes its last ones, whichever are empty."""
    workload = next((each for each in workloads_of(observed, pool) if id_of(key_of(each)) == counts.name), None)
    if workload is not None and workload["kind"] == LEADER_WORKER_SET.kind:
        return Step(target)
    if workload is not None and not observed.pods_listed:
        return Step(max(counts.asked, target))  # a look that sees the pods says which of them go
    instances = () if workload is None else instances_of(observed, pool, workload)
    return next_step(counts.asked, target, instances, observed.loads, deadline_s=spec.drain_deadline_s)


def _is_live(observed: Observed, spec: ServingPoolSpec, revision: str) -> bool:
    """Whether some pods have this revision, or nothing says that they do not.

    A missing HardwareProfile may have its part in the revision: while it is missing no other revision is rolled out.
    """
    live = {revision_of(each) for pool in spec.pools for each in workloads_of(observed, pool.name)}
    return revision in live or not live - {""}


def _held(observed: Observed, pool: PoolSpec) -> set[ObjectKey]:
    live = {key_of(each) for each in workloads_of(observed, pool.name)}
    return live or {kind_of_workload(pool).key(names.pool_object_name(observed.name, pool.name))}


def _target(observed: Observed, pool: PoolSpec, revision: str) -> ObjectKey:
    """The live workload of that revision, or one of an older release, which had none; else a name that is free."""
    first = names.pool_object_name(observed.name, pool.name)
    kind = kind_of_workload(pool)
    found = [each for each in workloads_of(observed, pool.name) if each["kind"] == kind.kind]
    if kind is LEADER_WORKER_SET:
        found = [each for each in found if nodes_of(each) == pool.nodes_per_instance]
    for wanted in (revision, ""):
        for each in found:
            if revision_of(each) == wanted:
                return key_of(each)
    if kind is LEADER_WORKER_SET:
        return kind.key(engine_group_name(first, pool.nodes_per_instance, revision))
    taken = any(each["metadata"]["name"] == first and counts_of(each).most for each in found)
    return kind.key(f"{first}-{revision}" if taken else first)


def _rolling(
    observed: Observed,
    pool: PoolSpec,
    wanted: int,
    to: ObjectKey,
    allowed: Allowance,
    *,
    order: Mapping[str, Strength],
) -> Rolling:
    """Left-overs of rollouts that were given up go before the revision that serves, in the same `order` in all
    pools."""
    target = id_of(to)
    live = sorted(workloads_of(observed, pool.name), key=lambda each: (order[revision_of(each)], counts_of(each).asked))
    counts = [counts_of(each) for each in live]
    return Rolling(
        wanted=wanted,
        surge=allowed.surge,
        unavailable=allowed.unavailable,
        new=next((each for each in counts if each.name == target), Counts(target, 0)),
        old=tuple(each for each in counts if each.name != target),
    )
