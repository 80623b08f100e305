"""Draining endpoints are emptied where no rescheduling policy moves anything: what can move goes where room is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from ballast_core.beliefs.kinds import Belief
from ballast_core.policies.rescheduling.protocol import Decodes, Move, Round

_MEMORY_RATIO: Final = 0.9
"""Share of a target's KV cache that moves may fill."""
_AT_ONCE: Final = 8
"""Moves under way: each computes a prompt again on its target, beside the decodes there."""


@dataclass(frozen=True, slots=True)
class Emptying:
    """Those with the most tokens to come leave first, each for the endpoint with the largest share of free KV cache.

    It reads no belief that somebody would have to learn: a target's memory is what is booked there or what it reports,
    whichever is more. A request must fit with all that it may still generate by its prediction.
    """

    type: ClassVar[str] = "emptying"
    needs: ClassVar[Belief] = Belief.NONE
    interval_s: ClassVar[float] = 0.5
    min_stay_s: ClassVar[float] = 5.0
    predictor: ClassVar[str] = "hinted"

    def decide(self, decodes: Decodes) -> Round:
        """Moves away from draining endpoints, and no others. The load of an endpoint is the tokens held there."""
        booked = np.bincount(decodes.endpoint, decodes.tokens, minlength=len(decodes.kv_tokens))
        reported = booked if decodes.reported_tokens is None else decodes.reported_tokens
        room = _MEMORY_RATIO * decodes.kv_tokens - np.maximum(booked, reported)
        room[~decodes.takes] = -np.inf
        free = None if decodes.free_decodes is None else decodes.free_decodes.copy()
        if free is not None:
            room[free <= 0] = -np.inf
        rows = np.flatnonzero(decodes.may_move & ~decodes.takes[decodes.endpoint])
        moves: list[Move] = []
        most, without_room = max(_AT_ONCE - decodes.moves_under_way, 0), 0
        for row in rows[np.argsort(-decodes.remaining_tokens[rows], kind="stable")].tolist():
            if len(moves) >= most:
                break
            needed = float(decodes.tokens[row] + decodes.remaining_tokens[row])
            fits = np.isfinite(decodes.migration_s[decodes.endpoint[row]]) & (room >= needed)
            if decodes.serves is not None:
                fits &= decodes.serves[row]
            share = np.where(fits, (room - needed) / decodes.kv_tokens, -np.inf)
            target = int(share.argmax())
            if not np.isfinite(share[target]):
                without_room += 1
                continue
            moves.append(Move(row, target, 0.0))
            room[target] -= needed
            if free is not None:
                free[target] -= 1
                if free[target] <= 0:
                    room[target] = -np.inf
        reason = f"{without_room} of {len(rows)} have no endpoint with room" if without_room else "no more can move"
        if len(moves) >= most:
            reason = f"{len(moves) + decodes.moves_under_way} moves are under way, the limit"
        return Round(tuple(moves), np.asarray(booked, np.float64), 0.0, reason)
