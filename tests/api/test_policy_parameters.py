"""Parameters of policies: fields of the core's dataclasses, camelCase in manifests."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import jsonschema
import pytest
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from ballast_api.common import API_VERSION
from ballast_api.errors import explain
from ballast_api.loading import load_manifest
from ballast_api.policy_parameters import parameters_schema
from ballast_api.reference import policies_page
from ballast_api.scheduling_policy import PLANNED_PARTS, PlacementSpec, SchedulingPolicy, SchedulingPolicySpec
from ballast_core.policies.placement.cache_aware import LinearKv
from ballast_core.policies.placement.composition import Factor, FilterThen, Product
from ballast_core.policies.placement.loads import Ils
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.policies.placement.registry import ALL_PLACEMENTS, PLACEMENTS
from ballast_core.policies.registry import build_placement
from ballast_operator.status.accepted import accepted_status


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
    with pytest.raises(TypeError, match=r"Foreign\.when: a manifest cannot carry"):
        parameters_schema({"foreign": Foreign})


def test_the_schema_writes_each_field_in_camel_case() -> None:
    """For every shipped policy; and what the core calls it itself is no name in a manifest."""
    for policy in ALL_PLACEMENTS.values():
        properties = parameters_schema({"it": policy})["properties"]
        assert list(properties) == [to_camel(field.name) for field in dataclasses.fields(cast("Any", policy))]
    with pytest.raises(ValidationError, match="linear-kv has no parameter 'kv_weight'; it takes kvWeight"):
        PlacementSpec.parse({"type": "linear-kv", "parameters": {"kv_weight": 0.5}})


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


def test_a_number_that_no_fleet_needs_is_refused_as_the_manifest_writes_it() -> None:
    """It would cost all memory or a core of the gateway; the range is named."""
    with pytest.raises(ValidationError) as caught:
        SchedulingPolicySpec.parse({"rescheduling": {"type": "ares", "parameters": {"intervalS": 1e-9}}})
    (problem,) = explain(caught.value, SchedulingPolicySpec)
    named = "rescheduling.parameters.intervalS: ares: intervalS: must be from 0.05 to 3600, not 1e-09"
    assert str(problem) == named


PRODUCT = {
    "type": "product",
    "parameters": {
        "parts": [
            {"type": "linear-kv", "parameters": {"kvWeight": 0.5}},
            {"type": "least-requests", "offset": 1},
        ]
    },
}


def test_a_composition_in_a_manifest_becomes_the_cores_policy() -> None:
    """Nested, camelCase, with the numbers of each part."""
    spec = PlacementSpec.parse(
        {"type": "filter-then", "parameters": {"first": {"type": "ils"}, "then": PRODUCT, "keep": "within", "ratio": 2}}
    )
    product = Product(parts=(Factor(LinearKv(kv_weight=0.5)), Factor(LeastRequests(), offset=1.0)))
    assert spec.build() == FilterThen(first=Ils(), then=product, keep="within", ratio=2.0)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        (
            [{"type": "ils"}, {"type": "linear-kv", "parameters": {"kvWeight": 2}}],
            "parts[1].parameters.kvWeight: linear-kv: kvWeight: must be from 0 to 1, not 2",
        ),
        (
            [PRODUCT, {"type": "linear-kv", "parameters": {"weight": 1}}],
            "parts[1].parameters.weight: linear-kv has no parameter 'weight'; it takes kvWeight",
        ),
        (
            [{"type": "ils"}, {"type": "ils", "weight": float("inf")}],
            "parts[1].weight: weight: must be a finite number, 0 or more, not inf",
        ),
        (
            [{"type": "ils"}, {"type": "ils", "offset": 1}],
            "parts[1].offset: is not a field here; there are type, parameters, weight",
        ),
        ([{"type": "ils"}, {}], "parts[1].type: is missing; name a placement"),
        ([{"type": "ils"}], "parts: weighted-sum: parts: must be 2 to 8 policies, not 1"),
        ("ils", "parts: weighted-sum: must be a list of policies, not str"),
        (["ils", "ils"], "parts[0]: must be a mapping with type, parameters, weight, not str"),
    ],
)
def test_what_is_wrong_inside_of_a_composition_is_named_with_its_path(parts: object, problem: str) -> None:
    """Path and words as the manifest writes them."""
    with pytest.raises(ValidationError) as caught:
        PlacementSpec.parse({"type": "weighted-sum", "parameters": {"parts": parts}})
    (found,) = explain(caught.value, PlacementSpec)
    assert str(found) == f"parameters.{problem}"


def test_the_schema_of_a_composition_knows_its_policies_one_level_deep() -> None:
    """A CRD cannot recurse: parameters of inner policies stay open for the server, and the core checks them."""
    schema = parameters_schema(ALL_PLACEMENTS)
    jsonschema.validate(PRODUCT["parameters"], schema)
    jsonschema.validate({"parts": [{"type": "ils", "weight": 1}, {"type": "product", "parameters": {"x": 1}}]}, schema)
    for wrong in (
        {"parts": [{"type": "il"}]},
        {"parts": [{"type": "ils", "factor": 1}]},
        {"keep": "all"},
        {"parts": 1},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_manifest_on_the_reference_page_is_accepted() -> None:
    """What people copy."""
    text = policies_page().partition("```yaml\n")[2].partition("```")[0]
    (policy,) = load_manifest(text)
    assert isinstance(policy, SchedulingPolicy)
    assert policy.spec.prefill.build().type == "filter-then"


def test_the_operator_refuses_what_the_server_lets_through() -> None:
    """In the condition Accepted, with the path."""
    spec = {"prefill": {"type": "weighted-sum", "parameters": {"parts": [PRODUCT, {**PRODUCT, "parameters": {}}]}}}
    manifest = {"apiVersion": API_VERSION, "kind": "SchedulingPolicy", "metadata": {"name": "mine"}, "spec": spec}
    (condition,) = accepted_status(manifest, "2026-11-21T06:00:00Z")["conditions"]
    assert condition["status"] == "False"
    assert condition["message"] == (
        "spec.prefill.parameters.parts[1].parameters.parts: product: parts is missing; "
        "give the policies whose costs are multiplied, 2 to 8"
    )
