"""Two routes that match alike: the younger one says so, and by what it may be told apart."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_operator.kinds import GATEWAY, GATEWAY_CLASS, HTTP_ROUTE, OPTIONAL_CHILDREN, SERVING_POOL, Manifest
from ballast_operator.problems.route_overlaps import gets_nothing, overlaps
from tests.support.object_store import ObjectStore
from tests.support.operator_builders import (
    NAMESPACE,
    profile,
    reconciler,
    serving_pool,
    stored_condition,
)

V1 = {"path": {"type": "PathPrefix", "value": "/v1"}}


def route(
    called: str,
    age: int | None,
    *matches: Manifest,
    hosts: tuple[str, ...] = (),
    namespace: str = "team",
    **parent: Any,
) -> Manifest:
    """A route of Gateway `front`; of a greater `age` is one that is newer, without one it is still to be made."""
    created = {} if age is None else {"creationTimestamp": f"2026-11-21T06:00:{age:02}Z"}
    reference = {"name": "front", "namespace": "edge", **parent}
    return {
        "apiVersion": HTTP_ROUTE.api_version,
        "kind": HTTP_ROUTE.kind,
        "metadata": {"name": called, "namespace": namespace, **created},
        "spec": {"parentRefs": [reference], "hostnames": list(hosts), "rules": [{"matches": list(matches) or [V1]}]},
    }


def with_header(value: str, name: str = "x-team", kind: str = "Exact") -> Manifest:
    return {**V1, "headers": [{"type": kind, "name": name, "value": value}]}


REFUSED = {
    "status": {
        "parents": [
            {
                "parentRef": {"name": "front", "namespace": "edge"},
                "conditions": [{"type": "Accepted", "status": "False", "reason": "NotAllowedByListeners"}],
            }
        ]
    }
}


@pytest.mark.parametrize(
    ("ours", "other", "lost"),
    [
        (route("b", 2), route("a", 1), "all"),
        (route("b", None), route("z", 1), "all"),
        (route("b", 1), route("a", 1), "all"),
        (route("a", 1), route("b", 1), None),
        (route("a", 1), route("b", 2), None),
        (route("b", 2), route("a", 1, {"path": {"value": "/v1/"}}), "all"),
        (route("b", 2), route("a", 1, {"path": {"type": "Exact", "value": "/v1"}}), None),
        (route("b", 2), route("a", 1, {}), None),
        (route("b", 2, with_header("x")), route("a", 1), None),
        (route("b", 2, with_header("x")), route("a", 1, with_header("y")), None),
        (route("b", 2, with_header("x")), route("a", 1, with_header("x", "X-Team")), "all"),
        (route("b", 2, with_header("x"), with_header("y")), route("a", 1, with_header("y")), "some"),
        (route("b", 2, hosts=("one.example",)), route("a", 1), None),
        (route("b", 2, hosts=("One.example", "two.example")), route("a", 1, hosts=("one.example",)), "some"),
        (route("b", 2, hosts=("one.example",)), route("a", 1, hosts=("two.example",)), None),
        (route("b", 2), route("a", 1, name="back"), None),
        (route("b", 2), route("a", 1, namespace="edge"), "all"),
        (route("b", 2, sectionName="http"), route("a", 1, sectionName="https"), None),
        (route("b", 2, sectionName="http"), route("a", 1), "all"),
        (route("b", 2), {**route("a", 1), **REFUSED}, None),
    ],
)
def test_what_the_younger_of_two_routes_loses(ours: Manifest, other: Manifest, lost: str | None) -> None:
    """By the Gateway API's rules, whose last one is age."""
    found = overlaps(ours, [other])
    assert [each.all_lost for each in found] == ({"all": [True], "some": [False], None: []}[lost])
    assert gets_nothing(ours, found) is (lost == "all")


def test_what_is_lost_to_several_is_said_of_each() -> None:
    """Together they may take all."""
    ours = route("c", 3, with_header("x"), with_header("y"))
    found = overlaps(ours, [route("b", 2, with_header("y")), route("a", 1, with_header("x"))])
    assert [(each.route, each.requests) for each in found] == [
        ("team/a", ("any host /v1 with x-team: x",)),
        ("team/b", ("any host /v1 with x-team: y",)),
    ]
    assert gets_nothing(ours, found)


def test_one_of_two_gateways_is_left() -> None:
    """Some requests come."""
    ours = route("b", 2)
    ours["spec"]["parentRefs"].append({"name": "back"})
    assert not gets_nothing(ours, overlaps(ours, [route("a", 1)]))


def _shared(face: str) -> ObjectStore:
    """Two ServingPools at one Gateway, of which the one in the other namespace has its route already."""
    gateway = {"face": face, "parentRefs": [{"name": "front", "namespace": "edge"}]}
    front: Manifest = {"apiVersion": GATEWAY.api_version, "kind": GATEWAY.kind, "spec": {"gatewayClassName": "eg"}}
    front["metadata"] = {"name": "front", "namespace": "edge"}
    named: Manifest = {"apiVersion": GATEWAY_CLASS.api_version, "kind": GATEWAY_CLASS.kind, "metadata": {"name": "eg"}}
    named["spec"] = {"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"}
    other = route("first-gateway", 1, namespace="others")
    kinds = (*OPTIONAL_CHILDREN, GATEWAY, GATEWAY_CLASS)
    return ObjectStore(
        serving_pool(gateway=gateway), front, named, profile("a100"), profile("h20"), other, optional=kinds
    )


@pytest.mark.parametrize(("face", "available"), [("Picker", "RouteShadowed"), ("Both", "Ready")])
def test_the_condition_names_the_other_route_until_it_is_gone(face: str, available: str) -> None:
    """Our own route is written all the same: it gets the requests when the other one goes."""
    store = _shared(face)
    looks = reconciler(store)
    for _ in range(2):
        result = looks.serving_pool(NAMESPACE, "chat")
        store.run_deployments()
    result = looks.serving_pool(NAMESPACE, "chat")
    said = stored_condition(store, "Degraded")
    assert (said["status"], said["reason"]) == ("True", "RouteShadowed")
    assert "HTTPRoute others/first-gateway is older and matches alike at Gateway edge/front" in said["message"]
    assert "match.byModel" in said["message"]
    assert stored_condition(store, "Available")["reason"] == available
    assert result.requeue_s is not None
    assert (HTTP_ROUTE.kind, NAMESPACE, "chat-gateway") in store.objects
    del store.objects[HTTP_ROUTE.kind, "others", "first-gateway"]
    looks.serving_pool(NAMESPACE, "chat")
    assert stored_condition(store, "Degraded")["status"] == "False"
    assert stored_condition(store, "Available")["status"] == "True"


def test_a_namespace_that_is_not_served_is_not_read() -> None:
    """The operator may have no right to."""
    store = _shared("Proxy")
    looks = reconciler(store, namespaces=(NAMESPACE,))
    looks.serving_pool(NAMESPACE, "chat")
    assert stored_condition(store, "Degraded")["reason"] != "RouteShadowed"
    assert (SERVING_POOL.kind, NAMESPACE, "chat") in store.objects
