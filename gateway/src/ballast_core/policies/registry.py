"""Every policy that Ballast ships, by kind and type name, and how to build one from plain values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from ballast_core.policies.admission import ADMISSIONS
from ballast_core.policies.parameters import Parameter, Takes, parameters_of, part_numbers
from ballast_core.policies.partition.registry import PARTITIONS
from ballast_core.policies.placement.composition import MAX_NESTING
from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.placement.registry import ALL_PLACEMENTS, COMPOSITIONS
from ballast_core.policies.queue.registry import QUEUE_ORDERS
from ballast_core.policies.rescheduling.registry import RESCHEDULINGS
from ballast_core.policies.scaling.registry import SCALINGS

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Kind(Generic[P]):
    """One kind of policy, and all policies of that kind."""

    name: str
    """The kind's name in error messages."""
    types: Mapping[str, type[P]]
    """By type name."""


PLACEMENT = Kind("placement", ALL_PLACEMENTS)
QUEUE_ORDER = Kind("queue order", QUEUE_ORDERS)
ADMISSION = Kind("admission", ADMISSIONS)
PARTITION = Kind("partition", PARTITIONS)
RESCHEDULING = Kind("rescheduling", RESCHEDULINGS)
SCALING = Kind("scaling", SCALINGS)
"""Of fleets, not of requests: no part of a `Suite`."""

PARTS: Mapping[str, Kind[Any]] = MappingProxyType(
    {
        "prefill": PLACEMENT,
        "decode": PLACEMENT,
        "queue": QUEUE_ORDER,
        "admission": ADMISSION,
        "partition": PARTITION,
        "rescheduling": RESCHEDULING,
    }
)
"""The kind of each part of a `Suite`."""


class PolicyError(ValueError):
    """An unknown policy, or parameters that it does not take. The message names the field and the fix."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        """Path such as `type`, `parameters.kv_weight` or `parameters.parts[1].parameters.kv_weight`."""


def build_placement(
    type_name: str, parameters: Mapping[str, object] | None = None, *, spell: Callable[[str], str] = str
) -> Placement:
    """The placement of this type with these parameters. Raises `PolicyError`.

    A parameter that is a policy is given as a mapping with `type`, `parameters` and the numbers of its part. null means
    that a parameter is left out. `spell` turns a field's name into the parameter's name.
    """
    return build(PLACEMENT, type_name, parameters, spell=spell)


def build(
    kind: Kind[P],
    type_name: str,
    parameters: Mapping[str, object] | None = None,
    *,
    spell: Callable[[str], str] = str,
) -> P:
    """As `build_placement`, for a policy of any kind."""
    made: P = _Builder(spell).policy(kind, type_name, parameters or {}, _Location())
    return made


@dataclass(frozen=True, slots=True)
class _Location:
    """Where a policy is in a manifest: the path of its `type` and `parameters`, and the compositions around it."""

    path: str = ""
    nesting: int = 0

    def field(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


class _Builder:
    def __init__(self, spell: Callable[[str], str]) -> None:
        self._spell = spell

    def policy(self, kind: Kind[Any], type_name: object, parameters: Mapping[str, object], location: _Location) -> Any:
        policy = kind.types.get(type_name) if isinstance(type_name, str) else None
        if policy is None or not isinstance(type_name, str):
            known = ", ".join(sorted(kind.types))
            raise PolicyError(location.field("type"), f"unknown {kind.name} {type_name!r}; known: {known}")
        if kind is PLACEMENT and type_name in COMPOSITIONS:
            location = _Location(location.path, location.nesting + 1)
            if location.nesting > MAX_NESTING:
                raise PolicyError(
                    location.field("type"),
                    f"{type_name} stands inside of {MAX_NESTING} compositions, which is as deep as they nest; "
                    "take a plain placement",
                )
        takes = {self._spell(each.name): each for each in parameters_of(policy)}
        given: dict[str, Any] = {}
        for name, value in parameters.items():
            field = location.field(f"parameters.{name}")
            if name not in takes:
                known = f"it takes {', '.join(sorted(takes))}" if takes else "it takes none"
                raise PolicyError(field, f"{type_name} has no parameter {name!r}; {known}")
            if value is not None:
                given[takes[name].name] = self._value(takes[name], value, type_name, _Location(field, location.nesting))
        for name, each in takes.items():
            if each.required and each.name not in given:
                raise PolicyError(
                    location.field(f"parameters.{name}"), f"{type_name}: {name} is missing; {_lower(each.explanation)}"
                )
        return self._made(policy, given, type_name, location.field("parameters"))

    def _value(self, wanted: Parameter, value: object, owner: str, location: _Location) -> object:
        if wanted.takes is Takes.SCALAR:
            return _scalar(wanted, self._spell(wanted.name), value, owner, location.path)
        if wanted.takes is Takes.POLICY:
            return self._part(value, None, location)
        if not isinstance(value, (list, tuple)):
            raise PolicyError(location.path, f"{owner}: must be a list of policies, not {type(value).__name__}")
        return tuple(
            self._part(each, wanted.part, _Location(f"{location.path}[{number}]", location.nesting))
            for number, each in enumerate(value)
        )

    def _part(self, value: object, part: type | None, location: _Location) -> object:
        """A policy inside another one, with the numbers of its part if it has any."""
        numbers = {self._spell(each.name): each for each in (part_numbers(part) if part else ())}
        fields = ("type", "parameters", *numbers)
        if not isinstance(value, Mapping):
            raise PolicyError(location.path, f"must be a mapping with {', '.join(fields)}, not {type(value).__name__}")
        for name in value:
            if name not in fields:
                raise PolicyError(location.field(str(name)), f"is not a field here; there are {', '.join(fields)}")
        if value.get("type") is None:
            raise PolicyError(location.field("type"), "is missing; name a placement")
        inner = value.get("parameters")
        if not isinstance(inner, Mapping | None):
            raise PolicyError(location.field("parameters"), f"must be a mapping, not {type(inner).__name__}")
        policy = self.policy(PLACEMENT, value["type"], inner or {}, location)
        if part is None:
            return policy
        given = {
            each.name: _scalar(each, name, value[name], str(value["type"]), location.field(name))
            for name, each in numbers.items()
            if value.get(name) is not None
        }
        return self._made(part, {"policy": policy, **given}, "", location.path)

    def _made(self, made: type, given: Mapping[str, Any], owner: str, path: str) -> Any:
        try:
            return made(**given)
        except ValueError as error:  # a dataclass that checks ranges in __post_init__, and names the field
            message = f"{owner}: {error}" if owner else str(error)
            named = re.match(r"([a-z_]+): ", str(error))
            raise PolicyError(f"{path}.{self._spell(named[1])}" if named else path, message) from error


def _scalar(wanted: Parameter, name: str, value: object, owner: str, path: str) -> object:
    if not _fits(value, wanted.scalar):
        raise PolicyError(path, f"{owner}: {name} must be {wanted.scalar.__name__}, not {type(value).__name__}")
    if wanted.choices and value not in wanted.choices:
        raise PolicyError(path, f"{owner}: {name} must be one of {', '.join(wanted.choices)}, not {value!r}")
    return value


def _fits(value: object, wanted: type) -> bool:
    if wanted is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)


def _lower(text: str) -> str:
    return f"give the {text[:1].lower()}{text[1:]}".removesuffix(".")
