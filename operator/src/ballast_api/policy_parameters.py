"""Parameters of the core's policies as a schema: camelCase in manifests, the dataclasses' own fields in the core."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from ballast_core.policies.parameters import Parameter, Takes, parameters_of, part_numbers
from ballast_core.policies.placement.composition import MAX_PARTS, MIN_PARTS
from ballast_core.policies.placement.registry import ALL_PLACEMENTS

Schema = dict[str, Any]

_SCHEMA_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def manifest_words(text: str) -> str:
    """Text of the core with its snake_case names as manifests write them; what stands in quotes is the user's own."""
    return re.sub(r"(?<!')\b[a-z][a-z0-9]*(_[a-z0-9]+)+\b", lambda match: to_camel(match[0]), text)


def parameters_schema(policies: Mapping[str, type]) -> Schema:
    """OpenAPI schema that accepts the parameters of every policy: the union of their fields.

    `build_placement` checks which type takes which parameter: a structural schema cannot depend on `type`, nor
    recurse. Of nested policies it has the outermost; the parameters of the inner ones stay open.
    Raises TypeError when a field has a type that a manifest cannot carry, or two policies disagree on one.
    """
    properties: Schema = {}
    for type_name, policy in policies.items():
        for each in parameters_of(policy):
            _add(properties, each, f"{type_name}.{each.name}", type_name)
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _add(properties: Schema, each: Parameter, field: str, owner: str) -> None:
    """Puts the parameter's schema among those of the same level; one name has one schema, but for descriptions."""
    name, schema = to_camel(each.name), _schema(each, field)
    known = properties.setdefault(name, schema)
    if known is not schema:
        if _kind(known) != _kind(schema):
            raise TypeError(f"{field}: another policy has a field of this name and another type")
        for inner, its_schema in schema.get("items", {}).get("properties", {}).items():
            known["items"]["properties"].setdefault(inner, its_schema)
    if each.explanation:
        sentence = manifest_words(f"{owner}: {each.explanation}")
        said = known.get("description") if known is not schema else None
        known["description"] = f"{said} {sentence}" if said else sentence


def _kind(schema: Schema) -> tuple[Any, Any]:
    return schema["type"], schema.get("enum")


def _schema(each: Parameter, field: str) -> Schema:
    if each.takes is Takes.SCALAR:
        return {"type": _SCHEMA_TYPES[each.scalar], **({"enum": list(each.choices)} if each.choices else {})}
    if each.takes is Takes.POLICY:
        return _policy_schema((), field)
    items = _policy_schema(part_numbers(each.part) if each.part else (), field)
    return {"type": "array", "minItems": MIN_PARTS, "maxItems": MAX_PARTS, "items": items}


def _policy_schema(numbers: Iterable[Parameter], field: str) -> Schema:
    """A policy inside of another one."""
    properties: Schema = {
        "type": {"type": "string", "enum": sorted(ALL_PLACEMENTS), "description": "Type name of the policy."},
        "parameters": {
            "type": "object",
            "additionalProperties": True,
            "description": "Parameters of that type. The operator checks them, the API server does not.",
        },
    }
    for each in numbers:
        _add(properties, each, f"{field}.{each.name}", field.partition(".")[0])
    return {
        "type": "object",
        "description": "A policy inside of this one.",
        "required": ["type"],
        "properties": properties,
        "additionalProperties": False,
    }
