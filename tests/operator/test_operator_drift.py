"""When a write is due: differences that matter, and those that do not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ballast_operator.kinds import Manifest
from ballast_operator.writing.drift import changed_fields, differs

DESIRED: Manifest = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "a", "labels": {"x": "1"}},
    "spec": {
        "ports": [{"name": "http", "port": 80}],
        "selector": {"app": "a"},
        "limits": {"cpu": "0.5", "memory": "1024Mi"},
        "args": ["a", "b"],
        "enabled": True,
    },
}
LIVE: Manifest = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {
        "name": "a",
        "uid": "u",
        "labels": {"x": "1", "theirs": "2"},
        "managedFields": [
            {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:foreign": {}}}},
            {
                "manager": "us",
                "operation": "Apply",
                "fieldsV1": {
                    "f:metadata": {"f:labels": {"f:x": {}}},
                    "f:spec": {
                        "f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}, "f:name": {}}},
                        "f:selector": {},
                        "f:limits": {"f:cpu": {}, "f:memory": {}},
                        "f:args": {},
                        "f:enabled": {},
                    },
                },
            },
        ],
    },
    "spec": {
        "clusterIP": "10.0.0.1",
        "foreign": 1,
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80}],
        "selector": {"app": "a"},
        "limits": {"cpu": "500m", "memory": "1Gi"},
        "args": ["a", "b"],
        "enabled": True,
    },
    "status": {},
}


def changed(target: Manifest, path: str, value: Any) -> Manifest:
    result = copy.deepcopy(target)
    *parents, last = path.split(".")
    found: Any = result
    for part in parents:
        found = found[int(part) if part.isdecimal() else part]
    if value is None:
        del found[last]
    else:
        found[last] = value
    return result


def test_defaults_foreign_fields_and_other_spellings_of_a_quantity_are_no_difference() -> None:
    """Else every look would write."""
    assert not differs(DESIRED, LIVE, "us")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.selector.app", "b"),
        ("spec.ports", []),
        ("spec.ports.0.port", 81),
        ("spec.args", ["b", "a"]),
        ("spec.args", ["a", "b", "c"]),
        ("spec.limits.cpu", "600m"),
        ("spec.enabled", False),
        ("metadata.labels.x", None),
    ],
    ids=str,
)
def test_an_edit_of_our_field_is_a_difference(path: str, value: Any) -> None:
    """What we want was changed or removed by hand."""
    assert differs(DESIRED, changed(LIVE, path, value), "us")


REMOVED: list[Callable[[Manifest], Manifest]] = [
    lambda desired: changed(desired, "metadata.labels", {}),
    lambda desired: changed(desired, "spec.enabled", None),
    lambda desired: changed(desired, "spec.limits.memory", None),
    lambda desired: changed(desired, "spec.ports", []),
]


@pytest.mark.parametrize("edit", REMOVED, ids=["label", "field", "below", "list-entry"])
def test_a_field_that_we_applied_and_no_longer_want_is_a_difference(edit: Callable[[Manifest], Manifest]) -> None:
    """Only a write takes it away."""
    assert differs(edit(DESIRED), LIVE, "us")


def test_entries_that_share_a_field_are_told_apart() -> None:
    """One port of two protocols, as in a NetworkPolicy."""
    ports = [{"protocol": "TCP", "port": 1, "endPort": 9003}, {"protocol": "UDP", "port": 1, "endPort": 65535}]
    policy = changed(DESIRED, "spec.rules", ports)
    live = changed(LIVE, "spec.rules", ports)
    live["metadata"]["managedFields"][1]["fieldsV1"]["f:spec"]["f:rules"] = {}
    assert not differs(policy, live, "us")
    assert differs(policy, changed(live, "spec.rules.0.endPort", 9004), "us")


def test_what_we_never_applied_is_written_once() -> None:
    """To own its fields from then on."""
    assert differs(DESIRED, LIVE, "another-manager")


PARENTS: Manifest = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "HTTPRoute",
    "metadata": {"name": "a", "namespace": "team"},
    "spec": {"parentRefs": [{"name": "front"}], "rules": [{"backendRefs": [{"name": "a", "port": 80}]}]},
}


def route(
    *parents: str, backends: tuple[str, ...] = ("a",), owned: tuple[str, ...] = ("parentRefs", "rules")
) -> Manifest:
    """As the API server has it, defaults and all; both lists are atomic."""
    fields = {"manager": "us", "operation": "Apply", "fieldsV1": {"f:spec": {f"f:{name}": {} for name in owned}}}
    backend_refs = [{"group": "", "kind": "Service", "name": name, "port": 80, "weight": 1} for name in backends]
    return {
        **PARENTS,
        "metadata": {"name": "a", "namespace": "team", "uid": "u", "managedFields": [fields]},
        "spec": {
            "parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name} for name in parents],
            "rules": [{"backendRefs": backend_refs, "matches": [{"path": {"type": "PathPrefix", "value": "/"}}]}],
        },
    }


def test_an_entry_of_a_list_that_is_applied_as_a_whole_goes_when_it_is_no_longer_wanted() -> None:
    """One of two parentRefs, and what lies within such a list. Of a list that is merged others may have entries."""
    assert not differs(PARENTS, route("front"), "us")
    assert differs(PARENTS, route("front", "back"), "us")
    assert differs(PARENTS, route("back", "front"), "us")
    assert differs(PARENTS, route("front", backends=("a", "b")), "us")
    merged = copy.deepcopy(LIVE)
    merged["spec"]["ports"].append({"name": "theirs", "port": 81, "protocol": "TCP"})
    assert not differs(DESIRED, merged, "us")


def test_what_is_applied_as_a_whole_and_was_taken_from_us_is_written_again() -> None:
    """A key that somebody adds to a Service's selector, or an entry to a list: what we want is all there."""
    assert differs(PARENTS, route("front", owned=("rules",)), "us")
    taken = copy.deepcopy(LIVE)
    taken["spec"]["selector"]["theirs"] = "b"
    del taken["metadata"]["managedFields"][1]["fieldsV1"]["f:spec"]["f:selector"]
    assert differs(DESIRED, taken, "us")


def test_an_object_of_a_name_alone_owns_nothing() -> None:
    """A pod that loses its marks."""
    bare: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "team", "uid": "u"}}
    fields = {"manager": "us", "operation": "Apply", "fieldsV1": {}}
    assert not differs(bare, {**bare, "metadata": {**bare["metadata"], "managedFields": [fields]}}, "us")


def test_defaults_within_what_is_applied_as_a_whole_are_no_difference() -> None:
    """An environment variable from a field: the server adds an apiVersion."""
    env = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    desired: Manifest = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "a"}, "spec": {"env": [env]}}
    owned: Manifest = {"f:env": {'k:{"name":"IP"}': {".": {}, "f:name": {}, "f:valueFrom": {"f:fieldRef": {}}}}}
    live = copy.deepcopy(desired)
    live["spec"]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
    live["metadata"]["managedFields"] = [{"manager": "us", "operation": "Apply", "fieldsV1": {"f:spec": owned}}]
    assert not differs(desired, live, "us")


EMPTY = {"text": "", "flag": False, "count": 0, "mapping": {}, "whole": [], "null": None, "merged": []}
"""Merged lists have owners by entry, so an empty one has none."""


def wanted(**spec: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": "X", "metadata": {"name": "a"}, "spec": spec}


def found(*owned: str, **spec: Any) -> Manifest:
    fields = {"manager": "us", "operation": "Apply", "fieldsV1": {"f:spec": {f"f:{name}": {} for name in owned}}}
    return {**wanted(**spec), "metadata": {"name": "a", "managedFields": [fields]}}


def test_a_zero_that_the_server_leaves_out_is_no_difference() -> None:
    """As of an environment variable with an empty value; a null asks for nothing, whatever the default is."""
    desired = wanted(image="a", **EMPTY)
    owned = ("image", *EMPTY.keys() - {"merged"})
    assert not differs(desired, found(*owned, image="a"), "us")
    assert not differs(desired, found(*owned, image="a", null="Always"), "us")
    assert changed_fields(desired, found(*owned, image="b"), "us") == (("spec", "image"),)


@pytest.mark.parametrize("field", ["text", "flag", "count", "mapping"])
def test_a_zero_that_somebody_has_taken_away_is_a_difference(field: str) -> None:
    """It is nobody's then; where Kubernetes keeps zeros, none is something else: `automountServiceAccountToken`."""
    desired = wanted(image="a", **{field: EMPTY[field]})
    assert differs(desired, found("image", image="a"), "us")
    assert differs(desired, found("image", field, image="a", **{field: "b"}), "us")
