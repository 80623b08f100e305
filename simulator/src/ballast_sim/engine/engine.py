"""The engine's loop on a clock that is passed in (vLLM's v1/engine/core.py, step_with_batch_queue).

One turn of the loop takes in what has arrived, composes a step and, when the batch queue is full (two steps with
asynchronous scheduling, one without), waits for the oldest step and takes in its tokens. Time passes only while it
waits.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from ballast_sim.engine.assembly import new_scheduler, new_state
from ballast_sim.engine.config import EngineConfig, slowed
from ballast_sim.engine.events import EngineEvent, Finished, FinishReason, HandOff, PullStarted, RequestStats, StepEnded
from ballast_sim.engine.requests import EngineRequest, RequestState, Status
from ballast_sim.engine.vllm.batch import Batch, Output
from ballast_sim.engine.vllm.scheduler import Scheduler

_NEVER = math.inf


@dataclass(frozen=True, slots=True)
class _Message:
    kind: Literal["add", "abort"]
    state: RequestState


@dataclass(slots=True)
class _Held:
    state: RequestState
    expires_at_s: float
    renewed: bool = False  # by a heartbeat that the worker has not read yet


class Steps(Protocol):
    """Composes steps and takes in their output."""

    def schedule(self, now_s: float) -> Batch:
        """See `Scheduler.schedule`."""
        ...

    def update_from_output(self, batch: Batch, now_s: float) -> Output:
        """See `Scheduler.update_from_output`."""
        ...

    def abort(self, request: RequestState) -> None:
        """See `Scheduler.abort`."""
        ...


class EngineLoad(NamedTuple):
    """What the engine's gauges show."""

    running: int
    waiting: int
    deferred: int
    kv_usage_ratio: float
    queued_input_tokens: int


class Engine:
    """One vLLM engine: add, abort, then `advance` whenever `next_event_s` has come.

    The clock never goes back: ValueError where a time passed in lies before one seen earlier.
    """

    _tells_every_step = True
    silent_until_s = _NEVER
    """Before this time `marks` has nothing to tell."""

    def __init__(self, config: EngineConfig, on_step: Callable[[float, Batch], None] | None = None) -> None:
        """`on_step(composed_at_s, batch)` sees every step that computes something, as it is composed."""
        self.config = config
        self._timer = config.timer
        self.scheduler, self._steps = self._make_scheduler()
        self.expired_leases = 0
        self._on_step = on_step
        self._now_s = 0.0
        self._gpu_free_s = 0.0
        self._inbox: list[_Message] = []
        self._queue: deque[Batch] = deque()
        self._depth = 2 if config.async_scheduling else 1
        self._blocked: Batch | None = None  # the step whose end the loop waits for
        self._asleep: Batch | None = None  # an empty step during which nothing can be done
        self._requests: dict[str, RequestState] = {}
        self._pulling: dict[RequestState, float] = {}
        self._held: dict[str, _Held] = {}
        self._read: list[RequestState] = []  # held until now; the worker has not reported it yet
        self._events: list[EngineEvent] = []

    def _make_scheduler(self) -> tuple[Scheduler, Steps]:
        scheduler = new_scheduler(new_state(self.config))
        return scheduler, scheduler

    # -- what the driver tells ---------------------------------------------------------------------------------------

    def add(self, request: EngineRequest, now_s: float) -> None:
        """Hand over a request; it is taken in at the loop's next turn.

        Raises ValueError naming the field of a request that could never run, and for an id that is in use.
        """
        self._check(request)
        self._tick(now_s)
        state = RequestState(request, self.config.max_model_len)
        self._requests[request.request_id] = state
        self._inbox.append(_Message("add", state))

    def abort(self, request_id: str, now_s: float) -> bool:
        """End a request, at the loop's next turn; False if there is none of this id any more."""
        state = self._requests.get(request_id)
        if state is None:
            return False
        self._tick(now_s)
        self._inbox.append(_Message("abort", state))
        return True

    def is_running(self, request_id: str) -> bool:
        """Whether a request is in the batch, with its KV."""
        state = self._requests.get(request_id)
        return state is not None and state.status is Status.RUNNING

    @property
    def keeps_kv(self) -> bool:
        """Whether KV of requests that have ended can be found again by their tokens."""
        return self.config.prefix_caching

    def release(self, request_id: str, now_s: float) -> bool:
        """The KV held for another engine was pulled; False if it is not held (any more).

        The worker reports it with the next step that it gets; the blocks are free when that step has been processed.
        """
        held = self._held.pop(request_id, None)
        if held is None:
            return False
        self._tick(now_s)
        self._read.append(held.state)
        return True

    def extend_lease(self, request_id: str, now_s: float) -> bool:
        """Another engine still means to pull; False if the KV is not held (any more).

        The lease then lasts two thirds of its length (in whole seconds, as vLLM counts) at least, from when the worker
        reads the message.
        """
        held = self._held.get(request_id)
        if held is None:
            return False
        self._tick(now_s)
        held.renewed = True
        if self._asleep is not None:
            self._renew_leases()
        return True

    def pull_ended(self, request_id: str, now_s: float, failed: bool = False) -> None:
        """The driver's own link finished a pull (only with `pull_setup_s` None)."""
        for state in self._pulling:
            if state.request_id == request_id:
                self._tick(now_s)
                state.pull_failed = failed
                self._pulling[state] = now_s
                return

    def slow(self, factor: float, now_s: float) -> None:
        """Steps composed from now on last `factor` times what the timer says; 1 ends it."""
        self._tick(now_s)
        self.config = replace(self.config, timer=slowed(self._timer, factor))

    def settle(self) -> None:
        """See `CoarseEngine.settle`; here every token has been told."""

    def next_event_s(self) -> float:
        """When `advance` has something to do; infinity while nothing is going on."""
        if self._inbox and self._blocked is None:
            return self._now_s
        if self._blocked is not None:
            return self._blocked.ends_s
        if self._asleep is not None:
            if self._read:
                return self._now_s
            return max(self._now_s, min(self._transfer_ends_s(), default=_NEVER))
        return _NEVER

    def advance(self, now_s: float) -> list[EngineEvent]:
        """Do all that is due until `now_s`, and say what happened, in order."""
        while (due_s := self.next_event_s()) <= now_s:
            self._now_s = max(self._now_s, due_s)
            self._turn()
        self._tick(now_s)
        events, self._events = self._events, []
        return events

    # -- what the driver may ask -------------------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output that one request may have."""
        return self.config.max_model_len

    @property
    def block_size(self) -> int:
        """Tokens of one KV block."""
        return self.config.block_size

    @property
    def preemptions(self) -> int:
        """Preemptions so far."""
        return self.scheduler.state.counters.preemptions

    def requests(self) -> list[str]:
        """Ids of the requests that have not ended, in order of arrival."""
        return list(self._requests)

    def marks(self, now_s: float, inclusive: bool) -> Iterable[tuple[float, str, int]]:
        """See `CoarseEngine.marks`; here every token is told as it comes."""
        return ()

    def kv_usage_ratio(self, now_s: float) -> float:
        """The gauge alone; see `load`."""
        return self.scheduler.state.kv.pool.usage_ratio

    def load(self, now_s: float | None = None) -> EngineLoad:
        """Requests and KV as the gauges show them; those not taken in yet count as waiting.

        `now_s` matters to a `CoarseEngine` only: it answers for that time without doing anything.
        """
        scheduler = self.scheduler.state
        kv_usage_ratio = scheduler.kv.pool.usage_ratio if now_s is None else self.kv_usage_ratio(now_s)
        running, waiting = len(scheduler.running), len(scheduler.waiting) + len(scheduler.skipped_waiting)
        if not (waiting or self._inbox):
            return EngineLoad(running, 0, 0, kv_usage_ratio, 0)
        new = [message.state for message in self._inbox if message.kind == "add"]
        deferred = sum(1 for state in scheduler.skipped_waiting if state.status is Status.PULLING)
        queued = sum(state.input_tokens for state in scheduler.waiting) + sum(state.input_tokens for state in new)
        return EngineLoad(running, waiting + len(new), deferred, kv_usage_ratio, queued)

    def transfer_stages(self) -> dict[str, int]:
        """Waiting requests by how far their pull is, as vLLM's num_requests_kv_fetch_by_stage names it."""
        pulling = [
            state.pull_reported for state in self.scheduler.state.skipped_waiting if state.status is Status.PULLING
        ]
        return {
            "waiting_to_start": sum(not state.pull_tried for state in self.scheduler.state.waiting),
            "in_progress": pulling.count(False),
            "completed_waiting": pulling.count(True),
        }

    def holds_kv(self) -> bool:
        """Whether finished prefills wait to be pulled."""
        return bool(self._held)

    def stats(self, request_id: str) -> RequestStats | None:
        """A request's life so far; None once it has ended."""
        state = self._requests.get(request_id)
        return None if state is None else state.stats()

    def check_blocks(self) -> None:
        """Raise AssertionError where a KV block is lost or shared wrongly."""
        self.scheduler.state.kv.pool.check(self.scheduler.state.held_blocks())

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """One stretch of the loop, until it has to wait for time or for news."""
        if self._blocked is not None:
            batch, self._blocked = self._blocked, None
            self._process(batch)
        elif self._asleep is not None:
            batch, self._asleep = self._asleep, None
            self._dispatched(batch)
        else:
            self._take_in()
        while self._blocked is None and self._asleep is None:
            self._take_in()
            if not self._compose():
                return

    def _compose(self) -> bool:
        """Compose a step, or go on waiting for the oldest; False when there is nothing to do at all."""
        if not self.scheduler.state.has_requests():
            if not self._queue:
                return False
            self._await_oldest()
            return True
        batch = self._steps.schedule(self._now_s)
        for state in batch.pulls:
            self._begin_pull(state)
        for state in batch.needless_pulls:
            self._events.append(PullStarted(self._now_s, state.request_id, 0))
        if batch.tokens:
            self._start(batch)
        elif self._must_sleep(batch):
            self._asleep = batch
            return True
        self._dispatched(batch)
        return True

    def _must_sleep(self, empty: Batch) -> bool:
        """Whether an empty step stays empty until a pull ends or news come.

        Not after a preemption: it left blocks and a place that the next step can give to others.
        """
        if self._gpu_free_s > self._now_s:
            return False
        if self.config.jump_idle_steps and self._pulling:
            return True
        pending = any(batch.ended_pulls or batch.ended_sends or batch.tokens for batch in self._queue)
        due = bool(self._read) or any(end_s <= self._now_s for end_s in self._transfer_ends_s())
        return not (pending or due or empty.preempted) and self.scheduler.state.has_requests()

    def _start(self, batch: Batch) -> None:
        """Give a composed step its place on the accelerator and its duration."""
        batch.starts_s = max(self._now_s, self._gpu_free_s)
        lasts_s = self.config.timer.step_s(
            batch.tokens, batch.decode_context_tokens, batch.prefill_pairs, batch.decodes
        )
        batch.ends_s = batch.starts_s + lasts_s + self.scheduler.policy.take_swap_s()
        self._gpu_free_s = batch.ends_s
        if self._on_step is not None:
            self._on_step(self._now_s, batch)

    def _dispatched(self, batch: Batch) -> None:
        """The worker has the step: it reports the transfers that have ended by now, with the step's output."""
        batch.ended_pulls = [state for state, end_s in self._pulling.items() if end_s <= self._now_s]
        for state in batch.ended_pulls:
            del self._pulling[state]
        if self._held or self._read:
            batch.ended_sends = self._ended_sends()
        batch.ends_s = max(batch.ends_s, self._now_s) if batch.tokens else self._now_s
        self._queue.append(batch)
        if len(self._queue) >= self._depth or not (batch.tokens or self.scheduler.state.has_requests()):
            self._await_oldest()

    def _await_oldest(self) -> None:
        batch = self._queue.popleft()
        if batch.ends_s > self._now_s:
            self._blocked = batch
        else:
            self._process(batch)

    def _process(self, batch: Batch) -> None:
        """Aborts first, then the step's tokens, then the transfers it reported."""
        for message in self._inbox:
            if message.kind == "abort":
                self._abort(message.state)
        output = self._steps.update_from_output(batch, self._now_s)
        if output.tokens or (batch.tokens and self._tells_every_step):
            self._events.append(StepEnded(self._now_s, output.tokens, batch.tokens))
        for state, reason in output.finished:
            self._finish(state, reason)
        self._process_pulls(batch)

    def _process_pulls(self, batch: Batch) -> None:
        failed = [state for state in batch.ended_pulls if state.pull_failed and not self.config.recompute_failed_pulls]
        self.scheduler.transfers.finished_receiving(batch.ended_pulls)
        for state in failed:
            if state.status is not Status.FINISHED:
                self._steps.abort(state)
                self._finish(state, FinishReason.ERROR)
        self.scheduler.transfers.finished_sending(batch.ended_sends)

    def _take_in(self) -> None:
        """Everything that was told since the last turn, in order."""
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            match message.kind:
                case "add":
                    self.scheduler.add_request(message.state)
                case "abort":
                    self._abort(message.state)

    def _abort(self, state: RequestState) -> None:
        if state.status is Status.FINISHED:
            return
        if any(message.state is state and message.kind == "add" for message in self._inbox):
            return  # taken in first, aborted right after
        self._steps.abort(state)
        self._finish(state, FinishReason.ABORT)

    # -- ends, pulls, leases -----------------------------------------------------------------------------------------

    def _finish(self, state: RequestState, reason: FinishReason) -> None:
        request_id = state.request_id
        del self._requests[request_id]
        hand_off = None
        if state.spec.hold and reason in (FinishReason.LENGTH, FinishReason.STOP):
            expires_at_s = self._now_s + self.config.lease_s
            self._held[request_id] = _Held(state, expires_at_s)
            computed = state.computed  # the last token has no KV yet, but where a step too many is under way
            blocks = tuple(state.blocks[: self.scheduler.state.kv.pool.blocks_for(computed)])
            hand_off = HandOff(blocks, computed, expires_at_s, _ends_of(state))
        self._events.append(Finished(self._now_s, request_id, reason, state.stats(), hand_off))

    def _begin_pull(self, state: RequestState) -> None:
        setup_s = self.config.pull_setup_s
        lasts_s = _NEVER if setup_s is None else setup_s + state.pulled_tokens * self.config.pull_s_per_token
        self._pulling[state] = self._now_s + lasts_s
        local = state.computed - state.pulled_tokens
        self._events.append(PullStarted(self._now_s, state.request_id, state.pulled_tokens, local))

    def _transfer_ends_s(self) -> Iterator[float]:
        """When pulls and leases end, as far as that is known."""
        yield from self._pulling.values()
        for held in self._held.values():
            yield held.expires_at_s

    def _renew_leases(self) -> None:
        for held in self._held.values():
            if held.renewed:
                held.renewed = False
                held.expires_at_s = max(held.expires_at_s, self._now_s + self.config.lease_s * 2 // 3)

    def _ended_sends(self) -> list[RequestState]:
        """KV that needs no longer be held: first what was read, then what nobody read in time."""
        self._renew_leases()
        expired = [request_id for request_id, held in self._held.items() if held.expires_at_s <= self._now_s]
        self.expired_leases += len(expired)
        ended = self._read + [self._held.pop(request_id).state for request_id in expired]
        self._read = []
        return ended

    def _tick(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"now_s: the clock went back from {self._now_s!r} to {now_s!r}")
        if self._blocked is None:
            self._now_s = now_s

    def _check(self, request: EngineRequest) -> None:
        if request.request_id in self._requests or request.request_id in self._held:
            raise ValueError(f"request_id: {request.request_id!r} is in use")
        if request.input_tokens < 1:
            raise ValueError(f"input_tokens: must be 1 or more, not {request.input_tokens!r}")
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens: must be 1 or more, not {request.max_tokens!r}")
        if request.input_tokens >= self.config.max_model_len:
            raise ValueError(
                f"input_tokens: {request.input_tokens} leave no room for output within max_model_len "
                f"{self.config.max_model_len}"
            )
        if request.pull_tokens is not None and not 1 <= request.pull_tokens <= request.input_tokens:
            raise ValueError(
                f"pull_tokens: must lie in 1..{request.input_tokens}, the prompt, not {request.pull_tokens!r}"
            )
        if request.pull and not self.config.pulls_kv:
            raise ValueError("pull: this engine has no pull connector on the consuming side (kv_role kv_consumer)")


def _ends_of(state: RequestState) -> tuple[tuple[float, int], ...]:
    return tuple((batch.ends_s, tokens) for batch, tokens in state.prefill_steps or ())
