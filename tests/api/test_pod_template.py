"""Overlays of pod templates: what the API server could not read is refused with its field."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ballast_api.errors import explain
from ballast_api.pod_template import PodTemplateOverlay


def overlay(**engine: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **engine}]}}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (overlay(resources={"limits": {"memory": "4 Gi"}}), "spec.containers[0].resources.limits.memory"),
        (overlay(resources={"requests": {"cpu": "a lot"}}), "spec.containers[0].resources.requests.cpu"),
        (overlay(resources={"requests": {"cpu": True}}), "spec.containers[0].resources.requests.cpu"),
        (
            {"spec": {"initContainers": [{"name": "agent", "resources": {"limits": {"memory": "1GB"}}}]}},
            "spec.initContainers[0].resources.limits.memory",
        ),
        (
            {"spec": {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "8 Gi"}}]}},
            "spec.volumes[0].emptyDir.sizeLimit",
        ),
    ],
)
def test_a_bad_quantity_is_named(value: dict[str, Any], field: str) -> None:
    """With its path and what a quantity looks like."""
    with pytest.raises(ValidationError) as caught:
        PodTemplateOverlay.parse(value)
    (problem,) = explain(caught.value)
    assert problem.field == field
    assert "4Gi" in problem.message


@pytest.mark.parametrize(
    ("value", "field", "fix"),
    [
        (overlay(args=["--max-num-seqs", 64]), "spec.containers[0].args[1]", '"64"'),
        (overlay(command="vllm serve"), "spec.containers[0].command", "a list"),
        (overlay(env=["A=B"]), "spec.containers[0].env[0]", "the field name"),
        (overlay(env=[{"value": "x"}]), "spec.containers[0].env[0]", "the field name"),
        (overlay(ports=[8000]), "spec.containers[0].ports[0]", "the field containerPort"),
        ({"spec": {"volumes": ["data"]}}, "spec.volumes[0]", "the field name"),
        ({"spec": {"volumes": "data"}}, "spec.volumes", "a list"),
        ({"spec": {"initContainers": [{"image": "x"}]}}, "spec.initContainers[0]", "the field name"),
        ({"spec": {"initContainers": [{"name": "a", "env": [1]}]}}, "spec.initContainers[0].env[0]", "the field name"),
    ],
)
def test_what_cannot_be_merged_is_named(value: dict[str, Any], field: str, fix: str) -> None:
    """Kubernetes would refuse it too, but only what is made of it."""
    with pytest.raises(ValidationError) as caught:
        PodTemplateOverlay.parse(value)
    (problem,) = explain(caught.value)
    assert problem.field == field
    assert fix in problem.message


def test_a_null_removes_a_list() -> None:
    """As it removes any field."""
    given = {"spec": {"volumes": None, "containers": [{"name": "engine", "args": None, "env": None}]}}
    parsed = PodTemplateOverlay.parse(given).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert parsed == given


@pytest.mark.parametrize("value", ["4Gi", "500m", "1e3", "+.5", "0", 2, 0.5, None])
def test_quantities_and_nulls_are_kept_as_they_are(value: Any) -> None:
    """A null removes the generated field."""
    given = overlay(resources={"limits": {"memory": value}})
    parsed = PodTemplateOverlay.parse(given).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert parsed == given
