"""CustomResourceDefinitions of the models."""

from __future__ import annotations

from typing import Any

from ballast_api.common import GROUP, VERSION, PrinterColumn, Resource
from ballast_api.structural import Schema, paragraph, structural_schema


def crd_name(model: type[Resource]) -> str:
    """metadata.name of the definition."""
    return f"{model.plural}.{GROUP}"


def crd(model: type[Resource]) -> Schema:
    """The CustomResourceDefinition of one kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": crd_name(model)},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": model.kind_name,
                "listKind": f"{model.kind_name}List",
                "plural": model.plural,
                "singular": model.kind_name.lower(),
                "shortNames": list(model.short_names),
                "categories": ["ballast"],
            },
            "scope": "Namespaced" if model.namespaced else "Cluster",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [_column(column) for column in model.printer_columns],
                    "schema": {"openAPIV3Schema": resource_schema(model)},
                    "subresources": {"status": {}, **_scale(model)},
                }
            ],
        },
    }


def resource_schema(model: type[Resource]) -> Schema:
    """The schema of the whole object; of metadata a CRD may only restrict the name."""
    schema = structural_schema(model)
    required = [name for name in schema.get("required", []) if name != "metadata"]
    name = {"type": "string", "maxLength": model.max_name_length, "pattern": model.name_pattern}
    return {
        "description": paragraph(model.__doc__ or ""),
        "type": "object",
        **({"required": required} if required else {}),
        "properties": {
            "apiVersion": {"description": "Group and version of the object.", "type": "string"},
            "kind": {"description": "Kind of the object.", "type": "string"},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": schema["properties"]["spec"],
            "status": schema["properties"]["status"],
        },
    }


def _scale(model: type[Resource]) -> dict[str, Any]:
    if model.scale is None:
        return {}
    paths = {
        "specReplicasPath": model.scale.wanted,
        "statusReplicasPath": model.scale.there,
        "labelSelectorPath": model.scale.selector,
    }
    return {"scale": paths}


def _column(column: PrinterColumn) -> dict[str, Any]:
    result: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    if column.description:
        result["description"] = column.description
    if column.priority:
        result["priority"] = column.priority
    return result
