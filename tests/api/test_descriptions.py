"""Descriptions are documentation: `kubectl explain`, the reference pages and values.schema.json show them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from ballast_api.chart_values import ChartValues
from ballast_api.crds import resource_schema
from ballast_api.resources import KINDS
from ballast_api.structural import json_schema_of, rewrite


def described(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Path and description of every field below."""
    for name, child in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        yield where, child.get("description", "")
        yield from described(child, where)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from described(schema[key], f"{path}[]")


def descriptions(kind: str) -> dict[str, str]:
    """Of spec and status. The metadata are Kubernetes' own, parameters are the policies'."""
    return {
        path: text
        for path, text in described(resource_schema(KINDS[kind]))
        if not path.startswith("metadata") and ".parameters." not in path
    }


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_of_a_resource_is_explained_in_a_sentence(kind: str) -> None:
    """What it does: four words at least, and a full stop."""
    poor = {path: text for path, text in descriptions(kind).items() if not explains(text)}
    assert poor == {}


def test_each_value_of_the_chart_is_explained_in_a_sentence() -> None:
    """In values.yaml and in its schema."""
    assert {path: text for path, text in described(rewrite(json_schema_of(ChartValues))) if not explains(text)} == {}


@pytest.mark.parametrize("kind", ["ServingPool", "SchedulingPolicy", "ServiceLevelObjective", "HardwareProfile"])
def test_no_field_is_without_effect(kind: str) -> None:
    """One that did nothing would have to say so, and must not be there."""
    texts = descriptions(kind).items()
    wrong = re.compile(r"no effect|not acted on|in this release", re.IGNORECASE)
    assert [path for path, text in texts if wrong.search(text)] == []


def explains(text: str) -> bool:
    return text.endswith(".") and len(re.findall(r"[A-Za-z]+", text)) >= 4
