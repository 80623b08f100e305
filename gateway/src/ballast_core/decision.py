"""Why this endpoint? A placement's answer with everything that it weighed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast_core.model import Endpoint, EndpointId, Stage


@dataclass(frozen=True, slots=True, eq=False)
class PlacementTrace:
    """One placement decision. `costs[k]` belongs to `candidates[k]`; lower wins, inf is ineligible."""

    stage: Stage
    policy: str
    chosen: EndpointId
    candidates: tuple[Endpoint, ...]
    costs: NDArray[np.float64]

    def as_dict(self) -> dict[str, object]:
        """The trace as plain JSON values, candidates in order of cost."""
        order = np.argsort(self.costs, kind="stable")
        return {
            "stage": str(self.stage),
            "policy": self.policy,
            "chosen": self.chosen,
            "candidates": [
                {
                    "endpoint": self.candidates[k].id,
                    "cost": float(self.costs[k]) if np.isfinite(self.costs[k]) else None,
                }
                for k in order
            ],
        }
