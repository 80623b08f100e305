"""Finds the best candidate with few long runs.

Layouts are shortlisted by arithmetic. These, under the default policy, and then policies on the best of them run on the
busiest stretch of the traffic. What that does not rule out (`halving`) runs on all of it with every seed, and among
those `candidates.ranked` chooses.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ballast_core.profiles.capacity import LengthStatistics
from ballast_sim.recommend.candidates import Candidate, ranked
from ballast_sim.recommend.halving import survivors
from ballast_sim.recommend.layouts import Layout, layouts, shortlist
from ballast_sim.recommend.question import Question
from ballast_sim.recommend.runner import Pair, Report, Runner
from ballast_sim.recommend.stretch import Span, busiest
from ballast_sim.recommend.variants import default_variant, variants
from ballast_sim.settings import SettingError
from ballast_sim.simulation.runs.pool import Pool, default_jobs
from ballast_sim.workloads import WorkloadRequest

LAYOUTS_KEPT = 2
"""Layouts on which policies are tried."""
GROWTHS = ((2.0, 1.5), (1.25,))
"""Multiples of the traffic at which the answer is tried, to find its headroom; the second only where it does not meet
the SLO at the lowest of the first."""
MOST_GROWTH = max(GROWTHS[0])


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that did not run on the whole traffic."""

    shape: str
    policy: str
    why: str
    tried: Candidate | None
    """Its figures on the stretch; None where arithmetic ruled it out."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What was simulated for an answer."""

    runs: int
    requests: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The best candidate, all that ran on the whole traffic in order of preference, and how far the best reaches."""

    question: Question
    rate_rps: float
    lengths: LengthStatistics
    shares_prefixes: bool
    requests: int
    """Of the whole traffic."""
    stretch: Span | None
    """Where candidates were dropped; None where all ran on the whole traffic."""
    candidates: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...]
    growth: tuple[tuple[float, float], ...]
    """(multiple of the traffic, attainment), rising; none where the best does not meet the SLO at its own traffic."""
    effort: Effort

    @property
    def best(self) -> Candidate:
        """What is recommended."""
        return self.candidates[0]

    @property
    def meets(self) -> bool:
        """Whether it reaches the attainment asked for."""
        return self.best.attainment >= self.question.attainment

    @property
    def reach(self) -> float | None:
        """The largest multiple of the traffic up to which it still does."""
        able = itertools.takewhile(lambda tried: tried[1] >= self.question.attainment, self.growth)
        return max((growth for growth, _ in able), default=None)


def search(question: Question, jobs: int, stop: threading.Event, report: Report) -> Answer:
    """Raises what runs raise, `Stopped`, and SettingError for traffic without a rate.

    The answer does not depend on `jobs`, of which no more are started than there are cores.
    """
    load = question.source.load(question.seeds[0], question.rate_scale)
    if load.rate_rps is None:
        raise SettingError(
            ("trace", "workload"), "its requests arrive at one instant and have no rate; take more of them"
        )
    lengths = LengthStatistics.of(load.requests)
    shared = shares_prefixes(load.requests)
    every = layouts(question.hardware, lengths, load.rate_rps, question.objective.tpot_s)
    listed, hopeless = shortlist(every)
    stretch = None if question.full_length else busiest(load.requests, question, lengths)
    with Pool(min(jobs, default_jobs())) as pool:
        runner = Runner(question, pool, stop, report)
        if stretch is None:
            tried, dropped = _tried(runner.on_all, question, listed, shares_prefixes=shared), list[Dropped]()
        else:
            part = f"on the busiest {stretch.count:,} of {len(load.requests):,} requests"
            first = _tried(
                lambda what, pairs: runner.on_stretch(f"{what} {part}", pairs, stretch),
                question,
                listed,
                shares_prefixes=shared,
            )
            going, reasons = survivors(first, stretch.count, question.objective)
            tried = runner.on_all("finalists", [(each.layout, each.variant) for each in going])
            dropped = [
                Dropped(each.shape, each.variant.name, reasons[each.label], each)
                for each in ranked(first, question.objective)
                if each.label in reasons
            ]
        order = ranked(tried, question.objective, question.attainment)
        growth = _growth(runner, question, order[0])
    never = [Dropped(each.shape, default_variant().name, _below(each), None) for each in hopeless]
    return Answer(
        question,
        load.rate_rps,
        lengths,
        shared,
        len(load.requests),
        stretch,
        tuple(order),
        (*never, *dropped),
        growth,
        Effort(runner.runs, runner.requests),
    )


_Run: TypeAlias = Callable[[str, Sequence[Pair]], list[Candidate]]


def _tried(run: _Run, question: Question, listed: Sequence[Layout], *, shares_prefixes: bool) -> list[Candidate]:
    """Layouts under the default policy, then policies on the best of them."""
    first = run("layouts", [(layout, default_variant()) for layout in listed])
    rest = [
        (candidate.layout, variant)
        for candidate in ranked(first, question.objective)[:LAYOUTS_KEPT]
        for variant in variants(candidate.layout, shares_prefixes=shares_prefixes)
        if not variant.is_default
    ]
    return [*first, *run("policies", rest)]


def _growth(runner: Runner, question: Question, best: Candidate) -> tuple[tuple[float, float], ...]:
    found: dict[float, float] = {}
    reached = best.attainment >= question.attainment
    for growths in GROWTHS if reached else ():
        found.update(zip(growths, runner.grown("headroom", (best.layout, best.variant), growths), strict=True))
        if found[min(found)] >= question.attainment:
            break
    return tuple(sorted(found.items()))


def _below(layout: Layout) -> str:
    return f"carries {layout.headroom:.2g} times this traffic by arithmetic"


def shares_prefixes(requests: Sequence[WorkloadRequest]) -> bool:
    """Whether at least a twentieth of the prompts begin as another one does."""
    seen: set[int] = set()
    again = 0
    for request in requests:
        if request.hash_ids:
            again += request.hash_ids[0] in seen
            seen.add(request.hash_ids[0])
    return again >= len(requests) / 20
