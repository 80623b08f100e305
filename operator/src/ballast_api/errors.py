"""Validation errors as sentences: which file, which object, which field, what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from ballast_api.common import PATTERN_SENTENCES
from ballast_api.suggestions import unknown_field


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    field: str
    """camelCase path, such as `spec.pools[1].replicas`; empty for the whole object."""
    message: str
    """What is wrong and what to do."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class InvalidInput(ValueError):
    """Input that is refused. `str()` is for people: one line per problem, each naming the field and the fix."""

    def __init__(self, where: str, problems: Sequence[Problem]) -> None:
        self.where = where
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{where}: {problem}" if where else str(problem) for problem in self.problems))


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> tuple[Problem, ...]:
    """Every line of a pydantic error as a Problem. With `model`, unknown fields get a suggestion."""
    lines = error.errors(include_url=False)
    return tuple(_problem(line, model) for line in lines if not _is_echo(line, lines))


def _is_echo(line: Any, lines: Sequence[Any]) -> bool:
    """Whether a list is called too short only because entries that are wrong, and named, do not count."""
    at = line["loc"]
    return line["type"] == "too_short" and any(
        len(other["loc"]) > len(at) and other["loc"][: len(at)] == at for other in lines
    )


def _problem(line: Any, model: type[BaseModel] | None) -> Problem:
    location = line["loc"]
    sentence = unknown_field(model, location) if line["type"] == "extra_forbidden" and model else _sentence(line)
    return Problem(field_path(location), sentence)


def field_path(location: Sequence[int | str]) -> str:
    """`("spec", "pools", 1, "name")` as `spec.pools[1].name`."""
    path = ""
    for part in location:
        if isinstance(part, int) or part.isdecimal():
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


_TYPE_NAMES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
    "finite_number": "a finite number",
}


_TEMPLATES: Mapping[str, str] = {
    "missing": "is missing; add it",
    "extra_forbidden": "is not a field here; check the spelling or remove it",
    "literal_error": "must be {expected}, not {shown}",
    "enum": "must be {expected}, not {shown}",
    "greater_than_equal": "must be {ge} or more, not {shown}",
    "greater_than": "must be above {gt}, not {shown}",
    "less_than_equal": "must be {le} or less, not {shown}",
    "less_than": "must be below {lt}, not {shown}",
    "string_too_short": "must not be empty",
    "string_too_long": "has {length} characters; {max_length} are allowed",
    "too_short": "must have {min_length} or more entries, not {actual_length}",
    "too_long": "has {actual_length} entries; {max_length} are allowed",
}


def _sentence(line: Any) -> str:
    kind, value = line["type"], line.get("input")
    if kind in _TYPE_NAMES:
        return f"must be {_TYPE_NAMES[kind]}, not {_shown(value)}"
    if kind == "string_pattern_mismatch":
        pattern = line["ctx"]["pattern"]
        return f"{PATTERN_SENTENCES.get(pattern, f'must match {pattern}')}, not {_shown(value)}"
    if kind in ("literal_error", "enum") and isinstance(value, bool):
        return f"must be {line['ctx']['expected']}; put it in quotes, YAML reads it as {_shown(value)}"
    if kind in _TEMPLATES:
        length = len(value) if isinstance(value, str) else 0
        context = {k: f"{v:g}" if isinstance(v, float) else v for k, v in line.get("ctx", {}).items()}
        return _TEMPLATES[kind].format(**context, shown=_shown(value), length=length)
    return str(line["msg"])


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
