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


def allowances(spec: ServingPoolSpec, instances: Mapping[str, int], gpus: Mapping[str, int]) -> Mapping[str, Allowance]:
    """By name of the pool. `gpus`: of one instance, of the pools of which that is known.

    What the budget leaves goes to the first pools of the spec: all may be replaced at the same time.
    """
    spare = None
    if spec.gpu_budget is not None:
        spare = max(0, spec.gpu_budget - sum(instances[name] * count for name, count in gpus.items()))
    found = {}
    for name, each in gpus.items():
        asked = share(spec.rollout.max_surge, instances[name], up=True)
        surge = asked if spare is None else min(asked, spare // each)
        if spare is not None:
            spare -= surge * each
        unavailable = share(spec.rollout.max_unavailable, instances[name], up=False)
        found[name] = Allowance(surge, unavailable if surge or unavailable else 1, cut=surge < asked)
    return found


def share(value: int | str, wanted: int, *, up: bool) -> int:
    """A number of instances from a number or a percentage such as `25%`, rounded as Kubernetes does."""
    if isinstance(value, int):
        return value
    part = wanted * int(value.removesuffix("%")) / 100
    return math.ceil(part) if up else math.floor(part)
