"""Runs candidates and chooses: layouts under the default policy first, then policies on the best layouts.

The rule: the highest attainment, to within `SAME_ATTAINMENT`; among those, whichever is within `SAME_RATIO` of the best
P99 against the SLO and has the fewest parts, the default's before others. So a migration, a queue or another placement
is recommended only where it shows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ballast_sim.capacity import LengthStatistics
from ballast_sim.recommend.budget import Hardware
from ballast_sim.recommend.layouts import Layout, layouts
from ballast_sim.recommend.variants import Variant, default_variant, variants
from ballast_sim.settings import SettingError
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import PolicyChoice
from ballast_sim.simulation.runs.experiment import Outcome, RunSpec, Setup
from ballast_sim.simulation.runs.pool import run_all

LAYOUTS_TRIED = 4
LAYOUTS_KEPT = 2
SAME_ATTAINMENT = 0.002
SAME_RATIO = 1.02
GROWTHS = (1.25, 1.5, 2.0)
"""Multiples of the traffic at which the answer is tried, to find its headroom."""

Report = Callable[[str, int, int], None]
"""(what is under way, runs done, runs in all)."""


class Stopped(Exception):
    """The search was interrupted."""


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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout under a policy, and the figures of its runs, one for each seed."""

    layout: Layout
    variant: Variant
    outcomes: tuple[dict[str, Any], ...]

    @property
    def shape(self) -> str:
        """As `ballast simulate --endpoints` takes it."""
        return self.layout.flexible_shape if self.variant.flexible else self.layout.shape

    def mean(self, *path: str) -> float:
        """Mean over seeds of one figure; nan where a run has none."""
        values = []
        for figures in self.outcomes:
            value: Any = figures
            for name in path:
                value = value[name]
            values.append(float("nan") if value is None else float(value))
        return sum(values) / len(values)

    @property
    def attainment(self) -> float:
        """Share of requests within the SLO."""
        return self.mean("attainment")

    def strain(self, objective: Objective) -> float:
        """The worst P99 against its threshold: 1 meets it exactly."""
        limits = (("ttft_s", objective.ttft_s), ("tpot_s", objective.tpot_s), ("e2e_s", objective.e2e_s))
        return max(self.mean(name, "p99") / limit for name, limit in limits if limit is not None)


@dataclass(frozen=True, slots=True)
class Answer:
    """The best candidate, all that was tried in order of preference, and how far the best one reaches."""

    question: Question
    rate_rps: float
    lengths: LengthStatistics
    shares_prefixes: bool
    candidates: tuple[Candidate, ...]
    growth: tuple[tuple[float, float], ...]
    """(multiple of the traffic, attainment)."""

    @property
    def best(self) -> Candidate:
        """What is recommended."""
        return self.candidates[0]

    @property
    def meets(self) -> bool:
        """Whether it reaches the attainment asked for."""
        return self.best.attainment >= self.question.attainment


def search(question: Question, jobs: int, stop: threading.Event, report: Report) -> Answer:
    """Raises what runs raise, `Stopped`, and ValueError for traffic without a rate."""
    load = question.source.load(question.seeds[0], question.rate_scale)
    if load.rate_rps is None:
        raise SettingError(
            ("trace", "workload"), "its requests arrive at one instant and have no rate; take more of them"
        )
    lengths = LengthStatistics.of(load.requests)
    shared = _shares_prefixes(load.requests)
    every = layouts(question.hardware, lengths, load.rate_rps, question.objective.tpot_s)
    runner = _Runner(question, jobs, stop, report)
    split, together = every[:-1], every[-1]
    first = runner.run("layouts", [(layout, default_variant()) for layout in [*split[:LAYOUTS_TRIED], together]])
    kept = ranked(first, question.objective)[:LAYOUTS_KEPT]
    rest = [
        (candidate.layout, variant)
        for candidate in kept
        for variant in variants(candidate.layout, shares_prefixes=shared)
        if variant.name != candidate.variant.name
    ]
    tried = ranked([*first, *runner.run("policies", rest)], question.objective)
    growth = runner.growth(tried[0])
    return Answer(question, load.rate_rps, lengths, shared, tuple(tried), growth)


def ranked(candidates: Sequence[Candidate], objective: Objective) -> list[Candidate]:
    """In order of preference: the first by the module's rule, the others by attainment and strain.

    The first is a policy that gateways can carry out.
    """
    order = sorted(candidates, key=lambda each: (-round(each.attainment, 4), each.strain(objective), each.shape))
    able = [each for each in order if not each.variant.obstacle]
    top = able[0]
    same = [
        each
        for each in able
        if each.attainment >= top.attainment - SAME_ATTAINMENT
        and each.strain(objective) <= SAME_RATIO * min(top.strain(objective), 1e9)
    ]
    best = min(same, key=lambda each: (each.variant.extras, each.variant.name != "default", order.index(each)))
    return [best, *(each for each in order if each is not best)]


class _Runner:
    def __init__(self, question: Question, jobs: int, stop: threading.Event, report: Report) -> None:
        self._question, self._jobs, self._stop, self._report = question, jobs, stop, report

    def run(self, what: str, wanted: Sequence[tuple[Layout, Variant]]) -> list[Candidate]:
        """Every pair with every seed."""
        specs = [self._spec(layout, variant, seed, 1.0) for layout, variant in wanted for seed in self._question.seeds]
        figures = self._figures(what, specs)
        seeds = len(self._question.seeds)
        return [
            Candidate(layout, variant, tuple(figures[k * seeds : (k + 1) * seeds]))
            for k, (layout, variant) in enumerate(wanted)
        ]

    def growth(self, best: Candidate) -> tuple[tuple[float, float], ...]:
        """Attainment of the best at more traffic."""
        specs = [self._spec(best.layout, best.variant, self._question.seeds[0], growth) for growth in GROWTHS]
        figures = self._figures("headroom", specs)
        return tuple((growth, float(each["attainment"])) for growth, each in zip(GROWTHS, figures, strict=True))

    def _figures(self, what: str, specs: Sequence[RunSpec]) -> list[dict[str, Any]]:
        done: set[int] = set()

        def on_progress(index: int, share: float) -> None:
            if share == 1.0:
                done.add(index)
                self._report(what, len(done), len(specs))

        self._report(what, 0, len(specs))
        outcomes: list[Outcome | None] = run_all(specs, self._jobs, self._stop, on_progress)
        if self._stop.is_set():
            raise Stopped
        return [dict(outcome.figures) for outcome in outcomes if outcome is not None]

    def _spec(self, layout: Layout, variant: Variant, seed: int, growth: float) -> RunSpec:
        question = self._question
        shape = layout.flexible_shape if variant.flexible else layout.shape
        profiles = {each.profile.name: each.profile for each in question.hardware}
        setup = Setup(
            machines=parse_shape(shape, None, profiles),
            shape=shape,
            source=question.source,
            objective=question.objective,
            fleet=replace(FleetSettings(known_limits=False), max_tokens=question.max_tokens),
        )
        return RunSpec(
            setup=setup,
            policy=PolicyChoice(variant.name, variant.spec.build()),
            seed=seed,
            rate_scale=question.rate_scale * growth,
        )


def _shares_prefixes(requests: Sequence[Any]) -> bool:
    """Whether at least a twentieth of the prompts begin as another one does."""
    seen: set[int] = set()
    again = 0
    for request in requests:
        if request.hash_ids:
            again += request.hash_ids[0] in seen
            seen.add(request.hash_ids[0])
    return again >= len(requests) / 20
