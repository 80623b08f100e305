"""From everything that was read to everything that must be: objects to apply, to prune and to hold.

Level-based: the plan depends on what is, never on what happened, so it is right from any starting state. Three rules
keep a fleet safe from incomplete wishes:

* an object is written only when everything that it is built from is there; until then it is *held*: left as it is;
* a spec that is not valid, or asks for what this release cannot do, changes nothing;
* only objects whose controller is this very ServingPool (by uid) are ever pruned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from ballast_api import names
from ballast_api.errors import InvalidInput
from ballast_api.serving_pool import ServingPool, ServingPoolSpec
from ballast_core.model import Role
from ballast_core.policies.composing import remarks
from ballast_operator.gateways.settings_reports import Report, reports, settings_hash
from ballast_operator.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENGINE_POOL,
    HTTP_ROUTE,
    Manifest,
    ObjectKey,
    key_of,
    writing_order,
)
from ballast_operator.observed import Observed
from ballast_operator.planning import scaling
from ballast_operator.planning.engines import engines, wanted_engines
from ballast_operator.planning.hardware import former_numbers, former_profiles
from ballast_operator.planning.instances import cut_short, gpus_of_instances, waits_for_gpus, wanted_instances
from ballast_operator.planning.ownership import owner_conflict
from ballast_operator.planning.planned import Plan, Target
from ballast_operator.planning.references import References, parse_pool, resolve
from ballast_operator.planning.routing import by_envoy_gateway, routing
from ballast_operator.problems.problem import Problem
from ballast_operator.problems.references import not_accepted, shadowed, unsuited
from ballast_operator.problems.route_overlaps import gets_nothing, overlaps
from ballast_operator.problems.settings import contradictory, refused_by
from ballast_operator.problems.spec import impossible, invalid, over_budget
from ballast_operator.rollouts.canary import Canary
from ballast_operator.rollouts.workloads import engine_pool_key
from ballast_operator.scaling.records import stored_among
from ballast_operator.specs import agent_container, disruption_budgets, gateway_rbac, network_policies, services
from ballast_operator.specs.drain_marks import drain_marks
from ballast_operator.specs.engine_pools import engine_pool
from ballast_operator.specs.gateway_config import gateway_config_map, gateway_settings
from ballast_operator.specs.gateway_deployment import gateway_deployment
from ballast_operator.specs.hold import PROGRAM, hold_program
from ballast_operator.specs.meta import Owner
from ballast_operator.specs.profiles import profiles_config_map
from ballast_operator.specs.routes import FALLBACKS, http_route_name
from ballast_operator.specs.token_secret import Found, TokenSecret, token_secret

SETTINGS_LOOK_S: Final = 5.0
"""Seconds until the next look while a gateway has not seen its newest settings."""


DRAIN_LOOK_S: Final = 2.0
"""Seconds until the next look while pods are emptied, or another scaler's pool waits for the GPUs of some that end."""


def plan(observed: Observed) -> Plan:
    """The plan for one ServingPool."""
    if observed.deleting:
        return Plan()  # children go by their owner reference; creating one anew would race with that
    try:
        pool = parse_pool(observed.pool)
    except InvalidInput as error:
        return Plan(problems=invalid(error))
    taken = {services.gateway_admin_service_name(pool.name), services.engines_service_name(pool.name)}
    problems = impossible(pool, taken)
    if problems:
        return Plan(problems=problems)
    return _plan_valid(observed, pool)


def _plan_valid(observed: Observed, pool: ServingPool) -> Plan:
    spec = pool.spec
    owner = Owner(name=pool.name, namespace=pool.namespace, uid=str(pool.metadata.uid))
    references = resolve(spec, observed)
    instances = wanted_instances(observed, spec, gpus_of_instances(spec, references.profiles))
    misfit = () if references.policy is None else unsuited(spec, references.policy)
    excess = over_budget(spec.gpu_budget, _gpus(spec, instances, references))
    routes = routing(owner, spec, observed.optional_kinds, observed.missing_parents, controllers=observed.controllers)
    token = _token(owner, observed)
    wanted = wanted_engines(owner, spec, instances, references.profiles, observed)
    former = former_profiles(observed, spec)
    gateway = _gateway_objects(
        owner, spec, references, observed, former=former, hold=bool(misfit), canary=wanted.canary
    )
    newest = settings_hash(gateway.objects)
    told = _told(observed, newest)
    behind = tuple(sorted(name for name, each in told.items() if each.hash != newest))
    informed = newest is not None and not behind and not any(each.problem for each in told.values())
    fleet = engines(owner, spec, wanted, observed, hold=bool(excess), informed=informed)
    objectives = tuple(each.to_core(each.name) for each in references.objectives or ())
    route = _route(owner, observed, routes.objects)
    overlapping = () if route is None else overlaps(route, observed.other_routes)
    target = Target(spec, instances, objectives, fleet.workloads, references.profiles, references.policy)
    missing = references.missing_profiles(pool.hardware for pool in spec.pools)
    numbers = CONFIG_MAP.key(names.profiles_name(owner.name))
    around = list(_around_engines(owner, spec, observed, instances))
    if not missing:
        around.append(profiles_config_map(owner, references.profiles, {**former, PROGRAM: hold_program()}))
    objects = (token.manifest, *gateway.objects, *around, *fleet.apply, *routes.objects)
    held = gateway.held | fleet.held | ({numbers} if missing else set())
    held |= _former_pools(observed, spec) if fleet.held else set()
    kept = held.union(
        (key_of(item) for item in (*objects, *fleet.resize)),
        scaling.kept_objects(spec, owner.name),
        (engine_pool_key(owner.name, pool.name) for pool in spec.pools if spec.leaves_to_others(pool)),
    )
    drains = {name: step for name, step in fleet.steps.items() if step.victims or step.released}
    waits = bool(drains) or waits_for_gpus(observed, spec, instances)
    dues = (token.next_step_s, SETTINGS_LOOK_S if behind else None, DRAIN_LOOK_S if waits else None)
    due_s = [each for each in dues if each is not None]
    return Plan(
        apply=tuple(sorted(objects, key=writing_order)),
        resize=fleet.resize,
        prune=_surplus(observed, kept),
        marks=drain_marks(observed, fleet.steps),
        drains=drains,
        held=held,
        target=target,
        problems=(
            *references.problems,
            *misfit,
            *gateway.problems,
            *refused_by(told, newest),
            *routes.problems,
            *fleet.problems,
            *_not_accepted(owner, observed),
            *shadowed(overlapping),
            *excess,
        ),
        remarks=(
            *routes.remarks,
            *_policy_remarks(target, references),
            *scaling.remarks(spec),
            *cut_short(observed, spec, instances),
            *agent_container.remarks(spec),
            *filter(None, [token.remark]),
        ),
        settings_hash=newest,
        behind=behind,
        shadowed=route is not None and gets_nothing(route, overlapping),
        canary=wanted.canary,
        look_again_s=min(due_s, default=None),
    )


def _former_pools(observed: Observed, spec: ServingPoolSpec) -> set[ObjectKey]:
    """What belongs to pools that the spec names no more: others may be to take their place."""
    pools = {"", *(pool.name for pool in spec.pools)}
    return {key_of(child) for child in observed.children if _pool_of(child) not in pools}


def _pool_of(child: Manifest) -> str:
    """The pool that a child is labelled with, or a disruption budget selects; empty where it is of none."""
    selector = (child.get("spec") or {}).get("selector") or {}
    selected = selector.get("matchLabels") if child["kind"] == DISRUPTION_BUDGET.kind else None
    return str(((selected or child["metadata"].get("labels")) or {}).get(names.LABEL_POOL, ""))


def _not_accepted(owner: Owner, observed: Observed) -> tuple[Problem, ...]:
    route = observed.child(HTTP_ROUTE.key(http_route_name(owner.name)))
    return () if route is None else not_accepted(route)


def _route(owner: Owner, observed: Observed, objects: Sequence[Manifest]) -> Manifest | None:
    """The HTTPRoute as it is to be, with the age that it has."""
    key = HTTP_ROUTE.key(http_route_name(owner.name))
    wanted, live = next((each for each in objects if key_of(each) == key), None), observed.child(key)
    if wanted is None or live is None:
        return wanted
    return {**wanted, "metadata": {**live["metadata"], **wanted["metadata"]}}


def _told(observed: Observed, newest: str | None) -> Mapping[str, Report]:
    """What the gateways that are there say of their settings, if these are not held."""
    found = {} if newest is None else reports(observed.children)
    pods = {pod["metadata"]["name"] for pod in observed.pods if not pod["metadata"].get("deletionTimestamp")}
    return {name: each for name, each in found.items() if not observed.pods or name in pods}


def _token(owner: Owner, observed: Observed) -> TokenSecret:
    """A Secret of somebody else's gives no token; the write of ours is then refused, and the status names it."""
    found = observed.token_secret
    ours = found is not None and owner_conflict(found, observed.pool) is None
    return token_secret(
        owner,
        Found(found if ours else None, observed.token_step_age_s),
        rotation=str((observed.pool["metadata"].get("annotations") or {}).get(names.ANNOTATION_ROTATE_TOKEN, "")),
        fresh=observed.fresh_token,
        now=observed.now,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a ServingPool: what is written, and what is held."""

    objects: tuple[Manifest, ...]
    held: frozenset[ObjectKey] = frozenset()
    problems: tuple[Problem, ...] = ()


def _gateway_objects(
    owner: Owner,
    spec: ServingPoolSpec,
    references: References,
    observed: Observed,
    *,
    former: Mapping[str, str],
    hold: bool,
    canary: Canary | None,
) -> _Part:
    objects = (
        gateway_rbac.gateway_lease(owner),
        gateway_rbac.gateway_service_account(owner),
        gateway_rbac.gateway_role(owner),
        gateway_rbac.gateway_role_binding(owner),
        services.gateway_service(owner, spec),
        services.gateway_admin_service(owner),
        disruption_budgets.gateway_disruption_budget(owner),
        *([network_policies.gateway_policy(owner, observed.admin_from)] if observed.network_policies else []),
    )
    name = names.gateway_object_name(owner.name)
    held = frozenset({CONFIG_MAP.key(name), DEPLOYMENT.key(name)})
    missing = references.missing_profiles(pool.hardware for pool in spec.pools)
    if hold or references.policy is None or references.objectives is None or missing:
        return _Part(objects, held)
    fallbacks = FALLBACKS if by_envoy_gateway(spec, observed.optional_kinds, observed.controllers) else None
    try:
        settings = gateway_settings(
            owner,
            spec,
            references.policy,
            references.profiles,
            former=former_numbers(former),
            objectives=references.objectives,
            fallbacks=fallbacks,
            canary=None if canary is None else canary.settings(),
            startup_s=stored_among(observed.children, owner.name).startup_s,
        )
    except ValidationError as error:
        return _Part(objects, held, contradictory(error))
    nodes = [references.profiles[name].node_selector for name in sorted({pool.hardware for pool in spec.pools})]
    deployment = gateway_deployment(owner, spec.gateway, settings, observed.gateway_defaults, engine_nodes=nodes)
    return _Part((*objects, gateway_config_map(owner, settings), deployment))


def _around_engines(
    owner: Owner, spec: ServingPoolSpec, observed: Observed, instances: Mapping[str, int]
) -> Iterator[Manifest]:
    """What stands around the engines of all pools, whatever their revision."""
    if observed.network_policies and any(map(spec.has_agent, spec.pools)):
        yield network_policies.engines_policy(owner)
    for pool in spec.pools:
        yield services.pool_service(owner, spec, pool)
        yield disruption_budgets.pool_disruption_budget(owner, pool)
        if ENGINE_POOL in observed.optional_kinds and spec.leaves_to_others(pool):
            handle = engine_pool(owner, pool, instances[pool.name])
            if observed.child(key_of(handle)) is None:
                yield handle


def _surplus(observed: Observed, keep: Collection[ObjectKey]) -> tuple[Manifest, ...]:
    surplus = [
        child
        for child in observed.children
        if key_of(child) not in keep and not child["metadata"].get("deletionTimestamp")
    ]
    return tuple(sorted(surplus, key=writing_order, reverse=True))


def _gpus(spec: ServingPoolSpec, instances: Mapping[str, int], references: References) -> Mapping[str, int]:
    """GPUs that each pool asks for on all nodes, of those pools whose HardwareProfile is known."""
    return {name: instances[name] * gpus for name, gpus in gpus_of_instances(spec, references.profiles).items()}


def _policy_remarks(target: Target, references: References) -> tuple[str, ...]:
    """What the policy does not do in this fleet as it is."""
    if references.policy is None:
        return ()
    endpoints: Counter[Role] = Counter()
    for pool in target.spec.pools:
        endpoints[names.core_role(pool.role)] += target.instances[pool.name]
    return tuple(f"{each.part} {each.reason}" for each in remarks(references.policy.build(), endpoints))
