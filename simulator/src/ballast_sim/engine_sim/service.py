"""The engine on a wall clock: each event is passed to its request's sink when it is due.

The engine's own clock is (wall - start) / time_scale, so that a scale of 2 makes everything twice as slow. Timers may
fire late; the engine still computes with the times at which things were due, so lateness never adds up.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

from ballast_sim.engine import Engine, EngineConfig, EngineEvent, EngineRequest, Finished, PullStarted, StepEnded


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Where time comes from: an event loop, or a test's virtual clock."""

    def time(self) -> float: ...
    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer: ...


class LoopClock:
    """An event loop's timers on the monotonic clock.

    uvloop's own time and timers count whole milliseconds, and a timer may fire early; these are rounded up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` is the running one."""
        self._loop = loop

    def time(self) -> float:
        """Seconds."""
        return time.monotonic()

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Call back at `when_s` or up to a millisecond later."""
        delay_s = max(0.0, when_s - time.monotonic())
        return self._loop.call_later(math.ceil(delay_s * 1e3) / 1e3, callback)


class Sink(Protocol):
    """The receiver of a request's tokens. Times are the engine's."""

    def token(self, at_s: float) -> None: ...
    def pull_started(self, event: PullStarted) -> None: ...
    def finished(self, event: Finished) -> None: ...


class EngineService:
    """Owns one engine; every call first brings it up to now."""

    def __init__(
        self,
        config: EngineConfig,
        clock: Clock,
        time_scale: float = 1.0,
        observe: Callable[[EngineEvent], None] | None = None,
    ) -> None:
        """`observe` gets every event after its sink."""
        self.engine = Engine(config)
        self.sinks: dict[str, Sink] = {}
        self._clock = clock
        self._time_scale = time_scale
        self._observe = observe
        self._start_s = clock.time()
        self._timer: Timer | None = None
        self._due_s = math.inf
        self._pumping = False

    def now_s(self) -> float:
        """The engine's time."""
        return (self._clock.time() - self._start_s) / self._time_scale

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Add a request. Raises ValueError naming the field of one that can never run."""
        self.pump()
        self.engine.add(request, self.now_s())
        self.sinks[request.request_id] = sink
        self.pump()

    def abort(self, request_id: str) -> None:
        """End a request. Its sink gets no more tokens, only the end."""
        self.pump()
        if self.engine.abort(request_id, self.now_s()):
            self.pump()

    def release(self, request_id: str) -> bool:
        """See `Engine.release`."""
        self.pump()
        found = self.engine.release(request_id, self.now_s())
        self.pump()
        return found

    def extend_lease(self, request_id: str) -> bool:
        """See `Engine.extend_lease`."""
        self.pump()
        return self.engine.extend_lease(request_id, self.now_s())

    def pull_ended(self, request_id: str, failed: bool) -> None:
        """See `Engine.pull_ended`."""
        self.pump()
        self.engine.pull_ended(request_id, self.now_s(), failed)
        self.pump()

    def reset_prefix_cache(self) -> bool:
        """See `Engine.reset_prefix_cache`."""
        self.pump()
        return self.engine.reset_prefix_cache()

    def call_at_engine(self, at_s: float, callback: Callable[[], None]) -> Timer:
        """Call back at an engine time."""
        return self._clock.call_at(self._start_s + at_s * self._time_scale, callback)

    def wall_s(self, engine_s: float) -> float:
        """A span of the engine's time on the wall clock."""
        return engine_s * self._time_scale

    def pump(self) -> None:
        """Pass all events that are due to their sinks, and set the timer for the next one."""
        if self._pumping:
            return
        self._pumping = True
        try:
            for event in self.engine.advance(self.now_s()):
                self._dispatch(event)
        finally:
            self._pumping = False
        due_s = self.engine.next_event_s()
        if due_s == self._due_s and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        self._timer = None if due_s == math.inf else self.call_at_engine(due_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.pump()

    def _dispatch(self, event: EngineEvent) -> None:
        sinks = self.sinks
        match event:
            case StepEnded():
                at_s = event.at_s
                for request_id in event.tokens:
                    sinks[request_id].token(at_s)
            case Finished():
                sinks.pop(event.request_id).finished(event)
            case PullStarted():
                sinks[event.request_id].pull_started(event)
        if self._observe is not None:
            self._observe(event)

    def close(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
