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


def ballast(
    kernel: Kernel, view: View, request: Request, tables: SurvivalTables, life_nodes: tuple[FloatArray, float]
) -> FloatArray:
    """`Ballast.costs` on decode. `life_nodes`: those of the request, and the tokens of each."""
    costs = np.empty(len(view.slots))
    flights, histograms = view.flights, view.age_histograms
    histograms.update()
    kernel.ballast(
        costs,
        view.slots,
        view.known_matches,
        request.prompt_tokens,
        view.now_s,
        *view.prefill_columns,
        *view.decode_columns,
        view.common_handoff_s,
        *life_nodes,
        *tables.curves,
        list(histograms),
        AGE_OF_BUCKET,
        DELAY_OF_ROW,
        flights.slot,
        flights.prompt_tokens,
        flights.limit_tokens,
        flights.decoding,
        flights.handoff_at_s,
        histograms.groups,
    )
    return costs


def least_uncached_tokens(kernel: Kernel, view: View, request: Request) -> FloatArray:
    """`LeastUncachedTokens.costs`."""
    costs = np.empty(len(view.slots))
    kernel.least_uncached_tokens(costs, view.slots, view.known_matches, request.prompt_tokens, *view.prefill_columns)
    return costs
