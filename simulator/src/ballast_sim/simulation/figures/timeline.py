"""Load over time by endpoint, in a bounded number of samples."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_core.model import Observation
from ballast_sim.simulation.world.world import World

MAX_SAMPLES = 480


@dataclass(slots=True)
class Timeline:
    """Samples of every endpoint at common times. When there are too many, every other one is dropped."""

    endpoints: tuple[str, ...]
    kv_capacity_tokens: tuple[int, ...]
    every_s: float
    times_s: list[float] = field(default_factory=list)
    running: list[list[int]] = field(default_factory=list)
    waiting: list[list[int]] = field(default_factory=list)
    kv_usage_ratio: list[list[float]] = field(default_factory=list)
    """By time, then by endpoint."""

    @classmethod
    def of(cls, world: World, every_s: float) -> Timeline:
        """An empty one for these engines."""
        return cls(
            tuple(str(machine.endpoint.id) for machine in world.machines),
            tuple(machine.profile.kv_tokens for machine in world.machines),
            every_s,
        )

    def sample(self, world: World, now_s: float) -> None:
        """Add a sample of the engines' true state, unless the last one is too recent. An engine that is down
        has no load.
        """
        if self.times_s and now_s < self.times_s[-1] + self.every_s * 0.999:
            return
        down = Observation(observed_at_s=now_s, running=0, waiting=0)
        seen = [observation or down for _, observation in world.observe()]
        self.times_s.append(now_s)
        self.running.append([observation.running for observation in seen])
        self.waiting.append([observation.waiting for observation in seen])
        self.kv_usage_ratio.append([round(observation.kv_usage_ratio, 4) for observation in seen])
        if len(self.times_s) > MAX_SAMPLES:
            self.every_s *= 2
            for series in (self.times_s, self.running, self.waiting, self.kv_usage_ratio):
                del series[1::2]
