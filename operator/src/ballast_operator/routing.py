"""Which routing objects a ServingPool needs in this cluster, and what keeps it from them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ballast_api.conditions import Reason
from ballast_api.serving_pool import ParentRef, ServingPoolSpec
from ballast_operator.kinds import EXTENSION_POLICY, HTTP_ROUTE, INFERENCE_POOL, TRAFFIC_POLICY, Kind, Manifest
from ballast_operator.references import Problem
from ballast_operator.specs import routes
from ballast_operator.specs.meta import Owner
from ballast_operator.specs.services import engines_service


@dataclass(frozen=True, slots=True)
class Routing:
    """Objects that attach the pool to its parents, problems, and remarks that are no problem."""

    objects: tuple[Manifest, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def routing(
    owner: Owner, spec: ServingPoolSpec, available: frozenset[Kind], missing_parents: Iterable[ParentRef]
) -> Routing:
    """The proxy face is a plain backend; the picker face needs an Envoy that asks it, by GIE or by two policies."""
    picker = spec.gateway.face.serves_picker
    objects: list[Manifest] = []
    problems: list[Problem] = []
    notes: list[str] = []
    if picker:
        objects.append(engines_service(owner, spec))
        if INFERENCE_POOL in available:
            objects.append(routes.inference_pool(owner, spec))
        else:
            notes.append(f"no InferencePool: {_not_installed(INFERENCE_POOL)}")
    if spec.gateway.parent_refs:
        attached, problem = _attached(owner, spec, available, picker=picker)
        objects += attached
        problems += [problem] if problem else []
        problems += [Problem(Reason.PARENT_NOT_FOUND, _missing_parent(owner, parent)) for parent in missing_parents]
    return Routing(tuple(objects), tuple(problems), tuple(notes))


def _attached(
    owner: Owner, spec: ServingPoolSpec, available: frozenset[Kind], *, picker: bool
) -> tuple[list[Manifest], Problem | None]:
    parents = spec.gateway.parent_refs
    if HTTP_ROUTE not in available:
        return [], Problem(Reason.API_NOT_INSTALLED, f"no HTTPRoute: {_not_installed(HTTP_ROUTE)}")
    if not picker:
        return [routes.http_route(owner, parents, routes.backend_proxy(owner))], None
    if available >= {EXTENSION_POLICY, TRAFFIC_POLICY}:
        route = routes.http_route(owner, parents, routes.backend_engines(owner, spec))
        return [route, routes.extension_policy(owner), routes.traffic_policy(owner)], None
    if INFERENCE_POOL in available:
        return [routes.http_route(owner, parents, routes.backend_inference_pool(owner))], None
    return [], Problem(
        Reason.API_NOT_INSTALLED,
        f"no HTTPRoute: face {spec.gateway.face} needs an Envoy that asks the picker, by {_name(INFERENCE_POOL)} "
        f"or by {_name(EXTENSION_POLICY)}; the cluster has neither",
    )


def _missing_parent(owner: Owner, parent: ParentRef) -> str:
    return f"{parent.kind} {parent.namespace or owner.namespace}/{parent.name} (spec.gateway.parentRefs) does not exist"


def _not_installed(kind: Kind) -> str:
    return f"the cluster does not have {_name(kind)}"


def _name(kind: Kind) -> str:
    return f"{kind.kind} ({kind.api_version})"
