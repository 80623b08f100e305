"""Runs candidates on the traffic, or on a stretch of it. Nothing is simulated twice."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ballast_sim.physics import VLLM
from ballast_sim.recommend.candidates import Candidate, Figures, shape_of
from ballast_sim.recommend.layouts import Layout
from ballast_sim.recommend.question import Question
from ballast_sim.recommend.stretch import Longer, Span, Stretch
from ballast_sim.recommend.variants import Variant
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.shapes import Machine, parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import PolicyChoice
from ballast_sim.simulation.runs.experiment import RunSpec, Setup
from ballast_sim.simulation.runs.pool import Pool
from ballast_sim.workloads import WorkloadRequest

Report: TypeAlias = Callable[[str, int, int], None]
"""(what is under way, runs done, runs in all)."""

Pair: TypeAlias = tuple[Layout, Variant]


class Stopped(Exception):
    """The search was interrupted."""


@dataclass(frozen=True, slots=True)
class Run:
    """What tells one run from another within a search."""

    shape: str
    policy: str
    seed: int
    growth: float = 1.0
    """Multiple of the traffic."""
    stretch: Span | None = None
    """None is the whole traffic."""


class Runner:
    """The runs of one search."""

    def __init__(self, question: Question, pool: Pool, stop: threading.Event, report: Report) -> None:
        self._question, self._pool, self._stop, self._report = question, pool, stop, report
        self._known: dict[Run, Figures] = {}
        self._alike = _alike(question)

    @property
    def runs(self) -> int:
        """Runs so far."""
        return len(self._known)

    @property
    def requests(self) -> int:
        """Requests simulated so far."""
        return sum(int(figures["requests"]) for figures in self._known.values())

    def on_stretch(self, what: str, pairs: Sequence[Pair], stretch: Span) -> list[Candidate]:
        """Every pair on a stretch of the traffic, with the first seed."""
        return self._candidates(what, pairs, self._question.seeds[:1], stretch=stretch)

    def on_all(self, what: str, pairs: Sequence[Pair]) -> list[Candidate]:
        """Every pair on the whole traffic, with every seed."""
        return self._candidates(what, pairs, self._question.seeds)

    def grown(self, what: str, pair: Pair, growths: Sequence[float]) -> list[float]:
        """The attainment of a pair at multiples of the traffic, with the first seed.

        The runs last as long as that of the traffic itself: in a shorter one decode endpoints would not fill up.
        """
        seed = self._question.seeds[0]
        asked = [(Run(shape_of(*pair), pair[1].name, seed, growth), pair[1]) for growth in growths]
        return [float(figures["attainment"]) for figures in self._figures(what, asked)]

    def _candidates(
        self, what: str, pairs: Sequence[Pair], seeds: Sequence[int], *, stretch: Span | None = None
    ) -> list[Candidate]:
        asked = [
            (Run(shape_of(layout, variant), variant.name, seed, stretch=stretch), variant)
            for layout, variant in pairs
            for seed in seeds
        ]
        figures = self._figures(what, asked)
        return [Candidate(*pair, tuple(figures[k * len(seeds) : (k + 1) * len(seeds)])) for k, pair in enumerate(pairs)]

    def _figures(self, what: str, asked: Sequence[tuple[Run, Variant]]) -> list[Figures]:
        alike = {run: replace(run, seed=self._alike[run.seed]) for run, _ in asked}
        missing = {alike[run]: variant for run, variant in asked if alike[run] not in self._known}
        order = sorted(missing, key=self._expected_s, reverse=True)  # so that no core waits for a long one at the end
        done: set[int] = set()

        def on_progress(index: int, share: float) -> None:
            if share == 1.0:
                done.add(index)
                self._report(what, len(done), len(order))

        if order:
            self._report(what, 0, len(order))
        outcomes = self._pool.run([self._spec(run, missing[run]) for run in order], self._stop, on_progress)
        if self._stop.is_set():
            raise Stopped
        self._known.update((run, outcome.figures) for run, outcome in zip(order, outcomes, strict=True) if outcome)
        return [
            self._known[run] if run in self._known else {**self._known[alike[run]], "seed": run.seed}
            for run, _ in asked
        ]

    def _expected_s(self, run: Run) -> float:
        """The time of the longest run of the same candidate, else of the same fleet; infinity where there is none."""
        fleet = {other: float(each["sim_wall_s"]) for other, each in self._known.items() if other.shape == run.shape}
        same = [seconds for other, seconds in fleet.items() if other.policy == run.policy]
        return max(same or fleet.values(), default=math.inf)

    def _spec(self, run: Run, variant: Variant) -> RunSpec:
        question = self._question
        machines = parse_shape(run.shape, None, {each.profile.name: each.profile for each in question.hardware})
        setup = Setup(
            machines=machines,
            shape=run.shape,
            source=_part(question.source, run, machines),
            objective=question.objective,
            fleet=replace(FleetSettings(known_limits=False), max_tokens=question.max_tokens),
        )
        return RunSpec(
            setup=setup,
            policy=PolicyChoice(variant.name, variant.spec.build()),
            seed=run.seed,
            rate_scale=question.rate_scale * run.growth,
        )


def _part(source: WorkloadSource, run: Run, machines: Sequence[Machine]) -> WorkloadSource:
    """What of the traffic a run takes."""
    if run.stretch is not None:
        return Stretch.of(source, run.stretch)
    if run.growth == 1:
        return source
    return Longer.of(source, run.growth, min(VLLM.max_model_len(machine.profile) for machine in machines))


def _alike(question: Question) -> dict[int, int]:
    """For each seed the first one that brings the same requests: one gateway draws nothing else, so runs are the same.

    A trace brings the same requests with every seed unless its stamps are coarse, as Mooncake's are.
    """
    firsts: list[tuple[int, Sequence[WorkloadRequest]]] = []
    alike: dict[int, int] = {}
    for seed in question.seeds:
        requests = question.source.load(seed, question.rate_scale).requests
        alike[seed] = next((first for first, known in firsts if known == requests), seed)
        if alike[seed] == seed:
            firsts.append((seed, requests))
    return alike
