"""Placements composed of placements: product, weighted sum, lexicographic order, filter and then choose.

Common rules: an endpoint to which any part gives inf is ineligible and enters no comparison. If the parts together
exclude every endpoint, none is eligible. No cost is ever NaN, however large, small or infinite the parts' costs are. A
composition needs the beliefs of all its parts. Parts may be compositions themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import ClassVar, Literal

import numpy as np

from ballast_core.arrays import BoolArray, FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request
from ballast_core.policies.declaring import explained, parameter
from ballast_core.policies.placement.protocol import Placement
from ballast_core.state.view import View

MAX_NESTING = 3
"""Levels of compositions inside each other, the outermost included."""
MIN_PARTS, MAX_PARTS = 2, 8
_LARGEST = float(np.finfo(np.float64).max)
_ROUNDING = 1e-12
"""Costs that differ by a smaller ratio are equal: sums of the same numbers in another order."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A policy in a product."""

    policy: Placement
    offset: float = parameter(0.0, "Added to the policy's cost before it is multiplied, 0 or more.")

    def __post_init__(self) -> None:
        _check_at_least_zero("offset", self.offset)


@dataclass(frozen=True, slots=True)
class Product:
    """Costs multiplied: cost_i = product over parts of (cost_i of the part + its offset).

    It needs no weights, and units cancel: only ratios count. A part whose cost is 0 makes the product 0 whatever the
    other costs are; an offset prevents that. On equal hardware, LMetric is least-uncached-tokens times least-requests
    with an offset of 1. Whether raw counts are compared across unlike hardware depends on the parts.
    Example: costs (4, 1) and (0, 2), the second with offset 1 -> 4 against 3, the second endpoint.
    """

    type: ClassVar[str] = "product"
    parts: tuple[Factor, ...] = field(metadata=explained("Policies whose costs are multiplied, 2 to 8."))

    def __post_init__(self) -> None:
        _check_count(self.parts)

    @property
    def needs(self) -> Belief:
        """Of all parts."""
        return _needs([part.policy for part in self.parts])

    def costs(self, view: View, request: Request) -> FloatArray:
        costs, eligible = _weigh([part.policy for part in self.parts], view, request)
        product = np.ones(len(eligible))
        with np.errstate(over="ignore"):
            for part, cost in zip(self.parts, costs, strict=True):
                product = np.minimum(product * (cost + part.offset), _LARGEST)
        return np.where(eligible, product, np.inf)


@dataclass(frozen=True, slots=True)
class Term:
    """A policy in a weighted sum."""

    policy: Placement
    weight: float = parameter(1.0, "Factor of the policy's cost, 0 or more.")

    def __post_init__(self) -> None:
        _check_at_least_zero("weight", self.weight)


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """Costs added up: cost_i = sum over parts of weight x cost_i of the part, normalised by the rule `normalise`.

    raw: unchanged, for parts with the same unit (two policies in seconds). largest: divided by the largest cost of an
    eligible candidate, 0 if all are 0, as in Dynamo's and LMetric's linear baselines. range: from 0 for the lowest to 1
    for the largest cost, 0 if all are equal. Normalised costs depend on the other candidates.
    Example: weights 1 and 2, costs (4, 1) and (0, 2) -> raw 4 against 5, the first; largest 1 against 2.25.
    """

    type: ClassVar[str] = "weighted-sum"
    parts: tuple[Term, ...] = field(metadata=explained("Policies whose costs are added up, 2 to 8."))
    normalise: Literal["raw", "largest", "range"] = parameter(
        "raw", "How costs are normalised: not at all, by the largest cost, or by the range from lowest to largest."
    )

    def __post_init__(self) -> None:
        _check_count(self.parts)
        if not any(part.weight > 0 for part in self.parts):
            raise ValueError("parts: at least one weight must be above 0")

    @property
    def needs(self) -> Belief:
        """Of all parts."""
        return _needs([part.policy for part in self.parts])

    def costs(self, view: View, request: Request) -> FloatArray:
        costs, eligible = _weigh([part.policy for part in self.parts], view, request)
        total = np.zeros(len(eligible))
        with np.errstate(over="ignore"):
            for part, cost in zip(self.parts, costs, strict=True):
                weighted = np.minimum(part.weight * self._normalised(cost, eligible), _LARGEST)
                total = np.minimum(total + weighted, _LARGEST)
        return np.where(eligible, total, np.inf)

    def _normalised(self, cost: FloatArray, eligible: BoolArray) -> FloatArray:
        if self.normalise == "raw" or not eligible.any():
            return cost
        least = float(cost[eligible].min()) if self.normalise == "range" else 0.0
        span = float(cost[eligible].max()) - least
        return (cost - least) / span if span > 0 else np.zeros(len(cost))


@dataclass(frozen=True, slots=True)
class Lexicographic:
    """One policy after another: the first decides, and candidates within tolerance of its best go on to the next.

    Of the remaining candidates, part k keeps those that cost at most (1 + tolerance_ratio) times the best of them. The
    last part ranks the remaining ones by its cost, without tolerance. A candidate that part k drops ranks behind all
    that part k keeps, by its cost in part k. cost_i = number of ranks better than that of i. A best cost of 0 has no
    tolerance: only 0 ties with it.
    Example, least-requests then least-tokens: requests (3, 1, 1), tokens (100, 900, 400) -> ranks 2, 1, 0: the third.
    """

    type: ClassVar[str] = "lexicographic"
    parts: tuple[Placement, ...] = field(metadata=explained("Policies in the order in which they decide, 2 to 8."))
    tolerance_ratio: float = parameter(0.0, "How far above the best cost is still a tie, as a share of the best cost.")

    def __post_init__(self) -> None:
        _check_count(self.parts)
        _check_at_least_zero("tolerance_ratio", self.tolerance_ratio)

    @property
    def needs(self) -> Belief:
        """Of all parts."""
        return _needs(self.parts)

    def costs(self, view: View, request: Request) -> FloatArray:
        costs, eligible = _weigh(self.parts, view, request)
        # By level (how many parts it still had before it when it dropped out), then by its cost in that part.
        levels, deciding, still_in = np.where(eligible, 0.0, -1.0), np.zeros(len(eligible)), eligible
        last = len(self.parts) - 1
        for number, cost in enumerate(costs[:-1]):
            kept = still_in & _within(cost, still_in, self.tolerance_ratio)
            dropped = still_in & ~kept
            levels[dropped], deciding[dropped] = last - number, cost[dropped]
            still_in = kept
        deciding[still_in] = costs[last, still_in]
        return np.where(eligible, _ranks(levels, deciding), np.inf)


@dataclass(frozen=True, slots=True)
class FilterThen:
    """One policy filters the candidates, another one chooses: cost_i = cost_i of `then`, inf for filtered candidates.

    keep share: the best share of the eligible candidates by `first`, rounded up, and all that tie with the last of
    them. keep within: those that cost at most (1 + ratio) times the best; a best cost of 0 keeps only costs of 0.
    Example: first costs (10, 11, 30), then (5, 2, 1), keep within, ratio 0.2 -> (5, 2, inf): the second.
    """

    type: ClassVar[str] = "filter-then"
    first: Placement = field(metadata=explained("Policy that filters the candidates."))
    then: Placement = field(metadata=explained("Policy that chooses among the kept candidates."))
    keep: Literal["share", "within"] = parameter("share", "Keep a share of the candidates, or those near the best.")
    ratio: float = parameter(0.5, "The share, above 0 and at most 1; or how far above the best cost, as a share of it.")

    def __post_init__(self) -> None:
        if self.keep == "share" and not 0 < self.ratio <= 1:
            raise ValueError(f"ratio: must be above 0 and at most 1, not {self.ratio!r}")
        _check_at_least_zero("ratio", self.ratio)

    @property
    def needs(self) -> Belief:
        """Of both."""
        return _needs((self.first, self.then))

    def costs(self, view: View, request: Request) -> FloatArray:
        (first, then), eligible = _weigh((self.first, self.then), view, request)
        return np.where(eligible & self._kept(first, eligible), then, np.inf)

    def _kept(self, first: FloatArray, eligible: BoolArray) -> BoolArray:
        if self.keep == "within" or not eligible.any():
            return _within(first, eligible, self.ratio)
        ranked = np.sort(first[eligible])
        return _up_to(first, float(ranked[math.ceil(self.ratio * len(ranked)) - 1]))


def _weigh(policies: Sequence[Placement], view: View, request: Request) -> tuple[FloatArray, BoolArray]:
    """Costs, shape (policies, candidates), 0 for ineligible ones; and which candidates are eligible by all policies."""
    costs = np.stack([policy.costs(view, request) for policy in policies])
    eligible = np.asarray(np.isfinite(costs).all(axis=0), np.bool_)
    return np.where(eligible, costs, 0.0), eligible


def _ranks(levels: FloatArray, costs: FloatArray) -> FloatArray:
    """For each candidate, how many different (level, cost) are below its own; levels below 0 are not counted."""
    order = np.lexsort((costs, levels))
    level, cost = levels[order], costs[order]
    new = (level[1:] != level[:-1]) | (cost[1:] != cost[:-1])
    steps = np.append(0.0, np.cumsum(new & (level[:-1] >= 0)))
    ranks = np.empty(len(order))
    ranks[order] = steps
    return ranks


def _within(cost: FloatArray, among: BoolArray, ratio: float) -> BoolArray:
    """Which candidates cost at most (1 + ratio) times the best of `among`."""
    return _up_to(cost, float(np.min(cost, where=among, initial=np.inf)) * (1.0 + ratio))


def _up_to(cost: FloatArray, most: float) -> BoolArray:
    return np.asarray(cost <= most * (1.0 + _ROUNDING), np.bool_)


def _needs(policies: Sequence[Placement]) -> Belief:
    return reduce(or_, (policy.needs for policy in policies), Belief.NONE)


def _check_count(parts: Sequence[object]) -> None:
    if not MIN_PARTS <= len(parts) <= MAX_PARTS:
        raise ValueError(f"parts: must be {MIN_PARTS} to {MAX_PARTS} policies, not {len(parts)}")


def _check_at_least_zero(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}: must be a finite number, 0 or more, not {value!r}")
