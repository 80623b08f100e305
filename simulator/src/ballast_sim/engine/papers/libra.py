"""Libra's local scheduler (section 4.2, Algorithm 2): prompts get what the decodes' SLO leaves of a step.

All decodes go first, then prompts in order of arrival up to the budget that the table of step times allows
(`ballast_core.policies.partition.batch_budget`), which every step with a prompt in it corrects. Steps of decodes alone
teach the table nothing: no budget follows from them. A request that only pulls KV waits for no prompt, for once its KV
is there it decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from ballast_core.policies.partition.batch_budget import StepTimeTable
from ballast_core.profiles import HardwareProfile
from ballast_sim.engine.papers.progress import Progress
from ballast_sim.engine.requests import RequestState
from ballast_sim.engine.vllm.batch import Batch
from ballast_sim.engine.vllm.queues import WaitingQueue
from ballast_sim.engine.vllm.state import SchedulerState


class SloPromptBudget:
    """A `PromptBudget` from the time between tokens that decodes are promised."""

    __slots__ = ("_progress", "_slo_s", "_state", "_table")

    def __init__(self, slo_s: float, profile: HardwareProfile, state: SchedulerState, progress: Progress) -> None:
        """`slo_s` holds for decodes without a `tbt_slo_s` of their own; `profile` fills the table at first."""
        self._slo_s = slo_s
        self._table = StepTimeTable(profile)
        self._state = state
        self._progress = progress

    def tokens(self, first: int) -> int:
        """Algorithm 2, line 3; 0 where no prompt waits or runs. See `PromptBudget.tokens`."""
        state, slo_s = self._state, self._slo_s
        decodes, context, least_s = self._progress.booked_decodes()
        prompts = len(state.waiting) + len(state.skipped_waiting) > 0
        for request in state.running[first:]:
            placeholders = request.placeholders
            if placeholders and request.computed + 2 - placeholders >= request.length_limit:
                continue
            if request.num_tokens + placeholders - request.computed > 1:
                prompts = True
                continue
            decodes += 1
            context += request.computed
            least_s = min(least_s, request.spec.tbt_slo_s or slo_s)
        if not prompts:
            return 0
        room = state.config.max_num_batched_tokens - decodes
        mean = context / decodes if decodes else 0.0
        return self._table.max_prefill_tokens(mean, decodes, least_s if decodes else slo_s, room)

    def observe(self, batch: Batch) -> None:
        """Algorithm 2, line 1: the duration of a step with a prompt in it corrects the table."""
        if batch.tokens > batch.decodes:
            mean = batch.decode_context_tokens / batch.decodes if batch.decodes else 0.0
            self._table.observe(batch.tokens - batch.decodes, mean, batch.decodes, batch.ends_s - batch.starts_s)


class PullsFirst:
    """A waiting queue in two parts: requests that have KV to pull, then the others; each in its own order."""

    __slots__ = ("_others", "_pulls")

    def __init__(self, pulls: WaitingQueue, others: WaitingQueue) -> None:
        """Both empty."""
        self._pulls, self._others = pulls, others

    def __len__(self) -> int:
        """Requests in both parts."""
        return len(self._pulls) + len(self._others)

    def __iter__(self) -> Iterator[RequestState]:
        """In order of service."""
        return chain(self._pulls, self._others)

    def _of(self, state: RequestState) -> WaitingQueue:
        return self._others if state.pull_tried else self._pulls

    def add(self, state: RequestState) -> None:
        """Into its part."""
        self._of(state).add(state)

    def peek(self) -> RequestState:
        """The next request."""
        return (self._pulls if len(self._pulls) else self._others).peek()

    def pop(self) -> RequestState:
        """Remove and return the next request."""
        return (self._pulls if len(self._pulls) else self._others).pop()

    def prepend(self, state: RequestState) -> None:
        """To the front of its part."""
        self._of(state).prepend(state)

    def put_back(self, skipped: Sequence[RequestState]) -> None:
        """To the front of their parts, in the order given."""
        for queue in (self._pulls, self._others):
            queue.put_back([state for state in skipped if self._of(state) is queue])

    def remove(self, state: RequestState) -> None:
        """Remove a request from any position."""
        (self._pulls if state in set(self._pulls) else self._others).remove(state)

    def reorder(self) -> None:
        """See `WaitingQueue`."""
        self._pulls.reorder()
        self._others.reorder()
