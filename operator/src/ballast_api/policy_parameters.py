"""Parameters of the core's policies as a schema: camelCase in manifests, the dataclasses' own fields in the core."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

_SCHEMA_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def core_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """camelCase keys of a manifest as the core's snake_case field names."""
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): value for name, value in parameters.items()}


def manifest_words(text: str) -> str:
    """Text of the core with its snake_case names as manifests write them."""
    return re.sub(r"\b[a-z][a-z0-9]*(_[a-z0-9]+)+\b", lambda match: to_camel(match[0]), text)


def parameters_schema(policies: Mapping[str, type]) -> dict[str, Any]:
    """OpenAPI schema that accepts the parameters of every policy: the union of their fields.

    Which type takes which parameter is for `build_placement` to say; a structural schema cannot depend on `type`.
    Raises TypeError when a field has a type that a manifest cannot carry, or two policies disagree on one.
    """
    properties: dict[str, Any] = {}
    for type_name, policy in policies.items():
        hints = typing.get_type_hints(policy)
        for field in dataclasses.fields(policy):
            name, hint = to_camel(field.name), hints[field.name]
            if hint not in _SCHEMA_TYPES:
                raise TypeError(f"{type_name}.{field.name}: a manifest cannot carry a {hint}")
            schema = properties.setdefault(name, {"type": _SCHEMA_TYPES[hint]})
            if schema["type"] != _SCHEMA_TYPES[hint]:
                raise TypeError(f"{type_name}.{field.name}: another policy has a field of this name and another type")
            if explanation := field.metadata.get("explanation"):
                sentence = f"{type_name}: {explanation}"
                schema["description"] = f"{schema['description']} {sentence}" if "description" in schema else sentence
    return {"type": "object", "properties": properties, "additionalProperties": False}
