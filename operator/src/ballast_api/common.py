"""What every model of the API shares: strictness, camelCase names, rules that the API server and pydantic both enforce.

The API server reads the generated OpenAPI schema and CEL; the operator, the gateway and the tools read these models.
Both must accept and refuse the same objects and fill in the same defaults (tests/api and e2e apply one table of
mutations to both), so nothing here coerces: `replicas: "3"` is an error, as it is for the server.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    Strict,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

GROUP = "serving.ballast.dev"
VERSION = "v1alpha1"
API_VERSION: Final = "serving.ballast.dev/v1alpha1"

T = TypeVar("T")
Seq = Annotated[tuple[T, ...], Strict(False)]
"""A list in manifests, a tuple in Python."""

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_LABEL_STARTING_WITH_LETTER = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
NO_SPACES = r"^\S+$"
HEADER_NAME = r"^[a-z0-9-]+$"
HOSTNAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
ABSOLUTE_PATH = r"^/[^:\s]+$"

PATTERN_SENTENCES: Mapping[str, str] = {
    DNS_LABEL: "must be lower-case letters, digits and '-', with a letter or digit at both ends",
    DNS_LABEL_STARTING_WITH_LETTER: "must be lower-case letters, digits and '-', from a letter to a letter or digit",
    DNS_SUBDOMAIN: "must be lower-case letters, digits, '-' and '.', with a letter or digit at both ends",
    NO_SPACES: "must be one word without spaces",
    HEADER_NAME: "must be lower-case letters, digits and '-'",
    HOSTNAME: "must be a DNS name in lower case, '*.' may stand before it",
    ABSOLUTE_PATH: "must be an absolute path without spaces and ':'",
}
"""What a pattern asks for, in words."""

NonEmptyStr = Annotated[str, Field(min_length=1)]
LAST_PORT: Final = 65535
Port = Annotated[int, Field(ge=1, le=LAST_PORT)]
MAX_INT: Final = 2**31 - 1
PositiveInt = Annotated[int, Field(ge=1, le=MAX_INT)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_INT)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
DrainSeconds = Annotated[float, Field(ge=0, le=604_800)]
"""Seconds that something gets to end, a week at most: the grace periods of pods are made of them."""
ShareRatio = Annotated[float, Field(ge=0, le=1)]
"""A share in [0, 1]."""
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
"""The name of another Kubernetes object."""
Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
DateTime = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""RFC 3339, UTC, as Kubernetes writes it: `2026-11-21T06:00:00Z`."""


def _without_nulls(value: object) -> object:
    """The server drops null entries of a map of texts; so does every model."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else value


StringMap = Annotated[dict[str, str], BeforeValidator(_without_nulls)]
LabelMap = Annotated[dict[str, Annotated[str, Field(max_length=63)]], BeforeValidator(_without_nulls)]
ImagePullPolicy = Literal["Always", "IfNotPresent", "Never"]
JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition across fields, once for the API server (CEL) and once for pydantic.

    The two halves stand side by side because they must agree. `field` is the camelCase path that the error
    names, relative to the model; it must exist in the schema (the server checks that).
    """

    field: str
    cel: str
    message: str
    holds: Callable[[Any], bool]

    def as_schema(self) -> JsonObject:
        """The entry of `x-kubernetes-validations`."""
        return {"rule": self.cel, "message": self.message, "fieldPath": f".{self.field}"}


class ApiModel(BaseModel):
    """Base of all models: immutable, strict, camelCase outside and snake_case inside, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        """The model of plain data, as it came from YAML or the API server: camelCase names only.

        Raises pydantic's ValidationError; `ballast_api.errors.explain` turns it into sentences.
        """
        return cls.model_validate(value, by_alias=True, by_name=False)

    def dump(self) -> JsonObject:
        """Plain data for YAML and the API server: camelCase, absent instead of null, defaults written out."""
        return self.model_dump(mode="json", by_alias=True)

    @model_serializer(mode="wrap")
    def _write_absent_fields_not(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        """No null for absent fields; nulls inside free-form parts stay: in an overlay they delete."""
        data: JsonObject = handler(self)
        free = self.model_extra or {}
        return {key: value for key, value in data.items() if value is not None or key in free}

    @model_validator(mode="before")
    @classmethod
    def _treat_null_as_the_api_server_does(cls, value: object) -> object:
        """The server takes null in a field that may be absent as absence."""
        if not isinstance(value, Mapping) or all(item is not None for item in value.values()):
            return value
        optional = {info.alias or name for name, info in cls.model_fields.items() if not info.is_required()}
        return {key: item for key, item in value.items() if item is not None or key not in optional}

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = [rule for rule in self.rules if not rule.holds(self)]
        if broken:
            raise_at(type(self).__name__, [(rule.field, "rule", rule.message, None) for rule in broken])
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        json_schema = handler(schema)
        if cls.rules:
            target = handler.resolve_ref_schema(json_schema)
            target["x-kubernetes-validations"] = [rule.as_schema() for rule in cls.rules]
        return json_schema


def raise_at(title: str, problems: Sequence[tuple[str, str, str, object]]) -> typing.NoReturn:
    """Raises one ValidationError with a line for every (field path, error type, message, input)."""
    raise ValidationError.from_exception_data(
        title,
        [
            InitErrorDetails(
                type=PydanticCustomError(kind, "{message}", {"message": message}),
                loc=tuple(field.split(".")),
                input=value,
            )
            for field, kind, message, value in problems
        ],
    )


@dataclass(frozen=True, slots=True)
class KeyedBy:
    """Marks a list as a map by one field: the server merges by it and refuses duplicates; so does pydantic."""

    key: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._refuse_duplicates, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}

    def _refuse_duplicates(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        seen: set[object] = set()
        problems = []
        for index, item in enumerate(items):
            value = getattr(item, self.key)
            if value in seen:
                problems.append((str(index), "duplicate", f"has the {self.key} {value!r} of an earlier entry", value))
            seen.add(value)
        if problems:
            raise_at("list", [(index, kind, message, value) for index, kind, message, value in problems])
        return items


class LocalRef(ApiModel):
    """Names an object: in the ServingPool's namespace if its kind is namespaced."""

    name: ObjectName
    """Name of the object."""


class ObjectMeta(ApiModel):
    """Standard object metadata. Only what Ballast reads is typed; the rest is kept as it is."""

    model_config = ConfigDict(extra="allow")

    name: ObjectName
    """Unique within the namespace, or within the cluster for cluster-scoped kinds."""
    namespace: str | None = None
    """Namespace of the object; cluster-scoped kinds have none."""
    labels: StringMap = Field(default_factory=dict)
    """Labels of the object."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations of the object."""
    uid: str | None = None
    """Unique id that the API server sets."""
    generation: int | None = None
    """Number of changes of the spec; the API server counts."""
    resource_version: str | None = None
    """Version of the stored object; the API server sets it."""
    deletion_timestamp: str | None = None
    """When deletion was asked for; the API server sets it."""


class Resource(ApiModel):
    """Base of the custom resources."""

    kind_name: ClassVar[str]
    plural: ClassVar[str]
    short_names: ClassVar[tuple[str, ...]] = ()
    namespaced: ClassVar[bool] = True
    printer_columns: ClassVar[tuple[PrinterColumn, ...]] = ()
    scale: ClassVar[ScalePaths | None] = None
    max_name_length: ClassVar[int] = 253
    name_pattern: ClassVar[str] = DNS_SUBDOMAIN

    metadata: ObjectMeta
    """Standard object metadata."""

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        name, limit = self.metadata.name, self.max_name_length
        if len(name) > limit:
            raise_at("metadata", [("metadata.name", "name", f"has {len(name)} characters; {limit} are allowed", name)])
        if not re.fullmatch(self.name_pattern, name):
            raise_at(
                "metadata", [("metadata.name", "name", f"{PATTERN_SENTENCES[self.name_pattern]}, not {name!r}", name)]
            )
        return self

    @property
    def name(self) -> str:
        """metadata.name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """metadata.namespace; `default` where a manifest leaves it out, as kubectl takes it."""
        return self.metadata.namespace or "default"


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """What the scale subresource reads and writes, as JSON paths."""

    wanted: str
    there: str
    selector: str


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A column of `kubectl get`."""

    name: str
    json_path: str
    type: str = "string"
    description: str = ""
    priority: int = 0
