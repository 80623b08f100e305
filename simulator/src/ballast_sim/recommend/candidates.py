"""Candidates, their figures, and the rule of choice.

The rule: the highest attainment, to within `SAME_ATTAINMENT`; among those, whichever is within `SAME_RATIO` of the best
P99 against the SLO and has the fewest parts, the default's before others. So a migration, a queue or another placement
is recommended only where it shows. None that misses the attainment asked for comes before one that reaches it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ballast_sim.recommend.layouts import Layout
from ballast_sim.recommend.variants import Variant
from ballast_sim.simulation.inputs.objective import Objective

SAME_ATTAINMENT = 0.002
SAME_RATIO = 1.02

Figures: TypeAlias = Mapping[str, Any]
"""A run's, as `ballast simulate --json` writes them."""


def shape_of(layout: Layout, variant: Variant) -> str:
    """As `ballast simulate --endpoints` takes it."""
    return layout.flexible_shape if variant.flexible else layout.shape


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout under a policy, and the figures of its runs, one for each seed."""

    layout: Layout
    variant: Variant
    outcomes: tuple[Figures, ...]

    @property
    def shape(self) -> str:
        """As `ballast simulate --endpoints` takes it."""
        return shape_of(self.layout, self.variant)

    @property
    def label(self) -> str:
        """Layout and policy in words; no two candidates share it."""
        return f"{self.shape} with {self.variant.name}"

    def mean(self, *path: str) -> float:
        """Mean over seeds of one figure; nan where a run has none."""
        values = []
        for figures in self.outcomes:
            value: Any = figures
            for name in path:
                value = value[name]
            values.append(float("nan") if value is None else float(value))
        return sum(values) / len(values)

    @property
    def attainment(self) -> float:
        """Share of requests within the SLO."""
        return self.mean("attainment")

    def strain(self, objective: Objective) -> float:
        """The worst P99 against its threshold: 1 meets it exactly; infinity where no request was completed."""
        limits = (("ttft_s", objective.ttft_s), ("tpot_s", objective.tpot_s), ("e2e_s", objective.e2e_s))
        strains = [self.mean(name, "p99") / limit for name, limit in limits if limit is not None]
        return max((strain for strain in strains if not math.isnan(strain)), default=math.inf)


def ranked(candidates: Sequence[Candidate], objective: Objective, wanted: float = 0.0) -> list[Candidate]:
    """In order of preference: the first by the module's rule, the others by attainment and strain.

    The first is a policy that gateways can carry out, and attains `wanted` where one of these does.
    """
    order = sorted(candidates, key=lambda each: (-round(each.attainment, 4), each.strain(objective), each.shape))
    able = [each for each in order if not each.variant.obstacle]
    meeting = [each for each in able if each.attainment >= wanted] or able
    top = meeting[0]
    same = [
        each
        for each in meeting
        if each.attainment >= top.attainment - SAME_ATTAINMENT
        and each.strain(objective) <= SAME_RATIO * top.strain(objective)
    ]
    best = min(same, key=lambda each: (each.variant.extras, not each.variant.is_default, order.index(each)))
    return [best, *(each for each in order if each is not best)]
