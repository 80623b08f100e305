"""Which request is admitted first and which is preempted: the protocol, and vLLM's own two policies.

A queue order of a paper implements the same protocol (`papers.ranked`).
"""

from collections.abc import Iterable
from typing import Protocol

from ballast_sim.engine.requests import RequestState
from ballast_sim.engine.vllm.batch import Composition
from ballast_sim.engine.vllm.state import SchedulerState


class SchedulingPolicy(Protocol):
    """The scheduler's decisions that depend on an order of requests, and the changes that the order follows."""

    def arrived(self, request: RequestState) -> None:
        """Called before a new request enters the waiting queue."""
        ...

    def before_step(self, step: Composition) -> list[RequestState]:
        """Running requests to preempt for waiting ones before the step is composed; may fill `step.yielding`."""
        ...

    def after_waiting(self, step: Composition) -> None:
        """Called when running and waiting requests have been scheduled; may schedule those that yielded."""
        ...

    def victim(self) -> RequestState:
        """The running request to preempt when KV runs out. At least one request is running."""
        ...

    def preempted(self, request: RequestState) -> None:
        """Set `computed` of a request that was preempted. Called before it enters the waiting queue."""
        ...

    def restored(self, request: RequestState) -> None:
        """Called when a request is admitted whose computed tokens lie outside the KV cache."""
        ...

    def admitted(self, request: RequestState) -> None:
        """Called when a request enters the running list, for the first time or again."""
        ...

    def finished(self, requests: Iterable[RequestState], now_s: float) -> None:
        """Called with the requests that a step finished."""
        ...

    def take_swap_s(self) -> float:
        """Seconds by which the step just composed is longer because KV is copied; counted once."""
        ...

    def steps_without_preemption(self, most: int) -> int:
        """How many more steps `before_step` preempts nothing if only running decodes advance; at most `most`."""
        ...


class _VllmPolicy:
    """What vLLM's two policies have in common: a waiting request never preempts a running one."""

    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        """`state`: the scheduler's."""
        self._state = state

    def arrived(self, request: RequestState) -> None:
        """Nothing to do."""

    def before_step(self, step: Composition) -> list[RequestState]:
        """None."""
        return []

    def after_waiting(self, step: Composition) -> None:
        """Nothing to do."""

    def preempted(self, request: RequestState) -> None:
        """Its KV is lost and computed again."""
        request.computed = 0

    def restored(self, request: RequestState) -> None:
        """Never called: a preempted request has no computed tokens."""

    def admitted(self, request: RequestState) -> None:
        """Nothing to do."""

    def finished(self, requests: Iterable[RequestState], now_s: float) -> None:
        """Nothing to learn."""

    def take_swap_s(self) -> float:
        """No KV is copied."""
        return 0.0

    def steps_without_preemption(self, most: int) -> int:
        """All of them."""
        return most


class Fcfs(_VllmPolicy):
    """First come, first served: the newest running request is preempted."""

    __slots__ = ()

    def victim(self) -> RequestState:
        """The last of the running list."""
        return self._state.running[-1]


class Priority(_VllmPolicy):
    """By the request's priority, then by arrival."""

    __slots__ = ()

    def victim(self) -> RequestState:
        """The running request with the largest (priority, arrival)."""
        return max(self._state.running, key=lambda request: request.key[:2])
