"""The parameters of a policy, read from its dataclass, for builders, schemas and reference pages."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from ballast_core.policies.placement.protocol import Placement

SCALARS: tuple[type, ...] = (bool, int, float, str)


class Takes(Enum):
    """The kind of a parameter's value."""

    SCALAR = auto()
    POLICY = auto()
    """One other policy."""
    POLICIES = auto()
    """A list of other policies, each with numbers of its own beside it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a policy's dataclass."""

    name: str
    explanation: str
    takes: Takes
    default: object
    """`dataclasses.MISSING` for a required parameter; None if leaving it out has a meaning of its own."""
    scalar: type = str
    choices: tuple[str, ...] = ()
    """The allowed texts; empty: any."""
    part: type | None = None
    """Dataclass of a list item: a policy with numbers of its own beside it."""

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is dataclasses.MISSING


def parameters_of(policy: type) -> tuple[Parameter, ...]:
    """The policy's parameters in order. Raises TypeError for a field whose type a manifest cannot express."""
    hints = typing.get_type_hints(policy)
    return tuple(_parameter(policy, field, hints[field.name]) for field in dataclasses.fields(policy))


def part_numbers(part: type) -> tuple[Parameter, ...]:
    """The parameters of a listed policy's part, beside the policy itself."""
    hints = typing.get_type_hints(part)
    return tuple(
        _parameter(part, field, hints[field.name]) for field in dataclasses.fields(part) if field.name != "policy"
    )


def _parameter(policy: type, field: dataclasses.Field[Any], hint: Any) -> Parameter:
    explanation = str(field.metadata.get("explanation", ""))
    if hint in SCALARS:
        return Parameter(field.name, explanation, Takes.SCALAR, field.default, hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType and field.default is None and len(inner) == 2 and inner[0] in SCALARS:
        return Parameter(field.name, explanation, Takes.SCALAR, None, inner[0])
    if origin is typing.Literal:
        return Parameter(field.name, explanation, Takes.SCALAR, field.default, str, choices=inner)
    if hint is Placement:
        return Parameter(field.name, explanation, Takes.POLICY, field.default)
    if origin is tuple and inner[1:] == (...,):
        part = None if inner[0] is Placement else inner[0]
        return Parameter(field.name, explanation, Takes.POLICIES, field.default, part=part)
    raise TypeError(f"{policy.__name__}.{field.name}: a manifest cannot carry a {hint}")
