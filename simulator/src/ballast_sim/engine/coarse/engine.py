"""An engine that jumps from change to change instead of from step to step.

While nothing is on its way in and all running requests are in steady decode, the next steps are known until the first
request ends, the blocks run out or a pull or lease ends: their ends are one running sum, computed in the order in which
stepping would add, so that every time is the same to the last bit. News at a time t take effect after the steps that
ended before t, on the very step that stepping would have composed for them.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine.assembly import new_scheduler, new_state
from ballast_sim.engine.coarse.calm import CalmSteps
from ballast_sim.engine.coarse.cohort import Cohort
from ballast_sim.engine.coarse.scheduler import CoarseSteps
from ballast_sim.engine.config import EngineConfig, StepTimer
from ballast_sim.engine.engine import Engine, Steps
from ballast_sim.engine.events import EngineEvent, RequestStats, TokensAdvanced
from ballast_sim.engine.requests import RequestState
from ballast_sim.engine.vllm.batch import Batch
from ballast_sim.engine.vllm.scheduler import Scheduler

Count = Callable[[Sequence[float], float, int, int], int]
"""How many of the first entries come before a time: `bisect_left`, or not after it: `bisect_right`."""
HORIZON_STEPS = 256
"""Steps that are foreseen at a time."""


@dataclass(slots=True)
class _Foresight:
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


class CoarseEngine(Engine):
    """The same engine, told in larger pieces: `advance` is due only where something changes.

    Same decisions, blocks, times and ends as an `Engine`; tokens of requests in steady decode are reported together
    (`TokensAdvanced`), with the time of each.
    """

    _tells_every_step = False

    def __init__(
        self,
        config: EngineConfig,
        on_step: Callable[[float, Batch], None] | None = None,
        mark_every_tokens: int = 0,
    ) -> None:
        """`on_step` as in `Engine`, but a batch names only the chunks of requests that are not in steady decode.

        `mark_every_tokens` makes `marks` report progress in such steps.
        """
        self._mark_every = mark_every_tokens
        self._told = 0  # events that are older than the turn under way
        self._foresight: _Foresight | None = None
        super().__init__(config, on_step)
        self.silent_until_s = 0.0

    def _make_scheduler(self) -> tuple[Scheduler, Steps]:
        state = new_state(self.config)
        self.cohort = Cohort(state, self._settled, self._mark_every)
        scheduler = new_scheduler(state, self.cohort)
        self._calm = CalmSteps(state, scheduler.policy, self.cohort)
        return scheduler, CoarseSteps(scheduler, self.cohort)

    def _settled(self, state: RequestState, first: int, times_s: Sequence[float]) -> None:
        """All these tokens came before those of the turn that is under way."""
        self._events.insert(self._told, TokensAdvanced(self._now_s, state.request_id, first, times_s))
        self._told += 1

    def _turn(self) -> None:
        self._told = len(self._events)
        super()._turn()

    # -- what the driver calls ---------------------------------------------------------------------------------------

    def next_event_s(self) -> float:
        """When `advance` has something to tell; infinity while nothing is going on."""
        foresight = self._foresee()
        return super().next_event_s() if foresight is None else foresight.until_s

    def advance(self, now_s: float) -> list[EngineEvent]:
        """See `Engine.advance`."""
        while True:
            self._leap(now_s, bisect_right)
            due_s = super().next_event_s()
            if due_s > now_s:
                break
            self._forget()
            self._now_s = max(self._now_s, due_s)
            self._turn()
        super()._tick(now_s)
        events, self._events = self._events, []
        return events

    def settle(self) -> None:
        """Have the next `advance` tell every token so far."""
        self._told = len(self._events)
        self.cohort.settle()
        self._forget()

    def kv_usage_ratio(self, now_s: float) -> float:
        """See `Engine.kv_usage_ratio`."""
        steps, pool = self._steps_before(now_s, bisect_left), self.scheduler.state.kv.pool
        return pool.usage_ratio_with(pool.free_blocks - self.cohort.blocks_of(steps)) if steps else pool.usage_ratio

    def stats(self, request_id: str) -> RequestStats | None:
        """See `Engine.stats`; of what has been told of or advanced to."""
        state = self._requests.get(request_id)
        if state is None:
            return None
        tokens = self.cohort.output_tokens(state)
        if tokens == state.output_tokens:
            return state.stats()
        return replace(state.stats(), output_tokens=tokens, last_token_s=self.cohort.ended_s[-1])

    def marks(self, now_s: float, inclusive: bool) -> Sequence[tuple[float, str, int]]:
        """Progress in steady decode that has not been told: (time, request, output tokens), in order.

        Of steps that ended before `now_s`, or by it where `inclusive`.
        """
        cohort, count = self.cohort, bisect_right if inclusive else bisect_left
        foresight = self._foresight
        if foresight is None and self._blocked is not None and self._blocked.ends_s <= now_s:
            foresight = self._foresee()
        if foresight is not None and not self._inbox:
            ends_s = foresight.ends_s
            steps = count(ends_s, now_s, 0, foresight.steps)
            found = cohort.marks(ends_s, steps)
            steps += cohort.steps_without_marks()
            self.silent_until_s = ends_s[min(steps, foresight.steps)]
            return found
        # The end of the first step that is not over: nothing that is told before brings a token.
        self.silent_until_s = self._blocked.ends_s if self._blocked is not None else 0.0
        return cohort.marks((), 0)

    # -- leaps -------------------------------------------------------------------------------------------------------

    def _tick(self, now_s: float) -> None:
        """Before news: the steps that ended earlier are past, and what was foreseen is off."""
        if now_s >= self._now_s:
            self._leap(now_s, bisect_left)
        self._forget()
        super()._tick(now_s)

    def _forget(self) -> None:
        """What was foreseen is off."""
        self._foresight = None
        self.silent_until_s = 0.0

    def _steps_before(self, now_s: float, count: Count) -> int:
        """Steps that have ended by now and wait to be leapt over."""
        if self._blocked is None or self._blocked.ends_s > now_s:
            return 0
        foresight = self._foresight
        if foresight is None or self._inbox:
            foresight = self._foresee()
            if foresight is None:
                return 0
        return count(foresight.ends_s, now_s, 0, foresight.steps)

    def _foresee(self) -> _Foresight | None:
        """What is known of the next steps; None where the next one may bring a change."""
        if self._foresight is not None:
            return self._foresight if not self._inbox else None
        if self._blocked is None or self._inbox or self._read or len(self._queue) + 1 != self._depth:
            return None
        for batch in (self._blocked, *self._queue):
            if not batch.tokens or batch.ended_pulls or batch.ended_sends:
                return None
        if self._held and any(held.renewed for held in self._held.values()):
            return None
        cohort = self.cohort
        steps = self._calm.count(HORIZON_STEPS)
        if steps == 0:
            return None
        ends_s = [self._blocked.ends_s, *(batch.ends_s for batch in self._queue)]
        ends_s += step_ends_s(self.config.timer, self._gpu_free_s, cohort.size, cohort.context_tokens, steps)
        if self._pulling or self._held:
            steps = bisect_left(ends_s, min(self._transfer_ends_s()), 0, steps)
        self._foresight = _Foresight(ends_s, steps) if steps else None
        return self._foresight

    def _leap(self, now_s: float, count: Count) -> None:
        """Take all foreseen steps that have ended."""
        while steps := self._steps_before(now_s, count):
            foresight = self._foresight
            assert foresight is not None
            assert self._blocked is not None
            ends_s, cohort = foresight.ends_s, self.cohort
            in_flight = [self._blocked, *self._queue]
            composed, context = self.scheduler.state.steps.composed, cohort.context_tokens
            first = 0 if self._on_step is not None else max(0, steps - len(in_flight))
            for step in range(first, steps):
                batch = Batch(
                    number=composed + 1 + step,
                    tokens=cohort.size,
                    decodes=cohort.size,
                    decode_context_tokens=context + step * cohort.size,
                    starts_s=ends_s[self._depth + step - 1],
                    ends_s=ends_s[self._depth + step],
                )
                if self._on_step is not None:
                    self._on_step(ends_s[step], batch)
                in_flight.append(batch)
            in_flight = in_flight[-self._depth :]
            cohort.advance(steps, ends_s[:steps], in_flight)
            self._now_s = ends_s[steps - 1]
            self._gpu_free_s = in_flight[-1].ends_s
            self._blocked, *rest = in_flight
            self._queue = deque(rest)
            del ends_s[:steps]
            foresight.steps -= steps
            if not foresight.steps:
                self._foresight = None
