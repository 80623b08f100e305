"""Reading the cluster: everything that a look at one ServingPool needs, into one `Observed`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from ballast_api import names
from ballast_api.errors import InvalidInput
from ballast_api.serving_pool import ParentRef, ServingPoolSpec
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.gateways import settings_reports
from ballast_operator.gateways.loads import Loads
from ballast_operator.gateways.measured import Measured
from ballast_operator.kinds import (
    BUILT_IN_CHILDREN,
    DEPLOYMENT,
    GATEWAY,
    GATEWAY_CLASS,
    HARDWARE_PROFILE,
    HTTP_ROUTE,
    LEASE,
    OBJECTIVE,
    OPTIONAL_CHILDREN,
    POD,
    SCHEDULING_POLICY,
    SECRET,
    SERVING_POOL,
    WORKLOADS,
    Kind,
    Manifest,
)
from ballast_operator.observed import Observed
from ballast_operator.planning.hardware import leaves_profiles
from ballast_operator.planning.instances import may_grow, may_shrink
from ballast_operator.planning.ownership import child_selector, is_child
from ballast_operator.planning.references import named_objects, parse_pool
from ballast_operator.rollouts.workloads import replicas_of
from ballast_operator.scaling.inputs import is_lost
from ballast_operator.settings import OperatorSettings
from ballast_operator.specs.token_secret import tokens_of


class Reader(Protocol):
    """What gathering needs of the API server."""

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """One object, None if none of that name exists."""
        ...

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        """Objects of one kind."""
        ...


class OptionalKinds(Protocol):
    """What gathering needs to know about installed APIs."""

    def available(self, kinds: Iterable[Kind]) -> frozenset[Kind]:
        """Those of `kinds` that the cluster has."""
        ...


def gather(
    reader: Reader,
    optional: OptionalKinds,
    namespace: str,
    name: str,
    *,
    now: str,
    fresh_token: str,
    settings: OperatorSettings,
    measured: Measured | None = None,
    ask: Callable[[Sequence[Manifest], bytes], Loads] | None = None,
) -> Observed | None:
    """Everything about one ServingPool, or None if none of that name exists. Raises what `reader` raises.

    `now`: RFC 3339 in UTC. `fresh_token`: one that nobody knows, should a token be needed. `measured`: what its
    gateways have counted. `ask`: asks gateways, given the pods of a ServingPool and a token that signs; None: nobody.
    """
    pool = reader.get(SERVING_POOL, namespace, name)
    if pool is None:
        return None
    named = named_objects(pool)
    available = optional.available((*OPTIONAL_CHILDREN, GATEWAY))
    spec = _spec(pool)
    parents = _parents(reader, namespace, spec, available)
    token, lease = _named_children(reader, namespace, name)
    named_children = (item for item in (token, lease) if item is not None and is_child(item, pool))
    children = (*_children(reader, pool, available), *named_children)
    tokens = tokens_of(token) if token is not None and is_child(token, pool) else []
    observed = Observed(
        pool=pool,
        now=now,
        gateway_defaults=settings.gateway,
        fresh_token=fresh_token,
        policy=_named(reader, SCHEDULING_POLICY, namespace, named),
        objectives=_all_named(reader, OBJECTIVE, namespace, named),
        profiles=_all_named(reader, HARDWARE_PROFILE, None, named),
        children=children,
        token_secret=token,
        token_step_age_s=None if token is None else _age_s(token, names.ANNOTATION_TOKEN_STEP_TIME, now),
        network_policies=settings.network_policies,
        admin_from=settings.admin_from,
        pods_listed=False,
        canary_ages_s={
            str(each["metadata"]["annotations"][names.ANNOTATION_CANARY_SINCE]): age
            for each in children
            if (age := _age_s(each, names.ANNOTATION_CANARY_SINCE, now)) is not None
        },
        optional_kinds=available,
        missing_parents=tuple(parent for parent, found in parents if found is None),
        other_routes=_other_routes(reader, pool, settings) if parents and HTTP_ROUTE in available else (),
        controllers=_controllers(reader, [found for _, found in parents if found is not None]),
        measured=measured,
    )
    shrinks = spec is not None and may_shrink(observed, spec)
    leaves = spec is not None and leaves_profiles(observed, spec)
    grows = spec is not None and may_grow(observed, spec)
    if not (shrinks or leaves or grows or not _all_ready(children) or settings_reports.differ(children)):
        return observed
    now_s = datetime.fromisoformat(now).timestamp()
    listed = reader.list(POD, namespace, labels=child_selector(pool))
    pods = tuple(pod for pod in listed if not is_lost(pod, now_s))
    return replace(
        observed,
        pods=pods,
        pods_listed=True,
        marked_s={
            pod["metadata"]["name"]: max(_age_s(pod, names.ANNOTATION_DRAINING, now) or 0.0, 0.0)
            for pod in pods
            if names.ANNOTATION_DRAINING in (pod["metadata"].get("annotations") or {})
        },
        loads=ask(pods, tokens[0].encode()) if shrinks and ask is not None and tokens else None,
    )


def _spec(pool: Manifest) -> ServingPoolSpec | None:
    """None of one that is not valid."""
    try:
        return parse_pool(pool).spec
    except InvalidInput:
        return None


def _children(reader: Reader, pool: Manifest, available: frozenset[Kind]) -> tuple[Manifest, ...]:
    labels = child_selector(pool)
    kinds = [*BUILT_IN_CHILDREN, *(kind for kind in OPTIONAL_CHILDREN if kind in available)]
    found = (item for kind in kinds for item in reader.list(kind, pool["metadata"]["namespace"], labels=labels))
    return tuple(item for item in found if is_child(item, pool))


def _named_children(reader: Reader, namespace: str, name: str) -> tuple[Manifest | None, Manifest | None]:
    """The token's Secret and the Lease, whosever they are."""
    if len(name) > names.MAX_SERVING_POOL_NAME:
        return None, None  # the plan refuses such a name
    token = reader.get(SECRET, namespace, names.gateway_token_name(name))
    return token, reader.get(LEASE, namespace, names.gateway_object_name(name))


def _age_s(manifest: Manifest, annotation: str, now: str) -> float | None:
    """Seconds since the time in an annotation; None if it has none."""
    said = (manifest["metadata"].get("annotations") or {}).get(annotation, "")
    try:
        return (datetime.fromisoformat(now) - datetime.fromisoformat(said)).total_seconds()
    except (ValueError, TypeError):
        return None


def _named(reader: Reader, kind: Kind, namespace: str, named: Iterable[tuple[Kind, str]]) -> Manifest | None:
    name = next((name for named_kind, name in named if named_kind is kind), None)
    return reader.get(kind, namespace, name) if name is not None else None


def _all_named(
    reader: Reader, kind: Kind, namespace: str | None, named: Iterable[tuple[Kind, str]]
) -> dict[str, Manifest]:
    names_of_kind = sorted(name for named_kind, name in named if named_kind is kind)
    return {name: found for name in names_of_kind if (found := reader.get(kind, namespace, name)) is not None}


def _parents(
    reader: Reader, namespace: str, spec: ServingPoolSpec | None, available: frozenset[Kind]
) -> tuple[tuple[ParentRef, Manifest | None], ...]:
    """The Gateways among the parents, each with the object; None: it does not exist; empty: it may not be read."""
    if spec is None or GATEWAY not in available:
        return ()  # without Gateways the cluster has no HTTPRoute either, and the plan reports that
    return tuple(
        (parent, _readable(reader, GATEWAY, parent.namespace or namespace, parent.name))
        for parent in spec.gateway.parent_refs
        if (parent.group, parent.kind) == (GATEWAY.group, GATEWAY.kind)
    )


def _other_routes(reader: Reader, pool: Manifest, settings: OperatorSettings) -> tuple[Manifest, ...]:
    """HTTPRoutes of all ServingPools, and of nobody we know, that are there to stay."""
    found = (item for namespace in settings.namespaces or (None,) for item in reader.list(HTTP_ROUTE, namespace))
    return tuple(item for item in found if not is_child(item, pool) and not item["metadata"].get("deletionTimestamp"))


def _controllers(reader: Reader, gateways: Iterable[Manifest]) -> frozenset[str] | None:
    """Of the GatewayClasses; None if one is not known."""
    found: set[str] = set()
    for gateway in gateways:
        name = (gateway.get("spec") or {}).get("gatewayClassName")
        gateway_class = _readable(reader, GATEWAY_CLASS, None, name) if name else None
        controller = ((gateway_class or {}).get("spec") or {}).get("controllerName")
        if not controller:
            return None
        found.add(str(controller))
    return frozenset(found) or None


def _readable(reader: Reader, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
    """The object, None if it is known not to exist; empty if we may not read it: it may well be there."""
    try:
        return reader.get(kind, namespace, name)
    except ApiFailure as error:
        if error.status == 403:
            return {}
        raise


def _all_ready(children: Iterable[Manifest]) -> bool:
    kinds = {kind.kind for kind in WORKLOADS}
    workloads = [child for child in children if child["kind"] in kinds]
    return bool(workloads) and all(_ready(workload) for workload in workloads)


def _ready(workload: Manifest) -> bool:
    wanted, status = replicas_of(workload), workload.get("status") or {}
    seen = workload["kind"] != DEPLOYMENT.kind or (
        status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    )
    return bool(seen and wanted == status.get("readyReplicas", 0) == status.get("updatedReplicas", 0))
