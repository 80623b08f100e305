"""Why this endpoint, why this move, why none? A policy's answer with everything that it weighed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.model.endpoints import Endpoint, EndpointId, Stage
from ballast_core.model.requests import RequestId


@dataclass(frozen=True, slots=True, eq=False)
class PlacementTrace:
    """One placement decision. `costs[k]` belongs to `candidates[k]`; lower wins, inf is ineligible."""

    stage: Stage
    policy: str
    chosen: EndpointId
    candidates: tuple[Endpoint, ...]
    costs: FloatArray

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


@dataclass(frozen=True, slots=True)
class MoveTrace:
    """One move of a round."""

    request_id: RequestId
    source: EndpointId
    target: EndpointId
    gain: float
    """What the objective falls by."""
    tokens: float
    """That the request held."""
    remaining_tokens: float
    """As predicted."""
    move_s: float
    """Seconds that the copy should take on a link of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundTrace:
    """One round. `loads[k]` belongs to `endpoints[k]`."""

    at_s: float
    policy: str
    endpoints: tuple[Endpoint, ...]
    loads: FloatArray
    """As the policy weighs them, before any move."""
    objective: float
    """Before any move."""
    requests: int
    """Decodes that were looked at."""
    moves: tuple[MoveTrace, ...]
    reason: str
    """Why there were no more moves."""

    def as_dict(self) -> dict[str, object]:
        """The trace as plain JSON values."""
        return {
            "at_s": self.at_s,
            "policy": self.policy,
            "requests": self.requests,
            "objective": self.objective,
            "loads": {endpoint.id: float(load) for endpoint, load in zip(self.endpoints, self.loads, strict=True)},
            "moves": [
                {
                    "request_id": move.request_id,
                    "source": move.source,
                    "target": move.target,
                    "gain": move.gain,
                    "tokens": move.tokens,
                    "remaining_tokens": move.remaining_tokens,
                    "move_s": move.move_s,
                }
                for move in self.moves
            ],
            "reason": self.reason,
        }
