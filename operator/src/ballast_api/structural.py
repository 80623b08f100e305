"""pydantic's JSON schema as a Kubernetes *structural* schema (apiextensions.k8s.io/v1).

The API server takes OpenAPI v3.0 with rules of its own: no `$ref`, one `type` everywhere, no `null`, `properties` never
beside `additionalProperties`. What that language cannot express is refused here with the path of the field, so that
a model that a cluster would refuse fails in `make generate` and not in a user's hands.
See kubernetes.io, "Extend the Kubernetes API with CustomResourceDefinitions", section "Specifying a structural schema".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, NoDefault
from pydantic_core import core_schema

Schema = dict[str, Any]


class NotStructural(TypeError):
    """A schema that a CustomResourceDefinition cannot express. The message names path and keyword."""


class _WithFactoryDefaults(GenerateJsonSchema):
    """Writes the defaults of default factories too: the server must fill in what pydantic fills in."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        if "default_factory" not in schema:
            return super().get_default_value(schema)
        if schema.get("default_factory_takes_data"):
            return NoDefault
        value = schema["default_factory"]()  # type: ignore[call-arg]
        if isinstance(value, BaseModel):
            # In full: the server checks a default against the CEL rules before it fills in nested defaults.
            return value.model_dump(mode="json", by_alias=True)
        return value


def json_schema_of(model: type[BaseModel]) -> Schema:
    """JSON schema of the model, defaults of factories included."""
    return model.model_json_schema(by_alias=True, schema_generator=_WithFactoryDefaults)


def structural_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of a model. Raises `NotStructural`."""
    return rewrite(json_schema_of(model))


def rewrite(schema: Mapping[str, Any]) -> Schema:
    """A JSON schema (draft 2020-12, as pydantic writes it) as a structural schema. Raises `NotStructural`."""
    definitions = schema.get("$defs", {})
    root = {key: value for key, value in schema.items() if key != "$defs"}
    return _Rewriter(definitions).rewrite(root, _At())


_KEPT = frozenset(
    {
        "type",
        "description",
        "default",
        "enum",
        "format",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "required",
        "nullable",
    }
)
_DROPPED = frozenset({"title", "examples", "deprecated"})
_TYPED_BY = frozenset({"type", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"})
_FORMATS = frozenset({"date-time", "int32", "int64", "float", "double", "byte", "uuid"})


@dataclass(frozen=True, slots=True)
class _At:
    """Where the rewriter is: the path for messages, and the references that it is inside of."""

    path: str = ""
    open_refs: tuple[str, ...] = ()

    def below(self, step: str) -> _At:
        return replace(self, path=f"{self.path}{step}")

    def inside(self, ref: str) -> _At:
        if ref in self.open_refs:
            raise self.refusal(f"{' -> '.join((*self.open_refs, ref))} is recursive; a CRD cannot recurse")
        return replace(self, open_refs=(*self.open_refs, ref))

    def refusal(self, message: str) -> NotStructural:
        return NotStructural(f"{self.path or 'the root'}: {message}")


class _Rewriter:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def rewrite(self, schema: Mapping[str, Any], at: _At) -> Schema:
        inlined, at = self._inlined(schema, at)
        inlined = _without_null(inlined, at)
        inlined, at = self._inlined(inlined, at)  # what the optional union held
        result: Schema = {}
        for keyword, value in inlined.items():
            result |= self._keyword(keyword, value, inlined, at)
        if not result.keys() & _TYPED_BY:
            raise at.refusal("has no single type; a structural schema needs one")
        return _ordered(result)

    def _inlined(self, schema: Mapping[str, Any], at: _At) -> tuple[Schema, _At]:
        """Follows `$ref` (and an `allOf` of one, which is the same); what stands beside it wins."""
        schema = dict(schema)
        while "$ref" in schema or "allOf" in schema:
            if "allOf" in schema:
                parts = schema.pop("allOf")
                if len(parts) != 1:
                    raise at.refusal(f"allOf of {len(parts)} schemas cannot be merged")
                schema = {**parts[0], **schema}
                continue
            name = schema.pop("$ref").rpartition("/")[2]
            at = at.inside(name)
            schema = {**self._definitions[name], **schema}
        return schema, at

    def _keyword(self, keyword: str, value: Any, schema: Schema, at: _At) -> Schema:
        """What one keyword becomes."""
        match keyword:
            case "properties":
                return {
                    "properties": {name: self.rewrite(child, at.below(f".{name}")) for name, child in value.items()}
                }
            case "items":
                return {"items": self.rewrite(value, at.below("[]"))}
            case "additionalProperties":
                return self._additional(value, schema, at)
            case "const":
                return {"type": schema.get("type") or _json_type(value), "enum": [value]}
            case "exclusiveMinimum":
                return {"minimum": value, "exclusiveMinimum": True}
            case "exclusiveMaximum":
                return {"maximum": value, "exclusiveMaximum": True}
            case "description":
                return {"description": paragraph(value)}
            case "format" if value not in _FORMATS:
                raise at.refusal(f"the API server ignores format {value!r}; use a pattern")
            case _ if keyword in _KEPT or keyword.startswith("x-kubernetes-"):
                return {keyword: value}
            case _ if keyword in _DROPPED:
                return {}
        raise at.refusal(f"{keyword} has no counterpart in a structural schema")

    def _additional(self, value: Any, schema: Schema, at: _At) -> Schema:
        """Unknown fields: false is the server's default, true keeps them, a schema makes a map."""
        if value is False:
            return {}
        if value is True:
            return {"x-kubernetes-preserve-unknown-fields": True}
        if schema.get("properties"):
            raise at.refusal("properties and additionalProperties exclude each other")
        return {"additionalProperties": self.rewrite(value, at.below(".*"))}


def _without_null(schema: Schema, at: _At) -> Schema:
    """`X | None` as X: an absent field and null mean the same in Kubernetes."""
    for union in ("anyOf", "oneOf"):
        if union not in schema:
            continue
        members = [member for member in schema[union] if member.get("type") != "null"]
        if len(members) != 1:
            raise at.refusal(f"is a union of {len(members)} types; a structural schema has one")
        schema = {**members[0], **{key: value for key, value in schema.items() if key != union}}
    if isinstance(schema.get("type"), list):
        raise at.refusal(f"has the types {schema['type']}; a structural schema has one")
    if schema.get("default", ...) is None:
        schema = {key: value for key, value in schema.items() if key != "default"}
    return schema


def paragraph(text: str) -> str:
    """Docstring text with each paragraph on one line."""
    blocks = text.strip().split("\n\n")
    return "\n".join(" ".join(block.split()) for block in blocks)


def _json_type(value: object) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    raise NotStructural(f"const {value!r} has no scalar type")


_ORDER = ("description", "type", "enum", "format", "default")


def _ordered(schema: Schema) -> Schema:
    """Description and type first, then the rest by name: diffs of generated files stay small."""
    first = {key: schema[key] for key in _ORDER if key in schema}
    last = {key: schema[key] for key in sorted(schema) if key not in first and key not in ("required", "properties")}
    tail = {key: schema[key] for key in ("required", "properties") if key in schema}
    return first | last | tail
