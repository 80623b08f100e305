"""When a write is due: differences that matter, and those that do not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ballast_operator.drift import differs
from ballast_operator.kinds import Manifest

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
    assert not differs(policy, live, "us")
    assert differs(policy, changed(live, "spec.rules.0.endPort", 9004), "us")


def test_what_we_never_applied_is_written_once() -> None:
    """To own its fields from then on."""
    assert differs(DESIRED, LIVE, "another-manager")
