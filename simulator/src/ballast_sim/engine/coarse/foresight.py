"""The steps to come, as long as nothing but steady decode happens: their ends are one running sum.

It is added up in the order in which stepping adds, so that every time is the same to the last bit.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine.coarse.calm import CalmSteps
from ballast_sim.engine.coarse.cohort import Cohort
from ballast_sim.engine.config import StepTimer
from ballast_sim.engine.loop import EngineLoop

HORIZON_STEPS = 256
"""Steps that are foreseen at a time."""


@dataclass(slots=True)
class Foresight:
    """Ends of the steps in flight and of those to be composed; of the first `steps` ends, each composes a step."""

    ends_s: list[float]
    steps: int

    @property
    def until_s(self) -> float:
        """The first end that may bring more than one token for each member."""
        return self.ends_s[self.steps]


def step_ends_s(timer: StepTimer, start_s: float, decodes: int, context_tokens: int, steps: int) -> list[float]:
    """Ends of consecutive steps of `decodes` requests, from `start_s`; each adds `decodes` tokens to the context."""
    if not isinstance(timer, HardwareProfile):
        ends = []
        for step in range(steps):
            start_s += timer.step_s(decodes, context_tokens + step * decodes, 0.0, decodes)
            ends.append(start_s)
        return ends
    contexts = np.arange(context_tokens, context_tokens + decodes * steps, decodes, dtype=np.int64)
    law = cast("Any", timer.step_s)  # nothing but arithmetic: the same on an array, element by element
    sums = np.empty(steps + 1)
    sums[0] = start_s
    sums[1:] = law(decodes, contexts, 0.0, decodes)
    ends_s: list[float] = np.cumsum(sums)[1:].tolist()
    return ends_s


def foresee(loop: EngineLoop, cohort: Cohort, calm: CalmSteps) -> Foresight | None:
    """What is known of the next steps; None where the next one may bring a change."""
    transfers = loop.transfers
    if loop.awaited is None or loop.inbox or transfers.read or len(loop.batch_queue) + 1 != loop.depth:
        return None
    in_flight = (loop.awaited, *loop.batch_queue)
    for batch in in_flight:
        if not batch.tokens or batch.ended_pulls or batch.ended_sends:
            return None
    if transfers.held and any(held.renewed for held in transfers.held.values()):
        return None
    steps = calm.count(HORIZON_STEPS)
    if steps == 0:
        return None
    ends_s = [batch.ends_s for batch in in_flight]
    ends_s += step_ends_s(loop.timer, loop.gpu_free_s, cohort.size, cohort.context_tokens, steps)
    if transfers.pulling or transfers.held:
        steps = bisect_left(ends_s, min(transfers.ends_s()), 0, steps)
    return Foresight(ends_s, steps) if steps else None
