"""The run's own time, in seconds."""


class Clock:
    """`now_s` is the engine loop's time; `busy_until_s` is when the accelerator is done with what it was given."""

    def __init__(self) -> None:
        """At zero."""
        self.now_s = 0.0
        self.busy_until_s = 0.0

    def wait_until(self, at_s: float) -> None:
        """Time never goes back."""
        self.now_s = max(self.now_s, at_s)

    def perf_counter(self) -> float:
        """What vLLM's modules see in place of `time.perf_counter`."""
        return self.now_s
