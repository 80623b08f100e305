"""One engine on its machine: woken when it has work, caught up before anything else touches it, down after a crash."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from ballast_core.model import Observation
from ballast_sim.engine import EngineEvent, RequestStats
from ballast_sim.physics import EngineModel
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.world.clock import ENGINE_PRIORITY, Clock

OnEvent: TypeAlias = "Callable[[Server, EngineEvent], None]"


class Server:
    """An engine, whether it is up, and its wake-ups.

    What was read of the engine is kept until `catch_up`, with which every call that changes it begins or ends.
    """

    __slots__ = (
        "_clock",
        "_counts",
        "_lost_preemptions",
        "_make_engine",
        "_on_event",
        "_slowdown",
        "_wakes_at_s",
        "engine",
        "machine",
        "silent_until_s",
        "up",
    )

    def __init__(
        self, machine: Machine, make_engine: Callable[[Machine], EngineModel], clock: Clock, on_event: OnEvent
    ) -> None:
        """`on_event` gets every event of the engine; `make_engine` is called again after each crash."""
        self.machine = machine
        self.engine = make_engine(machine)
        self.up = True
        self._make_engine = make_engine
        self._clock = clock
        self._on_event = on_event
        self._wakes_at_s = math.inf
        self._slowdown = 1.0
        self._lost_preemptions = 0
        self._counts: tuple[int, int] | None = None
        self.silent_until_s = 0.0
        """Before this time `marks` returns nothing."""

    # --- what can be seen -----------------------------------------------------------------------------------------

    @property
    def preemptions(self) -> int:
        """So far, those of engines that crashed included."""
        return self._lost_preemptions + self.engine.preemptions

    def kv_tokens_used(self, now_s: float) -> float:
        """KV tokens in use."""
        return self.engine.kv_usage_ratio(now_s) * self.machine.profile.kv_tokens

    def observation(self, now_s: float) -> Observation | None:
        """What a scrape would find now; None while the engine is down."""
        if not self.up:
            return None
        running, waiting, _, kv_usage_ratio = self.engine.load(now_s)
        return Observation(now_s, running, waiting, kv_usage_ratio, self.engine.preemptions)

    def counts(self, now_s: float) -> tuple[int, int]:
        """The requests that run and that wait."""
        if self._counts is None:
            load = self.engine.load(now_s)
            self._counts = load.running, load.waiting
        return self._counts

    def kv_usage_ratio(self, now_s: float) -> float:
        """Share of its KV in use, as its gauge shows it: 1 at most."""
        return min(1.0, self.engine.kv_usage_ratio(now_s))

    def marks(self, now_s: float, inclusive: bool) -> Iterable[tuple[float, str, int]]:
        """See `EngineModel.marks`."""
        engine = self.engine
        found = engine.marks(now_s, inclusive)
        self.silent_until_s = engine.silent_until_s
        return found

    # --- clockwork ------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Pass on what ended by now. It comes before whatever happens now, even if another event wakes the engine."""
        self._counts, self.silent_until_s = None, 0.0
        for event in self.engine.advance(self._clock.now_s):
            self._on_event(self, event)

    def run(self) -> None:
        """Do what is due, and wake up for what comes next."""
        self.catch_up()
        due_s = self.engine.next_event_s()
        if due_s < self._wakes_at_s:
            due_s = max(due_s, self._clock.now_s)
            self._wakes_at_s = due_s
            self._clock.at(due_s, lambda: self._woken(due_s), ENGINE_PRIORITY)

    def _woken(self, due_s: float) -> None:
        if self._wakes_at_s == due_s:  # else a nearer wake-up replaced it
            self._wakes_at_s = math.inf
            self.run()

    def settle(self) -> None:
        """Pass on every token so far, those of steady decodes included."""
        self.catch_up()
        self.engine.settle()
        self.catch_up()

    # --- failures -------------------------------------------------------------------------------------------------

    def crash(self) -> list[tuple[str, RequestStats]]:
        """The engine dies with its KV. Returns its requests by id, each with how far it had come."""
        self.settle()
        dying = self.engine
        lost = [(request_id, stats) for request_id in dying.requests() if (stats := dying.stats(request_id))]
        self._lost_preemptions += dying.preemptions
        self.engine = self._make_engine(self.machine)
        self.up, self._wakes_at_s = False, math.inf
        self._counts, self.silent_until_s = None, 0.0
        return lost

    def restart(self) -> None:
        """Up again after a crash, empty, and as slow as before."""
        self.up = True
        self.engine.slow(self._slowdown, self._clock.now_s)

    def slow(self, factor: float) -> None:
        """From now on work takes `factor` times as long; 1 ends it."""
        self._slowdown = factor
        if self.up:
            self.catch_up()
            self.engine.slow(factor, self._clock.now_s)
            self.run()
