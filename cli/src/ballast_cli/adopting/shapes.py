"""The shapes of what adopting reads, as far as it reads them: manifests from files have met no API server. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ballast_api.errors import InvalidInput, Problem
from ballast_cli.adopting.found import Manifest, of_kind

_Shape = type | list[Any] | dict[str, Any]
"""A type; a list of one shape; a mapping by field, where `!` marks one that must be there, and `*` stands for all
others, which are free without it."""

_FIELDS: Final[_Shape] = {}
_TEXTS: Final[_Shape] = {"*": str}
_CONTAINERS: Final[_Shape] = [
    {
        "name!": str,
        "command": [object],
        "args": [object],
        "env": [{"name!": str, "valueFrom": {"fieldRef": _FIELDS}}],
        "resources": {"limits": _FIELDS, "requests": _FIELDS},
        "volumeMounts": [{"name!": str, "mountPath!": str}],
    }
]
_POD: Final[_Shape] = {
    "containers!": _CONTAINERS,
    "initContainers": _CONTAINERS,
    "volumes": [{"name!": str, "persistentVolumeClaim": _FIELDS, "image": _FIELDS}],
    "nodeSelector": _TEXTS,
    "affinity": _FIELDS,
    "securityContext": _FIELDS,
}
_METADATA: Final[_Shape] = {"labels": _TEXTS, "annotations": _TEXTS}
_PICKER: Final[_Shape] = {"name": str}
_SHAPES: Final[Mapping[str, _Shape]] = {
    "Deployment": {"spec!": {"replicas": int, "template!": {"metadata!": _METADATA, "spec!": _POD}}},
    "Service": {"spec": {"selector": _TEXTS}},
    "InferencePool": {
        "spec": {
            "selector": {"matchLabels": _TEXTS},
            "targetPorts": [{"number": int}],
            "targetPortNumber": int,
            "endpointPickerRef": _PICKER,
            "extensionRef": _PICKER,
        }
    },
    "HTTPRoute": {
        "spec": {
            "parentRefs": [_FIELDS],
            "hostnames": [str],
            "rules": [
                {
                    "backendRefs": [{"name!": str, "kind": str}],
                    "matches": [{"path": {"value": str}, "headers": [{"name!": str, "value!": str}]}],
                }
            ],
        }
    },
    "HorizontalPodAutoscaler": {
        "spec": {"scaleTargetRef": {"kind": str, "name": str}, "minReplicas": int, "maxReplicas!": int}
    },
}
_OBJECT: Final[_Shape] = {"metadata!": {"name!": str, "namespace": str, "labels": _TEXTS}}
_CALLED: Final = {str: "a text in quotes", int: "a whole number"}


def check_shapes(objects: Sequence[Manifest]) -> None:
    """Raises `InvalidInput` with each field that the API server would refuse and adopting would stumble over."""
    problems = [
        Problem(f"{kind} {each['metadata']['name']}: {field}", said)
        for kind, shape in _SHAPES.items()
        for each in of_kind(objects, kind)
        for field, said in (*_wrong(each, _OBJECT, ""), *_wrong(each, shape, ""))
    ]
    if problems:
        raise InvalidInput("", problems)


def _wrong(value: Any, shape: _Shape, at: str) -> Iterator[tuple[str, str]]:
    """Path and message of each value that is not of its shape."""
    if isinstance(shape, type):
        if not isinstance(value, shape) or (shape is int and isinstance(value, bool)):
            yield at, f"must be {_CALLED[shape]}"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield at, "must be a list"
            return
        for number, item in enumerate(value):
            yield from _wrong(item, shape[0], f"{at}[{number}]")
    elif not isinstance(value, dict):
        yield at, "must be a mapping of fields"
    else:
        yield from _fields_wrong(value, shape, at)


def _fields_wrong(value: Manifest, shape: Mapping[str, _Shape], at: str) -> Iterator[tuple[str, str]]:
    others = {key: shape["*"] for key in value if "*" in shape and key not in shape}
    for key, inner in ({**shape, **others}).items():
        field = key.removesuffix("!")
        where = f"{at}.{field}".removeprefix(".")
        if value.get(field) is not None:
            yield from _wrong(value[field], inner, where)
        elif field != key:
            yield where, "is missing; add it"
