"""How many instances a rollout may have beyond those that are wanted, and how many fewer. Pure.

With a `gpuBudget` those beyond are within it, too: they need GPUs as all others do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ballast_api.serving_pool import ServingPoolSpec


@dataclass(frozen=True, slots=True)
class Allowance:
    """Of one pool. They are never both 0: no instance could ever be replaced."""

    surge: int
    unavailable: int
    cut: bool = False
    """Whether the budget leaves fewer than the spec allows."""


def allowances(
    spec: ServingPoolSpec, instances: Mapping[str, int], gpus: Mapping[str, int], asked: Mapping[str, int]
) -> Mapping[str, Allowance]:
    """By name of the pool. `gpus`: of one instance, of the pools of which that is known. `asked`: instances that are
    asked for now, of all revisions.

    What the budget leaves goes to the first pools of the spec: all may be replaced at the same time. A surplus that
    has begun stays, whoever needs its GPUs now: else the last ready instance would go before its successor is.
    """
    most = {name: share(spec.rollout.max_surge, instances[name], up=True) for name in gpus}
    surges = dict(most)
    if spec.gpu_budget is not None:
        surges = {name: min(most[name], max(0, asked[name] - instances[name])) for name in gpus}
        spare = spec.gpu_budget - sum((instances[name] + surges[name]) * each for name, each in gpus.items())
        for name, each in gpus.items():
            more = min(most[name] - surges[name], max(0, spare) // each)
            surges[name] += more
            spare -= more * each
    found = {}
    for name, surge in surges.items():
        unavailable = share(spec.rollout.max_unavailable, instances[name], up=False)
        found[name] = Allowance(surge, unavailable if surge or unavailable else 1, cut=surge < most[name])
    return found


def share(value: int | str, wanted: int, *, up: bool) -> int:
    """A number of instances from a number or a percentage such as `25%`, rounded as Kubernetes does."""
    if isinstance(value, int):
        return value
    part = wanted * int(value.removesuffix("%")) / 100
    return math.ceil(part) if up else math.floor(part)
