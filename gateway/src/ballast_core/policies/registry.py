"""Every policy that Ballast ships, by type name; and building one from plain values with errors that help."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from types import MappingProxyType

from ballast_core.policies.ballast import Ballast
from ballast_core.policies.base import Placement
from ballast_core.policies.cache_aware import DynamoCost, LeastUncachedTokens, LinearKv, PredictedTtft, RangeFilterKv
from ballast_core.policies.lmetric import LMetric
from ballast_core.policies.loads import Ils, LeastRequestsRunning, LeastTokens, VllmJsq
from ballast_core.policies.placements import LeastRequests, PowerOfTwo, Random, RoundRobin
from ballast_core.policies.sibyl import Sibyl

_SHIPPED: tuple[type[Placement], ...] = (
    Ballast,
    DynamoCost,
    Ils,
    LeastRequests,
    LeastRequestsRunning,
    LeastTokens,
    LeastUncachedTokens,
    LinearKv,
    LMetric,
    PowerOfTwo,
    PredictedTtft,
    Random,
    RangeFilterKv,
    RoundRobin,
    Sibyl,
    VllmJsq,
)

PLACEMENTS: Mapping[str, type[Placement]] = MappingProxyType({policy.type: policy for policy in _SHIPPED})
"""Placement types: any of them may place the prefill and the decode stage."""


class _Dataclass(typing.Protocol):
    __dataclass_fields__: typing.ClassVar[dict[str, dataclasses.Field[typing.Any]]]


class PolicyError(ValueError):
    """A policy that does not exist, or parameters that it does not take. The message names field and fix."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        """`type`, or `parameters.NAME`."""


def build_placement(type_name: str, parameters: Mapping[str, object] | None = None) -> Placement:
    """The placement of that type with these parameters. Raises `PolicyError`."""
    try:
        policy = PLACEMENTS[type_name]
    except KeyError:
        raise PolicyError("type", f"unknown placement {type_name!r}; known: {', '.join(sorted(PLACEMENTS))}") from None
    hints = typing.get_type_hints(policy)
    known = {field.name: hints[field.name] for field in dataclasses.fields(typing.cast("type[_Dataclass]", policy))}
    for name, value in (parameters or {}).items():
        if name not in known:
            takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
            raise PolicyError(f"parameters.{name}", f"{type_name} has no parameter {name!r}; {takes}")
        if not _fits(value, known[name]):
            raise PolicyError(
                f"parameters.{name}",
                f"{type_name}: {name} must be {known[name].__name__}, not {type(value).__name__}",
            )
    try:
        return policy(**(parameters or {}))
    except ValueError as error:  # a dataclass that checks ranges in __post_init__
        raise PolicyError("parameters", f"{type_name}: {error}") from error


def _fits(value: object, wanted: type) -> bool:
    if wanted is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)
