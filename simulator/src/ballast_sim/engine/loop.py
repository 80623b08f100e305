"""The engine's loop on a clock that is passed in (vLLM's v1/engine/core.py, step_with_batch_queue).

One turn of the loop takes in what has arrived, composes a step and, when the batch queue is full (two steps with
asynchronous scheduling, one without), waits for the oldest step and processes its output. Time passes only while it
waits.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ballast_sim.engine.assembly import new_scheduler, new_state
from ballast_sim.engine.config import EngineConfig
from ballast_sim.engine.events import EngineEvent, Finished, FinishReason, HandOff, PullStarted, StepEnded
from ballast_sim.engine.requests import RequestState, Status
from ballast_sim.engine.transfers import WorkerTransfers
from ballast_sim.engine.vllm.batch import Batch, Output
from ballast_sim.engine.vllm.scheduler import Scheduler

OnStep = Callable[[float, Batch], None]
"""`on_step(composed_at_s, batch)` is called with every step that computes something, as it is composed."""


class Steps(Protocol):
    """Composes steps and takes in their output: a `Scheduler`, or one that schedules a cohort beside it."""

    def schedule(self, now_s: float) -> Batch:
        """See `Scheduler.schedule`."""
        ...

    def update_from_output(self, batch: Batch, now_s: float) -> Output:
        """See `Scheduler.update_from_output`."""
        ...

    def abort(self, request: RequestState) -> None:
        """See `Scheduler.abort`."""
        ...


@dataclass(frozen=True, slots=True)
class _Message:
    kind: Literal["add", "abort"]
    request: RequestState


class EngineLoop:
    """The loop's state: messages not read yet, composed steps, transfers, and events that were not reported yet.

    `inbox` has messages for the next turn. The loop waits for the end of step `awaited`; `batch_queue` has the steps
    composed after it. `asleep` is an empty step during which nothing can be done.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler,
        steps: Steps,
        on_step: OnStep | None = None,
        reports_every_step: bool = True,
    ) -> None:
        """`steps` of `scheduler`. Without `reports_every_step`, steps that bring no token are not reported."""
        self.scheduler = scheduler
        self.timer = config.timer
        self.transfers = WorkerTransfers(config)
        self.on_step = on_step
        self.now_s = 0.0
        self.gpu_free_s = 0.0
        self.awaited: Batch | None = None
        self.asleep: Batch | None = None
        self.batch_queue: deque[Batch] = deque()
        self.depth = 2 if config.async_scheduling else 1
        self.requests: dict[str, RequestState] = {}
        self.events: list[EngineEvent] = []
        self._steps = steps
        self._state = scheduler.state
        self._reports_every_step = reports_every_step
        self._recomputes_failed_pulls = config.recompute_failed_pulls
        self._jumps_idle_steps = config.jump_idle_steps
        self.inbox: list[_Message] = []

    # -- messages ----------------------------------------------------------------------------------------------------

    def add(self, request: RequestState) -> None:
        """The scheduler gets the request at the loop's next turn."""
        self.requests[request.request_id] = request
        self.inbox.append(_Message("add", request))

    def abort(self, request: RequestState) -> None:
        """The request ends at the loop's next turn."""
        self.inbox.append(_Message("abort", request))

    def added(self) -> Sequence[RequestState]:
        """Requests that the scheduler has not got yet."""
        return [message.request for message in self.inbox if message.kind == "add"]

    # -- time --------------------------------------------------------------------------------------------------------

    def next_event_s(self) -> float:
        """When the next turn is due; infinity while nothing is going on."""
        if self.awaited is not None:
            return self.awaited.ends_s
        if self.inbox:
            return self.now_s
        if self.asleep is not None:
            if self.transfers.read:
                return self.now_s
            return max(self.now_s, self.transfers.first_end_s())
        return math.inf

    def pass_time(self, now_s: float) -> None:
        """Move the clock, unless the loop waits for a step. Raises ValueError where it would go back."""
        if now_s < self.now_s:
            raise ValueError(f"now_s: the clock went back from {self.now_s!r} to {now_s!r}")
        if self.awaited is None:
            self.now_s = now_s

    def turn(self, due_s: float) -> None:
        """Run the turn that is due, until the loop has to wait for time or for messages."""
        self.now_s = max(self.now_s, due_s)
        if self.awaited is not None:
            batch, self.awaited = self.awaited, None
            self._process(batch)
        elif self.asleep is not None:
            batch, self.asleep = self.asleep, None
            self._dispatch(batch)
        else:
            self._read_messages()
        while self.awaited is None and self.asleep is None:
            if self.inbox:
                self._read_messages()
            if not self._compose():
                return

    def jump(self, now_s: float, in_flight: Sequence[Batch]) -> None:
        """Continue at a later time, with these steps in flight; the first of them is awaited."""
        self.now_s = now_s
        self.awaited, *rest = in_flight
        self.batch_queue = deque(rest)
        self.gpu_free_s = in_flight[-1].ends_s

    def take_events(self) -> list[EngineEvent]:
        """Events since the last call, in order."""
        events = self.events
        if not events:
            return []
        self.events = []
        return events

    # -- one turn ----------------------------------------------------------------------------------------------------

    def _read_messages(self) -> None:
        inbox, self.inbox = self.inbox, []
        for message in inbox:
            match message.kind:
                case "add":
                    self.scheduler.add_request(message.request)
                case "abort":
                    self._abort(message.request)

    def _abort(self, request: RequestState) -> None:
        if request.status is Status.FINISHED:
            return
        if any(message.request is request and message.kind == "add" for message in self.inbox):
            return  # taken in first, aborted right after
        self._steps.abort(request)
        self._finish(request, FinishReason.ABORT)

    def _compose(self) -> bool:
        """Compose a step, or go on waiting for the oldest; False when there is nothing to do at all."""
        if self._state.has_unfinished():
            batch = self._steps.schedule(self.now_s)
            for request in batch.pulls:
                self._begin_pull(request)
            for request in batch.needless_pulls:
                self.events.append(PullStarted(self.now_s, request.request_id, 0))
        elif self._state.has_requests():
            batch = Batch()  # flushes an end, or polls for transfers
            self._state.finished_unflushed = False
        else:
            if not self.batch_queue:
                return False
            self._await_oldest()
            return True
        if batch.tokens:
            self._start(batch)
        elif self._must_sleep(batch):
            self.asleep = batch
            return True
        self._dispatch(batch)
        return True

    def _begin_pull(self, request: RequestState) -> None:
        self.transfers.begin_pull(request, self.now_s)
        local = request.computed - request.pulled_tokens
        self.events.append(PullStarted(self.now_s, request.request_id, request.pulled_tokens, local))

    def _must_sleep(self, empty: Batch) -> bool:
        """Whether an empty step stays empty until a transfer ends or a message comes.

        Not after a preemption: it freed blocks and a seat that the next step can give to other requests.
        """
        if self.gpu_free_s > self.now_s:
            return False
        if self._jumps_idle_steps and self.transfers.pulling:
            return True
        if empty.preempted or self.transfers.read or self.transfers.first_end_s() <= self.now_s:
            return False
        for batch in self.batch_queue:
            if batch.tokens or batch.ended_pulls or batch.ended_sends:
                return False
        return self._state.has_requests()

    def _start(self, batch: Batch) -> None:
        """Put a composed step behind those in flight on the accelerator, with its duration."""
        batch.starts_s = max(self.now_s, self.gpu_free_s)
        lasts_s = self.timer.step_s(batch.tokens, batch.decode_context_tokens, batch.prefill_pairs, batch.decodes)
        batch.ends_s = batch.starts_s + lasts_s + batch.load_s + self.scheduler.policy.take_swap_s()
        self.gpu_free_s = batch.ends_s
        if self.on_step is not None:
            self.on_step(self.now_s, batch)

    def _dispatch(self, batch: Batch) -> None:
        """Pass a step to the worker: with its output the worker reports the transfers that have ended by now."""
        transfers = self.transfers
        if transfers.pulling:
            batch.ended_pulls = transfers.take_ended_pulls(self.now_s)
        if transfers.held or transfers.read:
            batch.ended_sends = transfers.take_ended_sends(self.now_s)
        if not batch.tokens or batch.ends_s < self.now_s:
            batch.ends_s = self.now_s
        self.batch_queue.append(batch)
        if len(self.batch_queue) >= self.depth or not (batch.tokens or self._state.has_requests()):
            self._await_oldest()

    def _await_oldest(self) -> None:
        batch = self.batch_queue.popleft()
        if batch.ends_s > self.now_s:
            self.awaited = batch
        else:
            self._process(batch)

    def _process(self, batch: Batch) -> None:
        """Aborts first, then the step's tokens, then the transfers that the worker reported."""
        for message in self.inbox:
            if message.kind == "abort":
                self._abort(message.request)
        if batch.tokens:
            output = self._steps.update_from_output(batch, self.now_s)
            if output.tokens or self._reports_every_step:
                self.events.append(StepEnded(self.now_s, output.tokens, batch.tokens))
            for request, reason in output.finished:
                self._finish(request, reason)
        if batch.ended_pulls:
            self._process_pulls(batch.ended_pulls)
        if batch.ended_sends:
            self.scheduler.transfers.finished_sending(batch.ended_sends)

    def _process_pulls(self, ended: Sequence[RequestState]) -> None:
        failed = [request for request in ended if request.pull_failed and not self._recomputes_failed_pulls]
        self.scheduler.transfers.finished_receiving(ended)
        for request in failed:
            if request.status is not Status.FINISHED:
                self._steps.abort(request)
                self._finish(request, FinishReason.ERROR)

    def _finish(self, request: RequestState, reason: FinishReason) -> None:
        request_id = request.request_id
        del self.requests[request_id]
        hand_off = None
        if request.spec.hold and reason in (FinishReason.LENGTH, FinishReason.STOP):
            expires_at_s = self.transfers.hold(request, self.now_s)
            computed = request.computed  # the last token has no KV yet, unless a step too many is in flight
            blocks = tuple(request.blocks[: self._state.kv.pool.blocks_for(computed)])
            hand_off = HandOff(blocks, computed, expires_at_s, _prefill_ends(request))
        request.prefill_steps = None  # steps and requests that name each other would outlive the request
        self.events.append(Finished(self.now_s, request_id, reason, request.stats(), hand_off))


def _prefill_ends(request: RequestState) -> tuple[tuple[float, int], ...]:
    return tuple((step.ends_s, tokens) for step, tokens in request.prefill_steps or ())


def stepping_loop(config: EngineConfig, on_step: OnStep | None = None) -> EngineLoop:
    """A loop that composes every step by itself."""
    scheduler = new_scheduler(new_state(config))
    return EngineLoop(config, scheduler, scheduler, on_step)
