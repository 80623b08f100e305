"""Parameters of policies: fields of the core's dataclasses, camelCase in manifests."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import jsonschema
import pytest
from pydantic import ValidationError

from ballast_api.errors import explain
from ballast_api.policy_parameters import core_parameters, parameters_schema
from ballast_api.scheduling_policy import PLANNED_PARTS, PlacementSpec, SchedulingPolicySpec
from ballast_core.policies.registry import PLACEMENTS, build_placement


@dataclass(frozen=True)
class Weighted:
    """A policy with parameters of every kind."""

    kv_weight: float = 1.0
    max_queue: int = 4
    strict: bool = False


@dataclass(frozen=True)
class Named:
    """Shares a field with another policy."""

    kv_weight: float = 2.0
    hash_key: str = ""


@dataclass(frozen=True)
class Clashing:
    """The same name, another type."""

    kv_weight: int = 1


@dataclass(frozen=True)
class Foreign:
    """A field that no manifest can carry."""

    when: complex = 0j


def test_the_schema_is_the_union_of_all_fields() -> None:
    """A structural schema cannot depend on `type`; the registry says which type takes what."""
    schema = parameters_schema({"weighted": Weighted, "named": Named})
    assert schema["properties"] == {
        "kvWeight": {"type": "number"},
        "maxQueue": {"type": "integer"},
        "strict": {"type": "boolean"},
        "hashKey": {"type": "string"},
    }
    jsonschema.validate({"kvWeight": 1.5, "maxQueue": 2}, schema)
    with pytest.raises(jsonschema.ValidationError, match="kv_weight"):
        jsonschema.validate({"kv_weight": 1.5}, schema)


def test_policies_that_disagree_on_a_field_are_refused() -> None:
    """When the schema is generated, not in a cluster."""
    with pytest.raises(TypeError, match=r"clashing\.kv_weight: another policy has a field of this name"):
        parameters_schema({"weighted": Weighted, "clashing": Clashing})
    with pytest.raises(TypeError, match=r"foreign\.when: a manifest cannot carry"):
        parameters_schema({"foreign": Foreign})


def test_camel_case_becomes_the_fields_own_name() -> None:
    """And back by the schema, for every shipped policy."""
    assert core_parameters({"kvWeight": 1, "maxQueue": 2, "strict": True}) == {
        "kv_weight": 1,
        "max_queue": 2,
        "strict": True,
    }
    for policy in PLACEMENTS.values():
        properties = parameters_schema({"it": policy})["properties"]
        fields = [field.name for field in dataclasses.fields(cast("Any", policy))]
        assert sorted(core_parameters(properties)) == sorted(fields)


def test_a_wrong_parameter_is_named_as_the_manifest_writes_it() -> None:
    """camelCase in the path and in the words."""
    with pytest.raises(ValidationError) as caught:
        PlacementSpec.parse({"type": "round-robin", "parameters": {"kvWeight": 1}})
    (problem,) = explain(caught.value, PlacementSpec)
    assert str(problem) == "parameters.kvWeight: round-robin has no parameter 'kvWeight'; it takes none"


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
def test_every_placement_of_the_core_can_be_named(name: str) -> None:
    """What the registry has is what a manifest may say, and it becomes that very policy."""
    assert PlacementSpec(type=name).build() == build_placement(name)


@pytest.mark.parametrize("part", sorted(PLANNED_PARTS))
def test_parts_that_are_not_implemented_are_refused_with_the_reason(part: str) -> None:
    """Accepting them would promise what nothing does."""
    with pytest.raises(ValueError, match="this release has no"):
        SchedulingPolicySpec.parse({part: {"type": "x"}})
