"""The field that was probably meant by one that does not exist."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Sequence

from pydantic import BaseModel


def unknown_field(model: type[BaseModel], location: Sequence[int | str]) -> str:
    """The sentence for an unknown field at `location` (its own name last) below `model`."""
    parent = _model_at(model, location[:-1])
    known = sorted(info.alias or name for name, info in parent.model_fields.items()) if parent else []
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.6)
    if close:
        return f"is not a field here; did you mean {close[0]}?"
    return f"is not a field here; remove it, or use one of {', '.join(known)}" if known else "is not a field here"


def _model_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """The model that the fields at `location` belong to."""
    current: type[BaseModel] | None = model
    steps = iter(location)
    for step in steps:
        if isinstance(step, int):
            continue
        fields = {info.alias or name: info for name, info in current.model_fields.items()} if current else {}
        if step not in fields:
            return None
        annotation = fields[step].annotation
        current = _model_in(annotation)
        if typing.get_origin(annotation) is dict:
            next(steps, None)  # the key of the map
    return current


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model inside `X | None`, a list or a map."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _model_in(part))), None)
