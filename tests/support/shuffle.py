"""A rescheduling policy that moves everything all the time, and a gateway that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.rescheduler import Rescheduler
from ballast_core.policies.rescheduling.protocol import Decodes, Move, Round
from tests.support.gateway_kit import RunningGateway


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Everything that may move moves to the next endpoint, in every round."""

    type: ClassVar[str] = "shuffle"
    needs: ClassVar[Belief] = Belief.PROGRESS
    predictor: ClassVar[str] = "hinted"
    min_stay_s: ClassVar[float] = 0.0
    interval_s: float = 0.05

    def decide(self, decodes: Decodes) -> Round:
        count = len(decodes.takes)
        loads = np.zeros(count)
        if count < 2:
            return Round((), loads, 0.0, "nowhere to go")
        rows = np.flatnonzero(decodes.may_move)
        moves = tuple(Move(int(row), (int(decodes.endpoint[row]) + 1) % count, 1.0) for row in rows)
        return Round(moves, loads, 0.0, "all")


def shuffle(gateway: RunningGateway, interval_s: float) -> None:
    """Replace the gateway's own rescheduling policy, which it must have, with it."""
    rescheduler = gateway.gateway.driver.director.rescheduler
    assert isinstance(rescheduler, Rescheduler)
    rescheduler.policy = Shuffle(interval_s)
