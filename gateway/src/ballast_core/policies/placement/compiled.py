"""Costs by the compiled kernel: what each placement hands to it. The formulas stand in the placements' own modules."""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival_tables import SurvivalTables
from ballast_core.kernel import Kernel
from ballast_core.model import Request
from ballast_core.policies.placement.projection import DELAY_OF_ROW
from ballast_core.state.age_histograms import AGE_OF_BUCKET
from ballast_core.state.view import View

_NOT_ASKED = np.zeros_like(AGE_OF_BUCKET)


def ballast(
    kernel: Kernel, view: View, request: Request, tables: SurvivalTables, *, class_slot: int, share_of_life: float
) -> FloatArray:
    """`Ballast.costs` on decode. `class_slot`: that of the request; `share_of_life`: of H, in term (7)."""
    costs = np.empty(len(view.slots))
    risks, harmonic_tokens = tables.risks(AGE_OF_BUCKET) if view.prefills_here else (_NOT_ASKED, 0.0)
    kernel.ballast(
        costs,
        view.slots,
        view.known_matches,
        request.prompt_tokens,
        view.now_s,
        view.fleet(kernel),
        view.common_handoff_s,
        class_slot,
        request.max_output_tokens,
        tables.prepared(kernel),
        view.census(kernel),
        DELAY_OF_ROW,
        risks,
        share_of_life * harmonic_tokens,
    )
    return costs


def sibyl(
    kernel: Kernel,
    view: View,
    *,
    prob_at_one: bool,
    without_type_one: bool,
    without_type_two: bool,
    without_type_three: bool,
) -> FloatArray:
    """`Sibyl.costs` on decode, with its switches."""
    costs = np.empty(len(view.slots))
    curves = view.beliefs.lengths.tables(view.now_s).prepared(kernel)
    common_s = view.common_handoff_s
    kernel.sibyl(
        costs,
        view.slots,
        view.capacity,
        view.now_s,
        view.handoff_s if common_s is None else common_s,
        view.beliefs.rates.pool_tokens_per_s(view.now_s),
        view.grown(kernel, curves),
        curves,
        prob_at_one,
        without_type_one,
        without_type_two,
        without_type_three,
    )
    return costs


def least_uncached_tokens(kernel: Kernel, view: View, request: Request) -> FloatArray:
    """`LeastUncachedTokens.costs`."""
    costs = np.empty(len(view.slots))
    kernel.least_uncached_tokens(costs, view.slots, view.known_matches, request.prompt_tokens, view.fleet(kernel))
    return costs
