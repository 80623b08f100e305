"""What is asked: traffic, hardware, objective."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_sim.recommend.budget import Hardware
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.source import WorkloadSource


@dataclass(frozen=True, slots=True)
class Question:
    """The traffic, the hardware and the objective."""

    source: WorkloadSource
    hardware: tuple[Hardware, ...]
    objective: Objective
    attainment: float
    rate_scale: float = 1.0
    seeds: tuple[int, ...] = (0, 1)
    max_tokens: int | None = None
    full_length: bool = False
    """Whether no candidate is dropped after a shorter run."""
