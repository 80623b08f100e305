"""An engine that jumps from change to change instead of from step to step.

While no message waits and all running requests are in steady decode, the next steps are known until the first request
ends, the blocks run out or a pull or lease ends (`foresight`). A message at time t takes effect after the steps that
ended before t, on the very step that stepping would have composed for it.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from ballast_sim.engine.assembly import new_scheduler, new_state
from ballast_sim.engine.coarse.calm import CalmSteps
from ballast_sim.engine.coarse.cohort import Cohort
from ballast_sim.engine.coarse.foresight import Foresight, foresee
from ballast_sim.engine.coarse.marks import Mark
from ballast_sim.engine.coarse.scheduler import CoarseSteps
from ballast_sim.engine.config import EngineConfig
from ballast_sim.engine.engine import Engine
from ballast_sim.engine.events import EngineEvent, RequestStats, TokensAdvanced
from ballast_sim.engine.loop import EngineLoop, OnStep
from ballast_sim.engine.requests import RequestState
from ballast_sim.engine.vllm.batch import Batch

FIRST_HORIZON_STEPS, LAST_HORIZON_STEPS = 32, 1024
"""Steps that are foreseen at a time: few after a change, as another may be near, and more the longer there is none."""

Count = Callable[[Sequence[float], float, int, int], int]
"""How many of the first entries come before a time: `bisect_left`, or not after it: `bisect_right`."""


class CoarseEngine(Engine):
    """The same engine, reported in larger pieces: `advance` is due only where something changes.

    Same decisions, blocks, times and ends as an `Engine`; tokens of requests in steady decode are reported together
    (`TokensAdvanced`), with the time of each.
    """

    def __init__(self, config: EngineConfig, on_step: OnStep | None = None, mark_every_tokens: int = 0) -> None:
        """`on_step` as in `Engine`, but a batch names only the chunks of requests that are not in steady decode.

        `mark_every_tokens` makes `marks` report progress in such steps.
        """
        state = new_state(config)
        self.cohort = Cohort(state, self._settled, mark_every_tokens)
        scheduler = new_scheduler(state, self.cohort)
        self._calm = CalmSteps(state, scheduler.policy, self.cohort)
        self._pool = state.kv.pool
        self._older_events = 0  # events that are older than the turn under way
        self._foresight: Foresight | None = None
        self._looked_ahead = False
        self._horizon_steps = FIRST_HORIZON_STEPS
        steps = CoarseSteps(scheduler, self.cohort)
        super().__init__(config, loop=EngineLoop(config, scheduler, steps, on_step, reports_every_step=False))
        self.silent_until_s = 0.0

    def _settled(self, request: RequestState, first: int, before: int, reported: int) -> None:
        """Report a member's tokens. All of them came before those of the turn that is under way."""
        processed, marked = self.scheduler.state.steps.processed, first + max(0, reported - before)
        ended_s = self.cohort.ended_s
        advanced = TokensAdvanced(self.loop.now_s, request.request_id, first, ended_s, before, processed, marked)
        self.loop.events.insert(self._older_events, advanced)
        self._older_events += 1

    # -- time --------------------------------------------------------------------------------------------------------

    def next_event_s(self) -> float:
        """When `advance` has something to report; infinity while nothing is going on."""
        foresight = self._foresee()
        return self.loop.next_event_s() if foresight is None else foresight.ends_s[foresight.steps]

    def advance(self, now_s: float) -> list[EngineEvent]:
        """See `Engine.advance`."""
        loop = self.loop
        while (due_s := loop.next_event_s()) <= now_s:
            if self.cohort.size and loop.awaited is not None and self._foresee() is not None:
                self._leap(now_s, bisect_right)
                continue
            self._forget()
            self._older_events = len(loop.events)
            loop.turn(due_s)
        loop.pass_time(now_s)
        return loop.take_events()

    def catch_up(self, now_s: float) -> None:
        """Before a message: the steps that ended earlier are past, and what was foreseen is void."""
        if now_s >= self.loop.now_s:
            self._leap(now_s, bisect_left)
        self._forget()
        self.loop.pass_time(now_s)

    def settle(self) -> None:
        """Have the next `advance` report every token so far."""
        self._older_events = len(self.loop.events)
        self.cohort.settle()
        self._forget()

    # -- what the driver may ask -------------------------------------------------------------------------------------

    def kv_usage_ratio(self, now_s: float) -> float:
        """See `Engine.kv_usage_ratio`."""
        loop, pool = self.loop, self._pool
        awaited, free = loop.awaited, pool.free_blocks
        if awaited is not None and awaited.ends_s < now_s:
            foresight = self._foresight
            if foresight is None or loop.inbox:
                foresight = self._foresee()
            if foresight is not None:
                steps = bisect_left(foresight.ends_s, now_s, 0, foresight.steps)
                free -= self.cohort.wheel.blocks(self._state.steps.composed + 1, steps)
        return 1.0 - free / pool.usable_blocks

    def stats(self, request_id: str) -> RequestStats | None:
        """See `Engine.stats`; as of the last message or `advance`."""
        request = self.loop.requests.get(request_id)
        if request is None:
            return None
        tokens = self.cohort.output_tokens(request)
        if tokens == request.output_tokens:
            return request.stats()
        return replace(request.stats(), output_tokens=tokens, last_token_s=self.cohort.ended_s[-1])

    def marks(self, now_s: float, inclusive: bool) -> Sequence[Mark]:
        """Progress in steady decode that was not reported yet: (time, request, output tokens), in order.

        Of steps that ended before `now_s`, or by it where `inclusive`.
        """
        loop, cohort, foresight = self.loop, self.cohort, self._foresight
        if foresight is None and loop.awaited is not None and loop.awaited.ends_s <= now_s:
            foresight = self._foresee()
        if foresight is not None and not loop.inbox:
            ends_s, most, marks = foresight.ends_s, foresight.steps, cohort.marks
            steps = (bisect_right if inclusive else bisect_left)(ends_s, now_s, 0, most)
            found = marks.advance(cohort.ended_s, ends_s, steps)
            steps += marks.steps_without
            self.silent_until_s = ends_s[min(most, steps)]
            return found
        # Until the first step that is not over ends, no request gets a token.
        self.silent_until_s = loop.awaited.ends_s if loop.awaited is not None else math.inf
        return cohort.marks.advance(cohort.ended_s, (), 0)

    def check_blocks(self) -> None:
        """See `Engine.check_blocks`."""
        self.cohort.deal_blocks()
        super().check_blocks()

    # -- leaps -------------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """What was foreseen is void."""
        self._foresight, self._looked_ahead = None, False
        self._horizon_steps = FIRST_HORIZON_STEPS
        self.silent_until_s = 0.0

    def _foresee(self) -> Foresight | None:
        """What is known of the next steps; None where the next one may bring a change."""
        if not self._looked_ahead:
            self._looked_ahead = True
            if self.cohort.size:
                self._foresight = foresee(self.loop, self.cohort, self._calm, self._horizon_steps)
        return None if self.loop.inbox else self._foresight

    def _steps_before(self, now_s: float, count: Count) -> int:
        """Steps that have ended by now and wait to be leapt over."""
        loop = self.loop
        if loop.awaited is None or loop.awaited.ends_s > now_s:
            return 0
        foresight = self._foresee()
        return 0 if foresight is None else count(foresight.ends_s, now_s, 0, foresight.steps)

    def _leap(self, now_s: float, count: Count) -> None:
        """Take all foreseen steps that have ended."""
        loop, cohort, step_count = self.loop, self.cohort, self.scheduler.state.steps
        while steps := self._steps_before(now_s, count):
            foresight = self._foresight
            assert foresight is not None
            assert loop.awaited is not None
            ends_s = foresight.ends_s
            in_flight = [loop.awaited, *loop.batch_queue]
            composed, context = step_count.composed, cohort.context_tokens
            first = 0 if loop.on_step is not None else max(0, steps - len(in_flight))
            for step in range(first, steps):
                batch = Batch(
                    number=composed + 1 + step,
                    tokens=cohort.size,
                    decodes=cohort.size,
                    decode_context_tokens=context + step * cohort.size,
                    starts_s=ends_s[loop.depth + step - 1],
                    ends_s=ends_s[loop.depth + step],
                )
                if loop.on_step is not None:
                    loop.on_step(ends_s[step], batch)
                in_flight.append(batch)
            in_flight = in_flight[-loop.depth :]
            cohort.advance(steps, ends_s[:steps], in_flight)
            loop.jump(ends_s[steps - 1], in_flight)
            del ends_s[:steps]
            foresight.steps -= steps
            if not foresight.steps:
                self._foresight, self._looked_ahead = None, False
                self._horizon_steps = min(2 * self._horizon_steps, LAST_HORIZON_STEPS)
