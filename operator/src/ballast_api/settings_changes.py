"""Which settings a running gateway takes, and which need a new process: one marker on the fields of the settings.

A gateway reads its file again when that changes. It takes every field but those marked with `RESTARTS`: these stay as
they were until it is started anew. The operator rolls gateways when a marked field changes, and only then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from ballast_api.common import JsonObject

ModelT = TypeVar("ModelT", bound=BaseModel)


class _Restarts:
    """Marks a field (in `Annotated`) that a running gateway cannot take."""


RESTARTS: Final = _Restarts()


def text_hash(text: bytes) -> str:
    """Ten hex digits that tell one text of a settings file from another."""
    return hashlib.sha256(text).hexdigest()[:10]


def restarting_fields(model: type[BaseModel]) -> Iterator[str]:
    """The marked fields of a settings model, as dotted camelCase paths. What is below a marked field is marked, too."""
    for name, info in model.model_fields.items():
        alias = info.alias or name
        if RESTARTS in info.metadata:
            yield alias
        elif isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from (f"{alias}.{below}" for below in restarting_fields(info.annotation))


def restarting_part(settings: BaseModel) -> JsonObject:
    """The marked fields that are set, with their values as plain data: what a gateway's pods depend on."""
    plain = settings.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    found = ((path, _at(plain, path)) for path in restarting_fields(type(settings)))
    return {path: value for path, value in found if value is not None}


def waits_for_restart(new: BaseModel, running: BaseModel) -> tuple[str, ...]:
    """The marked fields, as dotted paths, in which new settings differ from those that run."""
    after, before = new.model_dump(mode="json", by_alias=True), running.model_dump(mode="json", by_alias=True)
    return tuple(path for path in restarting_fields(type(new)) if _at(after, path) != _at(before, path))


def taken(new: ModelT, running: ModelT) -> ModelT:
    """What a gateway with the settings `running` makes of new ones: all but the marked fields. Raises pydantic's
    `ValidationError` where that does not go together."""
    data, before = new.model_dump(mode="json", by_alias=True), running.model_dump(mode="json", by_alias=True)
    for path in restarting_fields(type(new)):
        *above, last = path.split(".")
        value = _at(before, path)
        target = data
        for step in above:
            target = target[step]
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value
    return type(new).model_validate(data, by_alias=True, by_name=False)


def _at(plain: JsonObject, path: str) -> Any:
    value: Any = plain
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value
