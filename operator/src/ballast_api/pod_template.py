"""A pod template to merge over a generated one: typed where Ballast reads it, free elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ballast_api.common import DNS_LABEL, ApiModel, KeyedBy, Seq, StringMap, raise_at
from ballast_api.quantities import QUANTITY, is_quantity


class OpenModel(ApiModel):
    """Keeps fields that it does not know; Kubernetes checks them when the pods are made."""

    model_config = ConfigDict(extra="allow")


class TemplateMetadata(OpenModel):
    """Labels and annotations to add to the pods."""

    labels: StringMap = Field(default_factory=dict)
    """Labels to add. Labels that Ballast sets win."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations to add. Annotations that Ballast sets win."""


_QUANTITIES: JsonSchemaValue = {
    "type": "object",
    "nullable": True,
    "additionalProperties": {
        "x-kubernetes-preserve-unknown-fields": True,
        "nullable": True,
        "pattern": QUANTITY,
    },
}
_RESOURCES: JsonSchemaValue = {
    "type": "object",
    "description": "Resources of the container, as in a pod's spec.",
    "nullable": True,
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "limits": {**_QUANTITIES, "description": "Quantities such as `4Gi` and `500m`, by resource."},
        "requests": {**_QUANTITIES, "description": "Quantities such as `4Gi` and `500m`, by resource."},
    },
}


class ContainerOverlay(OpenModel):
    """A container to merge (same name) or to add (another name), as in a pod's spec."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
    """Name of the container. A generated container of this name is merged; any other is added."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """`resources` stays free-form in Python, where null removes a field; the API server knows its quantities."""
        json_schema = super().__get_pydantic_json_schema__(schema, handler)
        handler.resolve_ref_schema(json_schema)["properties"]["resources"] = _RESOURCES
        return json_schema


class TemplateSpec(OpenModel):
    """Fields of a pod's spec. Lists with a merge key are merged by it; other values replace the generated ones."""

    containers: Annotated[Seq[ContainerOverlay], Field(max_length=16), KeyedBy("name")] = ()
    """Containers to merge or to add, by name."""


class PodTemplateOverlay(OpenModel):
    """What users add to or change in the pods that Ballast generates, in the shape of a PodTemplateSpec."""

    metadata: TemplateMetadata = Field(default_factory=TemplateMetadata)
    """Labels and annotations to add to the pods."""
    spec: TemplateSpec = Field(default_factory=TemplateSpec)
    """Fields of the pods' spec to merge over the generated ones."""

    @model_validator(mode="after")
    def _check_quantities(self) -> Self:
        """The API server answers a bad one with an internal error that names no field."""
        wrong = list(_no_quantities(self.model_dump(mode="json", by_alias=True, exclude_unset=True), ""))
        if wrong:
            message = "must be a quantity such as 4Gi, 500m or 2, without spaces"
            raise_at("PodTemplateOverlay", [(path, "quantity", message, value) for path, value in wrong])
        return self

    @model_validator(mode="after")
    def _check_lists(self) -> Self:
        """The lists that are merged by a key; Kubernetes says what else is wrong when the pods are made."""
        spec = self.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        wrong = list(_not_listed(spec, "spec"))
        if wrong:
            raise_at("PodTemplateOverlay", [(path, "list", message, value) for path, message, value in wrong])
        return self


MERGED: Final = MappingProxyType({"containers": "name", "initContainers": "name"})
"""Lists whose entries merge, by their key."""
REPLACED: Final = MappingProxyType(
    {
        "env": "name",
        "volumes": "name",
        "imagePullSecrets": "name",
        "volumeMounts": "mountPath",
        "ports": "containerPort",
        "hostAliases": "ip",
        "topologySpreadConstraints": "topologyKey",
    }
)
"""Lists whose entries replace those of the same key."""
_KEYS: Final = {**MERGED, **REPLACED}
_TEXTS: Final = frozenset({"args", "command"})


def _not_listed(fields: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, Any]]:
    """Path, what should be there, and value of what is no such list; null removes a field. Of a pod's spec, and of its
    containers."""
    for name, value in fields.items():
        at = f"{path}.{name}"
        if value is None or (name not in _KEYS and name not in _TEXTS):
            continue
        if not isinstance(value, list):
            yield at, "must be a list", value
            continue
        for number, item in enumerate(value):
            if name in _TEXTS:
                if not isinstance(item, str):
                    yield f"{at}.{number}", 'must be a text; put a number in quotes: "64"', item
            elif not isinstance(item, Mapping) or item.get(_KEYS[name]) in (None, ""):
                yield f"{at}.{number}", f"must be an object with the field {_KEYS[name]}", item
            elif name in MERGED:
                yield from _not_listed(item, f"{at}.{number}")


_MAPS = frozenset({"limits", "requests", "capacity"})
_FIELDS = frozenset({"sizeLimit", "divisor"})


def _no_quantities(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Path and value of what stands where a quantity belongs and is none; null removes a field."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _no_quantities(item, f"{path}.{number}")
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        at = f"{path}.{key}".removeprefix(".")
        if key in _MAPS and isinstance(item, Mapping):
            named = [(f"{at}.{name}", one) for name, one in item.items()]
        elif key in _FIELDS:
            named = [(at, item)]
        else:
            yield from _no_quantities(item, at)
            continue
        yield from ((where, one) for where, one in named if one is not None and not is_quantity(one))
