"""The rewriter says in Kubernetes' language what the models say, and refuses loudly what that language cannot say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from ballast_api.common import ApiModel, KeyedBy, Rule, Seq
from ballast_api.resources import KINDS
from ballast_api.structural import NotStructural, rewrite, structural_schema


class Inner(ApiModel):
    """Inner docstring."""

    size: Annotated[int, Field(ge=1, lt=10)] = 3
    """How much."""


class Outer(ApiModel):
    """Wraps over
    two lines.

    And a second paragraph.
    """

    rules = (Rule(field="fixed", cel="true", message="never", holds=lambda self: True),)

    inner: Inner
    """Described where it is used."""
    maybe: Inner | None = None
    """May be absent."""
    filled: Inner = Field(default_factory=Inner)
    """Has a default of its own."""
    fixed: Literal["a"] = "a"
    """One choice."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Above 0."""
    keyed: Annotated[Seq[Inner], Field(max_length=4), KeyedBy("size")] = ()
    """A map as a list."""
    free: dict[str, Any] = Field(default_factory=dict)
    """Anything."""
    texts: dict[str, str] = Field(default_factory=dict)
    """Texts by name."""


@pytest.fixture(scope="module")
def properties() -> dict[str, Any]:
    result: dict[str, Any] = structural_schema(Outer)["properties"]
    return result


INNER = {
    "type": "object",
    "properties": {
        "size": {
            "description": "How much.",
            "type": "integer",
            "default": 3,
            "minimum": 1,
            "maximum": 10,
            "exclusiveMaximum": True,
        }
    },
}


def test_references_are_inlined_and_the_description_of_the_use_wins(properties: dict[str, Any]) -> None:
    """The API server knows no $ref; titles are dropped."""
    assert properties["inner"] == {"description": "Described where it is used.", **INNER}


def test_an_optional_field_is_its_type_without_a_default(properties: dict[str, Any]) -> None:
    """Absent and null are the same in Kubernetes."""
    assert properties["maybe"] == {"description": "May be absent.", **INNER}


def test_the_default_of_a_factory_is_written_in_full(properties: dict[str, Any]) -> None:
    """The server judges a default by the CEL rules before it fills in nested defaults."""
    assert properties["filled"]["default"] == {"size": 3}


def test_a_constant_is_a_choice_of_one(properties: dict[str, Any]) -> None:
    """OpenAPI v3.0 has no const."""
    assert properties["fixed"] == {"description": "One choice.", "type": "string", "enum": ["a"], "default": "a"}


def test_an_exclusive_bound_is_a_flag(properties: dict[str, Any]) -> None:
    """As in OpenAPI v3.0."""
    assert properties["share"] == {
        "description": "Above 0.",
        "type": "number",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 1,
    }


def test_a_keyed_list_is_a_list_map(properties: dict[str, Any]) -> None:
    """Server-side apply merges it by key."""
    keyed = properties["keyed"]
    assert (keyed["x-kubernetes-list-type"], keyed["x-kubernetes-list-map-keys"]) == ("map", ["size"])
    assert (keyed["type"], keyed["maxItems"], keyed["default"]) == ("array", 4, [])


def test_free_objects_keep_unknown_fields_and_maps_have_a_type(properties: dict[str, Any]) -> None:
    """properties and additionalProperties never stand side by side."""
    assert properties["free"]["x-kubernetes-preserve-unknown-fields"] is True
    assert "additionalProperties" not in properties["free"]
    assert properties["texts"]["additionalProperties"] == {"type": "string"}


def test_docstrings_become_one_line_a_paragraph_and_rules_are_kept() -> None:
    """The description is the model's own text; CEL comes from the model's rules."""
    schema = structural_schema(Outer)
    assert schema["description"] == "Wraps over two lines.\nAnd a second paragraph."
    assert schema["x-kubernetes-validations"] == [{"rule": "true", "message": "never", "fieldPath": ".fixed"}]
    assert "additionalProperties" not in schema


class Tree(BaseModel):
    children: list[Tree] = []


class Mixed(BaseModel):
    value: int | str


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (Tree.model_json_schema(), r"children\[\].*Tree -> Tree is recursive"),
        (Mixed.model_json_schema(), r"\.value: is a union of 2 types"),
        ({"type": ["string", "integer"]}, "has the types"),
        ({"type": "string", "format": "email"}, "ignores format 'email'"),
        ({"type": "array", "prefixItems": []}, "prefixItems has no counterpart"),
        ({"type": "object", "patternProperties": {}}, "patternProperties has no counterpart"),
        ({"allOf": [{"type": "string"}, {"type": "string"}]}, "allOf of 2 schemas"),
        ({"description": "anything"}, "has no single type"),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}},
            "exclude each other",
        ),
    ],
    ids=["recursion", "union", "type-list", "format", "tuple", "pattern-keys", "all-of", "untyped", "both-properties"],
)
def test_what_a_crd_cannot_say_is_refused_with_its_path(schema: dict[str, Any], message: str) -> None:
    """In `make generate`, not in a user's cluster."""
    with pytest.raises(NotStructural, match=message):
        rewrite(schema)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_field_of_every_resource_is_described(kind: str) -> None:
    """`kubectl explain` and the reference have no holes."""
    assert list(_undescribed(structural_schema(KINDS[kind]), kind)) == []


def _undescribed(schema: dict[str, Any], path: str) -> list[str]:
    missing = [] if "description" in schema else [path]
    for name, child in schema.get("properties", {}).items():
        missing += _undescribed(child, f"{path}.{name}")
    if schema.get("items", {}).get("properties"):
        missing += _undescribed(schema["items"], f"{path}[]")
    return missing
