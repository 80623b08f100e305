"""Merging a PodTemplate overlay: the rules of `ballast_operator.specs.overlay`, one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_operator.planning.plan import plan
from ballast_operator.specs.overlay import merged, overlaid
from tests.support.operator_builders import observed, pool, serving_pool

RULES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("scalar-replaces", {"a": 1}, {"a": 2}, {"a": 2}),
    ("new-field", {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    ("null-removes", {"a": 1, "b": 2}, {"a": None}, {"b": 2}),
    ("mappings-merge", {"m": {"a": 1, "b": 2}}, {"m": {"b": 3}}, {"m": {"a": 1, "b": 3}}),
    ("null-removes-below", {"m": {"a": 1, "b": 2}}, {"m": {"a": None}}, {"m": {"b": 2}}),
    ("other-lists-replace", {"args": ["a", "b"]}, {"args": ["c"]}, {"args": ["c"]}),
    (
        "containers-by-name",
        {"containers": [{"name": "engine", "image": "i", "tty": True}]},
        {"containers": [{"name": "helper"}, {"name": "engine", "tty": False}]},
        {"containers": [{"name": "engine", "image": "i", "tty": False}, {"name": "helper"}]},
    ),
    (
        "env-entry-replaces-whole",
        {"env": [{"name": "A", "valueFrom": {"x": 1}}, {"name": "B", "value": "b"}]},
        {"env": [{"name": "A", "value": "a"}]},
        {"env": [{"name": "A", "value": "a"}, {"name": "B", "value": "b"}]},
    ),
    (
        "mounts-by-path",
        {"volumeMounts": [{"name": "x", "mountPath": "/x"}]},
        {"volumeMounts": [{"name": "y", "mountPath": "/x"}, {"name": "z", "mountPath": "/z"}]},
        {"volumeMounts": [{"name": "y", "mountPath": "/x"}, {"name": "z", "mountPath": "/z"}]},
    ),
    ("list-where-none-was", {}, {"tolerations": [{"key": "gpu"}]}, {"tolerations": [{"key": "gpu"}]}),
]


@pytest.mark.parametrize(("base", "overlay", "expected"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_rules(base: dict[str, Any], overlay: dict[str, Any], expected: dict[str, Any]) -> None:
    """Base and overlay to result."""
    assert expected == merged(base, overlay)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
MAPPING = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@given(base=MAPPING, overlay=MAPPING)
def test_merging_twice_is_merging_once(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    """Idempotent: the plan of an unchanged spec does not move."""
    once = merged(base, overlay)
    assert merged(once, overlay) == once


@given(base=MAPPING)
def test_an_empty_overlay_changes_nothing(base: dict[str, Any]) -> None:
    """No overlay, no difference."""
    assert merged(base, {}) == base


def test_labels_and_annotations_of_ballast_win() -> None:
    """An overlay cannot take a pod out of its pool."""
    template = {"metadata": {"labels": {"role": "decode"}, "annotations": {}}, "spec": {}}
    result = overlaid(template, {"metadata": {"labels": {"role": "prefill", "team": "a"}}})
    assert result["metadata"]["labels"] == {"role": "decode", "team": "a"}


def test_an_overlay_reaches_the_pods_and_rolls_them() -> None:
    """GPU limits, tolerations, a volume; the revision changes with them."""
    overlay: dict[str, Any] = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": None, "cpu": "2"}}}],
        },
    }
    specs: tuple[dict[str, Any], ...] = ({}, {"template": overlay})
    plain, changed = (
        next(
            item["spec"]["template"]
            for item in plan(observed(serving_pool(pool("it", "Flexible", **more)))).apply
            if item["kind"] == "Deployment" and item["metadata"]["name"] == "chat-it"
        )
        for more in specs
    )
    assert changed["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert changed["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2"}
    assert changed["spec"]["containers"][0]["image"] == plain["spec"]["containers"][0]["image"]
    assert changed["metadata"]["labels"]["team"] == "a"
    revision = "serving.ballast.dev/revision"
    assert changed["metadata"]["annotations"][revision] != plain["metadata"]["annotations"][revision]
