"""The steps to come, as long as nothing but steady decode happens: their ends are one running sum.

It is added up in the order in which stepping adds, so that every time is the same to the last bit.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias, cast

import numpy as np

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine.coarse.calm import CalmSteps
from ballast_sim.engine.coarse.cohort import Cohort
from ballast_sim.engine.config import StepTimer
from ballast_sim.engine.loop import EngineLoop

Times: TypeAlias = "array[float]"
"""Seconds, one number after the other."""

WORTH_AN_ARRAY = 128
"""Steps from which on numpy is faster than a list."""


@dataclass(slots=True)
class Foresight:
    """Ends of the steps in flight and of those to be composed.

    Of the first `steps` ends each composes a step; the next one may bring more than one token for each member.
    """

    ends_s: Times
    steps: int


def step_ends_s(timer: StepTimer, start_s: float, decodes: int, context_tokens: int, steps: int) -> Times:
    """Ends of consecutive steps of `decodes` requests, from `start_s`; each adds `decodes` tokens to the context."""
    contexts = range(context_tokens, context_tokens + decodes * steps, decodes)
    if not isinstance(timer, HardwareProfile):
        lasts_s = [timer.step_s(decodes, context, 0.0, decodes) for context in contexts]
    elif steps < WORTH_AN_ARRAY:
        lasts_s = timer.decodes_s(decodes, contexts)
    else:
        law = cast("Any", timer.step_s)  # nothing but arithmetic: the same on an array, element by element
        sums = np.empty(steps + 1)
        sums[0] = start_s
        sums[1:] = law(decodes, np.arange(contexts.start, contexts.stop, decodes, dtype=np.int64), 0.0, decodes)
        return array("d", np.cumsum(sums)[1:].tobytes())
    ends_s = array("d", accumulate(lasts_s, initial=start_s))
    del ends_s[0]
    return ends_s


def foresee(loop: EngineLoop, cohort: Cohort, calm: CalmSteps, most: int) -> Foresight | None:
    """What is known of the next steps, at most so many; None where the next one may bring a change."""
    transfers = loop.transfers
    if loop.awaited is None or len(loop.batch_queue) + 1 != loop.depth:
        return None
    if loop.inbox or transfers.read:
        return None
    in_flight = (loop.awaited, *loop.batch_queue)
    for batch in in_flight:
        if not batch.tokens or batch.ended_pulls or batch.ended_sends:
            return None
    if transfers.held and any(held.renewed for held in transfers.held.values()):
        return None
    steps = calm.count(most)
    if steps == 0:
        return None
    ends_s = array("d", [batch.ends_s for batch in in_flight])
    ends_s += step_ends_s(loop.timer, loop.gpu_free_s, cohort.size, cohort.context_tokens, steps)
    if transfers.pulling or transfers.held:
        steps = bisect_left(ends_s, transfers.first_end_s(), 0, steps)
    return Foresight(ends_s, steps) if steps else None
