"""Decision traces: what a policy chose, together with everything that it weighed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ballast_core.model.endpoints import Endpoint, EndpointId, Stage
from ballast_core.model.requests import RequestId

if TYPE_CHECKING:
    from ballast_core.arrays import FloatArray  # numpy, which agents in engine pods do without


@dataclass(frozen=True, slots=True, eq=False)
class PlacementTrace:
    """One placement decision. `costs[k]` belongs to `candidates[k]`: the lowest wins, inf means ineligible."""

    stage: Stage
    policy: str
    chosen: EndpointId
    candidates: tuple[Endpoint, ...]
    costs: FloatArray

    def as_dict(self) -> dict[str, object]:
        """The trace as plain JSON values, candidates in order of cost."""
        costs = self.costs.tolist()
        order = sorted(range(len(costs)), key=lambda k: (math.isnan(costs[k]), costs[k]))
        return {
            "stage": str(self.stage),
            "policy": self.policy,
            "chosen": self.chosen,
            "candidates": [
                {
                    "endpoint": self.candidates[k].id,
                    "cost": costs[k] if math.isfinite(costs[k]) else None,
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
    """By how much the objective falls."""
    tokens: float
    """Tokens that the request held: prompt and output so far."""
    remaining_tokens: float
    """Output tokens still to come, as predicted."""
    move_s: float
    """Expected seconds to copy its KV cache if the link carries nothing else."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundTrace:
    """One rescheduling round. `loads[k]` belongs to `endpoints[k]`."""

    at_s: float
    policy: str
    endpoints: tuple[Endpoint, ...]
    loads: FloatArray
    """In the policy's own measure, before any move."""
    objective: float
    """The policy's objective before any move."""
    requests: int
    """Number of decodes considered."""
    moves: tuple[MoveTrace, ...]
    reason: str
    """Why the round made no further move."""

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
