"""From everything that was read to everything that must be: objects to apply, objects to prune, the status.

Level-based: the plan depends on what is, never on what happened, so it is right from any starting state. Three rules
keep a fleet safe from half-told wishes:

* an object is written only when everything that it is built from is there; until then it is *held*: left as it is;
* a spec that is not valid, or asks for what this release cannot do, changes nothing;
* only objects whose controller is this very ServingPool (by uid) are ever pruned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ballast_api import names
from ballast_api.conditions import Reason
from ballast_api.errors import InvalidInput
from ballast_api.serving_pool import PoolSpec, ServingPool, ServingPoolSpec
from ballast_operator import status
from ballast_operator.kinds import DEPLOYMENT, Manifest, ObjectKey, key_of
from ballast_operator.observed import Input
from ballast_operator.policies import policy_problems, policy_remarks
from ballast_operator.references import Problem, References, parse_pool, resolve
from ballast_operator.routing import routing
from ballast_operator.specs import disruption_budgets, gateway_rbac, services
from ballast_operator.specs.engine_container import gpus_of
from ballast_operator.specs.engine_deployment import engine_deployment
from ballast_operator.specs.gateway_config import gateway_config_map, gateway_settings
from ballast_operator.specs.gateway_deployment import gateway_deployment
from ballast_operator.specs.meta import Owner

REQUEUE_S = 10.0
"""Seconds until a ServingPool that is not where it should be is looked at again, should no watch tell earlier."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What must be. Nothing in here depends on the order in which the cluster came to its state."""

    apply: tuple[Manifest, ...] = ()
    """Objects that must exist, in the order of writing."""
    prune: tuple[Manifest, ...] = ()
    """Children that must go."""
    status: Manifest | None = None
    """The ServingPool's status; None to leave it alone."""
    requeue_s: float | None = None
    """Seconds until the next look, if no event comes first; None leaves it to the resync."""


def plan(observed: Input) -> Plan:
    """The plan for one ServingPool."""
    if observed.pool["metadata"].get("deletionTimestamp"):
        return Plan()  # children go by their owner reference; creating one anew would race with that
    try:
        pool = parse_pool(observed.pool)
    except InvalidInput as error:
        message = "; ".join(str(problem) for problem in error.problems)
        return Plan(status=status.refused(observed, Problem(Reason.INVALID_SPEC, message)))
    problem = _cannot_do(pool.spec) or _name_clash(pool)
    if problem is not None:
        return Plan(status=status.refused(observed, problem))
    return _plan_valid(observed, pool)


def _plan_valid(observed: Input, pool: ServingPool) -> Plan:
    references = resolve(pool.spec, observed)
    wanted = _wanted_replicas(observed, pool)
    over_budget = _over_budget(pool.spec, references, wanted)
    unsuited = policy_problems(pool.spec, references)
    owner = Owner(name=pool.name, namespace=pool.namespace, uid=str(pool.metadata.uid))
    routes = routing(owner, pool.spec, observed.optional_kinds, observed.missing_parents)
    gateway, held_gateway = _gateway_objects(owner, pool.spec, references, observed, hold=bool(unsuited))
    engines, held_engines = _engine_objects(owner, pool.spec, references, wanted, hold=over_budget is not None)
    objects = (*gateway, *engines, *routes.objects)
    seen = status.Seen(
        observed=observed,
        spec=pool.spec,
        wanted=wanted,
        references=references,
        problems=(*references.problems, *unsuited, *routes.problems, *([over_budget] if over_budget else [])),
        held=bool(held_gateway or held_engines),
        notes=(*routes.notes, *policy_remarks(pool.spec, references, wanted), *_not_yet(pool.spec)),
    )
    return Plan(
        apply=tuple(sorted(objects, key=_writing_order)),
        prune=_surplus(observed, {key_of(item) for item in objects} | held_gateway | held_engines),
        status=status.wanted_status(seen),
        requeue_s=None if status.settled(seen) else REQUEUE_S,
    )


def with_failures(observed: Input, before: Plan) -> Plan:
    """The same plan, its status telling of `observed.failures`."""
    after = plan(observed)
    return replace(before, status=after.status, requeue_s=after.requeue_s)


_WRITING_ORDER = (
    *("ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Service", "PodDisruptionBudget", "Deployment"),
    *("InferencePool", "HTTPRoute", "EnvoyExtensionPolicy", "BackendTrafficPolicy"),
)


def _writing_order(manifest: Manifest) -> tuple[int, str]:
    return _WRITING_ORDER.index(manifest["kind"]), str(manifest["metadata"]["name"])


def _gateway_objects(
    owner: Owner, spec: ServingPoolSpec, references: References, observed: Input, *, hold: bool
) -> tuple[list[Manifest], set[ObjectKey]]:
    objects = [
        gateway_rbac.gateway_service_account(owner),
        gateway_rbac.gateway_role(owner),
        gateway_rbac.gateway_role_binding(owner),
        services.gateway_service(owner, spec),
        services.gateway_admin_service(owner),
        disruption_budgets.gateway_disruption_budget(owner),
    ]
    if hold or references.policy is None or references.missing_profiles(pool.hardware for pool in spec.pools):
        name = names.gateway_object_name(owner.name)
        return objects, {ObjectKey("ConfigMap", name), ObjectKey("Deployment", name)}
    settings = gateway_settings(owner, spec, references.policy, references.profiles)
    objects.append(gateway_config_map(owner, settings))
    objects.append(gateway_deployment(owner, spec.gateway, settings, observed.gateway_defaults))
    return objects, set()


def _engine_objects(
    owner: Owner, spec: ServingPoolSpec, references: References, wanted: dict[str, int], *, hold: bool
) -> tuple[list[Manifest], set[ObjectKey]]:
    objects: list[Manifest] = []
    held: set[ObjectKey] = set()
    for pool in spec.pools:
        objects.append(services.pool_service(owner, spec, pool))
        objects.append(disruption_budgets.pool_disruption_budget(owner, pool))
        profile = references.profiles.get(pool.hardware)
        if hold or profile is None:
            held.add(ObjectKey("Deployment", names.pool_object_name(owner.name, pool.name)))
        else:
            objects.append(engine_deployment(owner, spec, pool, profile, wanted[pool.name]))
    return objects, held


def _surplus(observed: Input, keep: Iterable[ObjectKey]) -> tuple[Manifest, ...]:
    kept = set(keep)
    surplus = [
        child
        for child in observed.children
        if key_of(child) not in kept and not child["metadata"].get("deletionTimestamp")
    ]
    # Consumers go before what they use.
    return tuple(sorted(surplus, key=_writing_order, reverse=True))


def _wanted_replicas(observed: Input, pool: ServingPool) -> dict[str, int]:
    """Instances by pool. With autoscaling, what is there counts, within the bounds: somebody else may scale."""
    return {entry.name: _replicas(observed, pool.name, entry) for entry in pool.spec.pools}


def _replicas(observed: Input, serving_pool: str, pool: PoolSpec) -> int:
    if pool.autoscaling is None:
        return pool.wanted_replicas
    deployment = observed.child(ObjectKey(DEPLOYMENT.kind, names.pool_object_name(serving_pool, pool.name)))
    now = deployment["spec"].get("replicas", 1) if deployment else pool.autoscaling.min_replicas
    return int(min(max(now, pool.autoscaling.min_replicas), pool.autoscaling.max_replicas))


def _cannot_do(spec: ServingPoolSpec) -> Problem | None:
    spanning = [pool.name for pool in spec.pools if pool.nodes_per_instance > 1]
    if spanning:
        where = f"spec.pools ({', '.join(spanning)}): nodesPerInstance"
        return Problem(Reason.UNSUPPORTED, f"{where} above 1 is not supported by this release; set it to 1")
    return None


def _name_clash(pool: ServingPool) -> Problem | None:
    """A pool named like one of the gateway's Services would fight with it over the name."""
    taken = {services.gateway_admin_service_name(pool.name), services.engines_service_name(pool.name)}
    counts = Counter(names.pool_object_name(pool.name, entry.name) for entry in pool.spec.pools)
    clashing = [entry.name for entry in pool.spec.pools if counts[names.pool_object_name(pool.name, entry.name)] > 1]
    clashing += [entry.name for entry in pool.spec.pools if names.pool_object_name(pool.name, entry.name) in taken]
    if clashing:
        message = f"spec.pools: the name {clashing[0]} is taken by the gateway's own objects; choose another"
        return Problem(Reason.INVALID_SPEC, message)
    return None


def _over_budget(spec: ServingPoolSpec, references: References, wanted: dict[str, int]) -> Problem | None:
    if spec.gpu_budget is None:
        return None
    gpus = {
        pool.name: wanted[pool.name] * gpus_of(pool, references.profiles[pool.hardware])
        for pool in spec.pools
        if pool.hardware in references.profiles
    }
    total = sum(gpus.values())
    if total <= spec.gpu_budget:
        return None
    parts = " + ".join(f"{count} ({name})" for name, count in gpus.items())
    message = f"the pools ask for {parts} = {total} GPUs, spec.gpuBudget is {spec.gpu_budget}; no pool was changed"
    return Problem(Reason.GPU_BUDGET_EXCEEDED, message)


def _not_yet(spec: ServingPoolSpec) -> list[str]:
    notes = []
    if spec.ratio.mode != "Off":
        notes.append(f"ratio.mode {spec.ratio.mode} has no effect in this release")
    autoscaled = [pool.name for pool in spec.pools if pool.autoscaling is not None]
    if autoscaled:
        notes.append(f"autoscaling of {', '.join(autoscaled)} is left to others in this release, within its bounds")
    return notes
