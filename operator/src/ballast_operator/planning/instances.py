"""How many instances each pool shall have, and whether one may lose some. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from ballast_api import names
from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_api.serving_pool import PoolSpec, ServingPoolSpec
from ballast_operator.kinds import LEADER_WORKER_SET, Manifest
from ballast_operator.observed import Observed
from ballast_operator.planning.references import resolve
from ballast_operator.rollouts.workloads import (
    counts_of,
    ending_of,
    engine_pool_key,
    holders_of,
    pool_templates,
    replicas_of,
    workloads_of,
)
from ballast_operator.scaling.records import Stored, stored_among
from ballast_operator.specs.engine_container import gpus_of
from ballast_operator.specs.engine_group import nodes_of


def gpus_of_instances(spec: ServingPoolSpec, profiles: Mapping[str, HardwareProfileSpec]) -> Mapping[str, int]:
    """GPUs of one instance on all its nodes, by name of the pool; of those whose HardwareProfile is known."""
    return {
        pool.name: pool.nodes_per_instance * gpus_of(pool, profiles[pool.hardware])
        for pool in spec.pools
        if pool.hardware in profiles
    }


def largest_instances(
    observed: Observed, spec: ServingPoolSpec, profiles: Mapping[str, HardwareProfileSpec]
) -> Mapping[str, int]:
    """The same of the largest instance that is wanted or there."""
    wanted = gpus_of_instances(spec, profiles)
    return {name: max(each, _gpus_held(observed, profiles, name)) for name, each in wanted.items()}


def _gpus_held(observed: Observed, profiles: Mapping[str, HardwareProfileSpec], pool: str) -> int:
    """GPUs of the largest instance that a pool has, of whatever spec. A Deployment that replaces pods has the newest
    template only, so its pods are looked at, too."""
    resources = {_GPUS, *(each.resource_name for each in profiles.values())}
    live = [each for each in workloads_of(observed, pool) if counts_of(each).most]
    sizes = [nodes_of(each) if each["kind"] == LEADER_WORKER_SET.kind else 1 for each in live]
    held = [size * _gpus_in(template, resources) for size, template in zip(sizes, pool_templates(live), strict=True)]
    held += [_gpus_in(pod, resources) for pod in holders_of(observed, pool)]
    return max(held, default=0)


_GPUS: Final[str] = HardwareProfileSpec.model_fields["resource_name"].default
"""What GPUs are asked for as, unless a HardwareProfile says otherwise."""


def _gpus_in(template: Manifest, resources: Collection[str]) -> int:
    """GPUs of the engine in a pod, or in a template of pods."""
    limits = [
        (each.get("resources") or {}).get("limits") or {}
        for each in (template.get("spec") or {}).get("containers") or ()
        if each.get("name") == names.ENGINE_CONTAINER
    ]
    found = [str(each.get(name, "")) for each in limits for name in resources]
    return max((int(each) for each in found if each.isdecimal()), default=0)


def wanted_instances(observed: Observed, spec: ServingPoolSpec, gpus: Mapping[str, int]) -> Mapping[str, int]:
    """Instances by name of the pool. `gpus`: of one instance, of the pools of which that is known.

    What other scalers ask for is cut to what the budget leaves: else it would hold the pools of others, too. Each of
    their pools keeps what it has, as far as the budget goes, and grows only on GPUs that no instance has; on none while
    a pool's GPUs are not known.
    """
    asked = _asked(observed, spec)
    if spec.gpu_budget is None:
        return asked
    least = {
        pool.name: pool.autoscaling.min_replicas
        for pool in spec.pools
        if pool.autoscaling and spec.leaves_to_others(pool) and pool.name in gpus
    }
    there = {name: _counted(observed, name) for name in gpus}
    has = {name: min(asked[name], max(there[name], _wanted_last(observed, name) or 0)) for name in least}
    kept = _raised(asked | least, has, partial(_needed, gpus), spec.gpu_budget)
    if len(gpus) < len(spec.pools):
        return kept
    ending = {name: ending_of(observed, name) for name in gpus}
    needed = partial(_needed, gpus, there=there, ending=ending)
    return _raised(kept, {name: asked[name] for name in least}, needed, spec.gpu_budget)


def _needed(
    gpus: Mapping[str, int],
    counts: Mapping[str, int],
    *,
    there: Mapping[str, int] = MappingProxyType({}),
    ending: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """GPUs of so many instances, beside those that are `there`, wanted or not, and that are `ending`."""
    return sum(each * (max(counts[name], there.get(name, 0)) + ending.get(name, 0)) for name, each in gpus.items())


def _raised(
    counts: Mapping[str, int], goal: Mapping[str, int], needed: Callable[[Mapping[str, int]], int], budget: int
) -> dict[str, int]:
    """The counts, those of a goal raised to it by one instance in turn while the GPUs needed are within the budget."""
    found = dict(counts)

    def more(rising: Iterable[str], by: int = 1) -> dict[str, int]:
        return found | {name: found[name] + by for name in rising}

    rising = [name for name in goal if found[name] < goal[name]]
    while rising:
        # As many turns at once as all of them can take: a scaler may ask for a million.
        turns = range(1, 1 + min(goal[name] - found[name] for name in rising))
        found = more(rising, bisect_left(turns, True, key=lambda by: needed(more(rising, by)) > budget))
        took = []
        for name in rising:
            if found[name] < goal[name] and needed(more([name])) <= budget:
                found = more([name])
                took.append(name)
        rising = took
    return found


def may_grow(observed: Observed, spec: ServingPoolSpec) -> bool:
    """Whether a pool that another scaler sets is to grow within a budget: pods that end count then."""
    asked = _asked(observed, spec)
    return spec.gpu_budget is not None and any(
        asked[pool.name] > _counted(observed, pool.name) for pool in spec.pools if spec.leaves_to_others(pool)
    )


def waits_for_gpus(observed: Observed, spec: ServingPoolSpec, instances: Mapping[str, int]) -> bool:
    """Whether pods that end may hold GPUs that another scaler asks for: a look must see that they have gone, for pods
    wake nobody."""
    asked = _asked(observed, spec)
    return (
        spec.gpu_budget is not None
        and any(ending_of(observed, pool.name) for pool in spec.pools)
        and any(asked[pool.name] > instances[pool.name] for pool in spec.pools if spec.leaves_to_others(pool))
    )


def cut_short(observed: Observed, spec: ServingPoolSpec, instances: Mapping[str, int]) -> Iterator[str]:
    """For each pool of which another scaler does not get the number that it asks for: which field is why."""
    for pool in spec.pools:
        if pool.autoscaling is None or not spec.leaves_to_others(pool):
            continue
        least, most, given = pool.autoscaling.min_replicas, pool.autoscaling.max_replicas, instances[pool.name]
        asked = _asked_by_others(observed, pool, least=least)
        if asked is None or asked == given:
            continue
        within = min(max(asked, least), most)
        bound = "autoscaling.minReplicas" if asked < least else "autoscaling.maxReplicas"
        why = bound if given == within else "gpuBudget"
        name = engine_pool_key(observed.name, pool.name).name
        yield f"EnginePool {name} asks for {asked} instances and gets {given}, because of {why}"


def may_shrink(observed: Observed, spec: ServingPoolSpec) -> bool:
    """Whether a pool of the spec may lose pods now, or has pods with marks: these are of interest then."""
    wanted = wanted_instances(observed, spec, gpus_of_instances(spec, resolve(spec, observed).profiles))
    return any(_shrinks(workloads_of(observed, pool.name), wanted[pool.name]) for pool in spec.pools)


def _shrinks(workloads: Sequence[Manifest], wanted: int) -> bool:
    asked = sum(map(replicas_of, workloads))
    return len(workloads) > 1 or asked > wanted or any(map(_drains, workloads))


def _asked(observed: Observed, spec: ServingPoolSpec) -> dict[str, int]:
    """By name of the pool, whatever the budget."""
    decided = stored_among(observed.children, observed.name)
    return {pool.name: _instances(observed, spec, pool, decided) for pool in spec.pools}


def _counted(observed: Observed, pool: str) -> int:
    """Instances of a pool that its workloads ask for or have."""
    return sum(counts_of(each).most for each in workloads_of(observed, pool))


def _instances(observed: Observed, spec: ServingPoolSpec, pool: PoolSpec, decided: Stored) -> int:
    """With autoscaling, what was decided counts, or else what the EnginePool says, or without one the number that is
    there. All within the bounds."""
    if pool.autoscaling is None:
        return pool.wanted_replicas
    asked = _decided(spec, pool, decided)
    if asked is None:
        asked = _asked_by_others(observed, pool, least=pool.autoscaling.min_replicas)
    if asked is None:
        asked = _there(observed, pool, steered=spec.steers(pool))
    return min(max(asked, pool.autoscaling.min_replicas), pool.autoscaling.max_replicas)


def _decided(spec: ServingPoolSpec, pool: PoolSpec, decided: Stored) -> int | None:
    """What the last decision asks for; None where no decision sets the number."""
    asked = decided.asked(pool.name)
    return None if asked is None or not spec.steers(pool) else asked.replicas


def _asked_by_others(observed: Observed, pool: PoolSpec, *, least: int) -> int | None:
    """What the pool's EnginePool asks for, `least` where it says nothing; None where there is none."""
    found = observed.child(engine_pool_key(observed.name, pool.name))
    if found is None:
        return None
    asked = found["spec"].get("replicas")
    return least if asked is None else int(asked)


def _there(observed: Observed, pool: PoolSpec, *, steered: bool) -> int:
    """The number that is there, or to begin with."""
    found = workloads_of(observed, pool.name)
    if not found:
        # Nobody wakes a fleet that begins at zero, but where decisions do: an HPA leaves alone what is at zero.
        return 0 if steered else 1
    now = replicas_of(found[0])
    # In a rollout, and while instances are emptied, the status remembers what was wanted.
    if len(found) > 1 or any(_drains(each) is not None for each in found):
        last = _wanted_last(observed, pool.name)
        now = now if last is None else last
    return now


def _wanted_last(observed: Observed, pool: str) -> int | None:
    """Instances of a pool that the last look wanted, by the status."""
    counts = (observed.pool.get("status") or {}).get("pools") or ()
    return next((int(each["replicas"]) for each in counts if each.get("name") == pool), None)


def _drains(workload: Manifest) -> str | None:
    """Names of its pods that have marks to go; empty once none has, None where none ever had."""
    return (workload["metadata"].get("annotations") or {}).get(names.ANNOTATION_DRAINS)
