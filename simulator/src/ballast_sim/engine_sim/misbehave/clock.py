"""A clock that can be stopped, and an engine with it."""

from collections.abc import Callable

from ballast_sim.engine_sim.service import Clock, Timer


class _Call:
    """A call that is due at a time of the stoppable clock."""

    def __init__(self, clock: "StoppableClock", when_s: float, callback: Callable[[], None]) -> None:
        self.when_s = when_s
        self.timer: Timer | None = None
        self._clock = clock
        self._callback = callback

    def cancel(self) -> None:
        """See `Timer`."""
        self._clock.drop(self)

    def run(self) -> None:
        self._clock.drop(self)
        self._callback()


class StoppableClock:
    """Another clock's time, less the time for which this one stood still."""

    def __init__(self, clock: Clock) -> None:
        """It runs."""
        self._clock = clock
        self._behind_s = 0.0
        self._stopped_s: float | None = None
        self._calls: set[_Call] = set()

    @property
    def stopped(self) -> bool:
        """Whether it stands still."""
        return self._stopped_s is not None

    def time(self) -> float:
        """Seconds."""
        return self._clock.time() - self._behind_s if self._stopped_s is None else self._stopped_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """See `Clock`. While the clock stands still nothing is due."""
        call = _Call(self, when_s, callback)
        self._calls.add(call)
        if self._stopped_s is None:
            self._arm(call)
        return call

    def _arm(self, call: _Call) -> None:
        call.timer = self._clock.call_at(call.when_s + self._behind_s, call.run)

    def drop(self, call: _Call) -> None:
        """The call is over or not wanted."""
        self._calls.discard(call)
        if call.timer is not None:
            call.timer.cancel()

    def stop(self) -> None:
        """Stand still."""
        if self._stopped_s is not None:
            return
        self._stopped_s = self.time()
        for call in self._calls:
            if call.timer is not None:
                call.timer.cancel()

    def go_on(self) -> None:
        """Run again, from the time at which it stopped."""
        if self._stopped_s is None:
            return
        self._behind_s = self._clock.time() - self._stopped_s
        self._stopped_s = None
        for call in self._calls:
            self._arm(call)
