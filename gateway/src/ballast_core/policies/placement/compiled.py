"""Costs by the compiled kernel: what each placement hands to it. The formulas stand in the placements' own modules."""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival_tables import SurvivalTables
from ballast_core.kernel import Kernel
from ballast_core.model import Request
from ballast_core.policies.placement.projection import DELAY_OF_ROW
from ballast_core.state.view import View


def ballast(kernel: Kernel, view: View, request: Request, tables: SurvivalTables, class_slot: int) -> FloatArray:
    """`Ballast.costs` on decode. `class_slot`: that of the request."""
    costs = np.empty(len(view.slots))
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
    )
    return costs


def least_uncached_tokens(kernel: Kernel, view: View, request: Request) -> FloatArray:
    """`LeastUncachedTokens.costs`."""
    costs = np.empty(len(view.slots))
    kernel.least_uncached_tokens(costs, view.slots, view.known_matches, request.prompt_tokens, view.fleet(kernel))
    return costs
