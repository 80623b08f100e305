"""Problems of a ServingPool's own spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from ballast_api import names
from ballast_api.conditions import Reason
from ballast_api.errors import InvalidInput
from ballast_api.serving_pool import ServingPool
from ballast_operator.problems.problem import Problem


def invalid(error: InvalidInput) -> tuple[Problem, ...]:
    """A spec that does not pass validation."""
    return tuple(Problem(Reason.INVALID_SPEC, each.message, each.field) for each in error.problems)


def impossible(pool: ServingPool, taken: Collection[str]) -> tuple[Problem, ...]:
    """A valid spec that cannot be acted on. `taken`: names of the gateway's own objects."""
    # A pool named like one of the gateway's objects would fight with it over the name.
    objects = [names.pool_object_name(pool.name, entry.name) for entry in pool.spec.pools]
    counts = Counter(objects)
    return tuple(
        Problem(
            Reason.INVALID_SPEC,
            f"the name {entry.name} is taken by the gateway's own objects",
            field=f"spec.pools[{index}].name",
            fix="choose another",
        )
        for index, (entry, name) in enumerate(zip(pool.spec.pools, objects, strict=True))
        if counts[name] > 1 or name in taken
    )


def over_budget(budget: int | None, gpus: Mapping[str, int]) -> tuple[Problem, ...]:
    """Pools (by name) that together ask for more GPUs than spec.gpuBudget, which is None without a limit."""
    total = sum(gpus.values())
    if budget is None or total <= budget:
        return ()
    parts = " + ".join(f"{count} ({name})" for name, count in gpus.items())
    message = f"the pools ask for {parts} = {total} GPUs, the budget is {budget}; no pool was changed"
    return (Problem(Reason.GPU_BUDGET_EXCEEDED, message, "spec.gpuBudget", "raise it, or ask for fewer instances"),)
