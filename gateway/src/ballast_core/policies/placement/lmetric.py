"""LMetric: prefill tokens times batch size, and its hotspot filter (sections 5 and 5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request
from ballast_core.policies.declaring import parameter
from ballast_core.state.view import View


@dataclass(frozen=True, slots=True)
class LMetric:
    """Cache and load multiplied, without weights (LMetric section 5): cost_i = P_i (BS_i + 1).

    P_i = Q_i + p - m_i: prefill tokens queued there, and this prompt's tokens that are not cached there; BS_i: requests
    in flight there for this stage. The 1 is the request itself, so that idle endpoints still differ by what they have
    cached; the paper does not give it. The paper assumes colocated serving. Here the prefill stage counts the prefill
    queue; at the decode stage P is the prompt on every decode endpoint, so BS decides. It compares raw tokens and
    counts, also across unlike hardware. With hotspot_filter the holders of a prefix are excluded (cost inf) while the
    two-phase detector finds that they attract more requests than they can serve.
    Example: P (1000, 200), BS (1, 8) -> 2000 against 1800, the second.
    """

    type: ClassVar[str] = "lmetric"
    needs: ClassVar[Belief] = Belief.PREFIXES | Belief.HOTSPOTS
    hotspot_filter: bool = parameter(True, "Whether holders of a hotspot's prefix are excluded.")

    def costs(self, view: View, request: Request) -> FloatArray:
        prefill_tokens = view.uncached_tokens + request.prompt_tokens - view.matched_tokens
        costs = (prefill_tokens * (view.requests + 1)).astype(np.float64)
        if self.hotspot_filter and view.prefills_here:
            costs[view.hotspot] = np.inf
        return costs
