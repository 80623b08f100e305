"""Which routing objects a ServingPool needs in this cluster, and what keeps it from them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ballast_api.serving_pool import ParentRef, RouteMatch, ServingPoolSpec
from ballast_operator.kinds import EXTENSION_POLICY, HTTP_ROUTE, INFERENCE_POOL, TRAFFIC_POLICY, Kind, Manifest
from ballast_operator.problems import cluster
from ballast_operator.problems.problem import Problem
from ballast_operator.problems.references import missing_parents
from ballast_operator.specs import routes
from ballast_operator.specs.meta import Owner
from ballast_operator.specs.services import engines_service


@dataclass(frozen=True, slots=True)
class Routing:
    """Objects that attach the pool to its parents, problems, and remarks that are no problem."""

    objects: tuple[Manifest, ...] = ()
    problems: tuple[Problem, ...] = ()
    remarks: tuple[str, ...] = ()


ENVOY_GATEWAY: Final = "gateway.envoyproxy.io/"
"""Controllers of Envoy Gateway's GatewayClasses begin so."""


def routing(
    owner: Owner,
    spec: ServingPoolSpec,
    available: frozenset[Kind],
    missing: Sequence[ParentRef],
    *,
    controllers: frozenset[str] | None,
) -> Routing:
    """The proxy face is a plain backend; the picker face needs an Envoy that asks it, by GIE or by two policies.

    `available`: optional kinds that the cluster has. `missing`: parents that do not exist.
    `controllers`: those of the parents' GatewayClasses, None where one is not known.
    """
    picker = spec.gateway.face.serves_picker
    objects: list[Manifest] = []
    problems: list[Problem] = []
    remarks: list[str] = []
    if picker:
        objects.append(engines_service(owner, spec))
        if INFERENCE_POOL in available:
            objects.append(routes.inference_pool(owner, spec))
        else:
            remarks.append(f"no InferencePool: the cluster does not have {cluster.name_of_api(INFERENCE_POOL)}")
    if spec.gateway.parent_refs:
        attached = _attached(owner, spec, available, controllers, picker=picker)
        if isinstance(attached, Problem):
            problems.append(attached)
        else:
            objects += attached
        problems += missing_parents(spec.gateway.parent_refs, missing, owner.namespace)
    elif spec.gateway.hostnames or spec.gateway.match != RouteMatch():
        remarks.append("gateway.hostnames and match have no effect without gateway.parentRefs: no HTTPRoute is made")
    return Routing(tuple(objects), tuple(problems), tuple(remarks))


def by_envoy_gateway(spec: ServingPoolSpec, available: frozenset[Kind], controllers: frozenset[str] | None) -> bool:
    """Whether Envoy Gateway's policies attach the pool's picker to its parents: some of them are Envoy Gateway's, as
    far as that is known."""
    attached = spec.gateway.face.serves_picker and bool(spec.gateway.parent_refs)
    if controllers is not None and not any(each.startswith(ENVOY_GATEWAY) for each in controllers):
        return False
    return attached and available >= {HTTP_ROUTE, EXTENSION_POLICY, TRAFFIC_POLICY}


def _attached(
    owner: Owner,
    spec: ServingPoolSpec,
    available: frozenset[Kind],
    controllers: frozenset[str] | None,
    *,
    picker: bool,
) -> list[Manifest] | Problem:
    if HTTP_ROUTE not in available:
        return cluster.no_route_api()
    if not picker:
        return [routes.http_route(owner, spec, routes.backend_proxy(owner))]
    if by_envoy_gateway(spec, available, controllers):
        route = routes.http_route(owner, spec, routes.backend_engines(owner, spec))
        agents = all(spec.has_agent(pool) for pool in spec.pools if pool.role != "Prefill")
        return [route, routes.extension_policy(owner), routes.traffic_policy(owner, agents=agents)]
    if INFERENCE_POOL in available:
        return [routes.http_route(owner, spec, routes.backend_inference_pool(owner))]
    return cluster.no_picker_api(spec.gateway.face)
