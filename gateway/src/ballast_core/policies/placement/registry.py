"""Every placement that Ballast ships, by type name; `policies.registry.build` makes one of plain values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ballast_core.policies.placement.ballast import Ballast
from ballast_core.policies.placement.cache_aware import (
    DynamoCost,
    LeastUncachedTokens,
    LinearKv,
    PredictedTtft,
    RangeFilterKv,
)
from ballast_core.policies.placement.composition import FilterThen, Lexicographic, Product, WeightedSum
from ballast_core.policies.placement.libra import Libra
from ballast_core.policies.placement.lmetric import LMetric
from ballast_core.policies.placement.loads import Ils, LeastRequestsRunning, LeastTokens, VllmJsq
from ballast_core.policies.placement.placements import LeastRequests, PowerOfTwo, Random, RoundRobin
from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.placement.sibyl import Sibyl

_SHIPPED: tuple[type[Placement], ...] = (
    Ballast,
    DynamoCost,
    Ils,
    LeastRequests,
    LeastRequestsRunning,
    LeastTokens,
    LeastUncachedTokens,
    Libra,
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

_COMPOSED: tuple[type[Placement], ...] = (FilterThen, Lexicographic, Product, WeightedSum)

PLACEMENTS: Mapping[str, type[Placement]] = MappingProxyType({policy.type: policy for policy in _SHIPPED})
"""Placements that need no other policies. Each may place the prefill and the decode stage."""

COMPOSITIONS: Mapping[str, type[Placement]] = MappingProxyType({policy.type: policy for policy in _COMPOSED})
"""Placements that are composed of others, which must be given."""

ALL_PLACEMENTS: Mapping[str, type[Placement]] = MappingProxyType({**PLACEMENTS, **COMPOSITIONS})
"""Every placement that `build_placement` knows."""
