"""The smallest fleet that meets the SLO: how many engines to buy.

Families are one kind of hardware for each stage, and one for colocated engines. In a family the search starts where
arithmetic says that the traffic fits, or where the budget ends, adds engines until a simulation meets the SLO, and
takes engines away while it still does. So in its family no fleet with one engine less meets it. Where the budget has no
more, engines go from one stage to the other while that helps. A family that cannot be cheaper than what was found is
left out.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ballast_core.profiles.capacity import LengthStatistics, decode_rps, prefill_rps
from ballast_sim.recommend.budget import Hardware
from ballast_sim.recommend.candidates import Candidate
from ballast_sim.recommend.layouts import Layout, Part
from ballast_sim.recommend.question import Question
from ballast_sim.recommend.runner import Report, Runner
from ballast_sim.recommend.search import Answer, Effort, shares_prefixes
from ballast_sim.recommend.variants import default_variant
from ballast_sim.settings import SettingError
from ballast_sim.simulation.runs.pool import Pool, default_jobs

Measure: TypeAlias = Literal["gpus", "cost"]
Counts: TypeAlias = tuple[int, ...]
"""Engines of each part of a family."""
Trial: TypeAlias = Callable[[Sequence[Counts]], Sequence[float]]
"""The attainment of fleets, in order; those of one call may run at the same time."""

GROWTHS = (1.1, 1.25, 1.5, 2.0)
"""Multiples of the traffic at which the answer is tried: its headroom."""
ALTERNATIVES = 1.25
"""Families that may cost so many times the cheapest found are searched, too."""
STEP_SHARE = 8
"""A fleet that misses the SLO grows by one engine in so many, one at least."""


@dataclass(frozen=True, slots=True)
class Family:
    """Kinds of hardware by stage: (`P`, profile) and (`D`, profile), or (`C`, profile) alone."""

    stages: tuple[tuple[str, Hardware], ...]

    @property
    def most(self) -> Counts:
        """Engines of each part that the budget has, one for each other part left over."""
        return tuple(
            hardware.instances - sum(other is hardware for _, other in self.stages) + 1 for _, hardware in self.stages
        )

    def allows(self, counts: Counts) -> bool:
        """Whether the budget pays for that."""
        return all(self._of(hardware, counts) <= hardware.instances for _, hardware in self.stages)

    def _of(self, hardware: Hardware, counts: Sequence[int]) -> int:
        """Engines of a kind, in all parts."""
        return sum(count for (_, other), count in zip(self.stages, counts, strict=True) if other is hardware)

    def start(self, lengths: LengthStatistics, rate_rps: float, tpot_s: float | None) -> Counts:
        """What carries the rate by arithmetic, which knows no prefix hits; no more than the budget pays for."""
        wanted = [max(1, math.ceil(rate_rps / _rps(*stage, lengths, tpot_s))) for stage in self.stages]
        return tuple(
            max(1, min(count, count * hardware.instances // self._of(hardware, wanted)))
            for (_, hardware), count in zip(self.stages, wanted, strict=True)
        )

    def price(self, counts: Counts, prices: Mapping[str, float] | None) -> float:
        """GPUs, or the cost of an hour where `prices` of engines are given by profile."""
        return sum(
            count * (hardware.profile.gpus if prices is None else prices[hardware.profile.name])
            for (_, hardware), count in zip(self.stages, counts, strict=True)
        )

    def layout(self, counts: Counts, lengths: LengthStatistics, rate_rps: float, tpot_s: float | None) -> Layout:
        """The fleet with so many engines."""
        parts = tuple(
            Part(letter, hardware.profile, count) for (letter, hardware), count in zip(self.stages, counts, strict=True)
        )
        rates = (_rps(*stage, lengths, tpot_s) * count for stage, count in zip(self.stages, counts, strict=True))
        return Layout(parts, min(rates) / rate_rps)


def families(hardware: Sequence[Hardware]) -> list[Family]:
    """Every choice of one kind for each stage, and of one for colocated engines."""
    split = [Family((("P", first), ("D", second))) for first in hardware for second in hardware]
    return [family for family in split if min(family.most) > 0] + [Family((("C", each),)) for each in hardware]


def smallest(
    start: Counts,
    *,
    allows: Callable[[Counts], bool],
    price: Callable[[Counts], float],
    trial: Trial,
    wanted: float,
    below: float = math.inf,
) -> Counts | None:
    """The counts of the lowest price at which `trial` attains `wanted`, below that price; None where there are none.

    `trial` is taken to attain no less with more engines. Grows where the trial gains most, or exchanges engines where
    none can be added, then shrinks by one engine at a time, the dearest first.
    """
    known: dict[Counts, float] = {}

    def attained(several: Sequence[Counts]) -> list[float]:
        missing = [counts for counts in dict.fromkeys(several) if counts not in known]
        known.update(zip(missing, trial(missing) if missing else (), strict=True))
        return [known[counts] for counts in several]

    counts = start
    if not allows(counts):
        return None

    def able(each: Counts) -> bool:
        return allows(each) and price(each) < below

    while (share := attained([counts])[0]) < wanted:
        grown = [each for k in range(len(counts)) if (each := _grown(counts, k, able)) is not None]
        others = grown or [each for each in _exchanged(counts) if able(each)]
        gains = dict(zip(others, attained(others), strict=True))
        if not grown and max(gains.values(), default=0.0) <= share:
            return None
        counts = max(others, key=lambda each: (gains[each], -price(each)))
    while True:
        fewer = [_changed(counts, k, -1) for k in range(len(counts)) if counts[k] > 1]
        enough = [each for each, share in zip(fewer, attained(fewer), strict=True) if share >= wanted]
        if not enough:
            return counts if price(counts) < below else None
        counts = min(enough, key=price)


def minimize(
    question: Question,
    prices: Mapping[str, float] | None,
    jobs: int,
    stop: threading.Event,
    report: Report,
) -> Answer:
    """The fleet with the fewest GPUs, or of the lowest cost by `prices`, under the default policy.

    The first candidate is the answer; the others are the best of their families, dearer ones later. Raises as `search`
    does, and SettingError where nothing within the budget meets the SLO.
    """
    load = question.source.load(question.seeds[0], question.rate_scale)
    if load.rate_rps is None:
        raise SettingError(("trace", "workload"), "its requests arrive at one instant and have no rate")
    lengths, rate_rps, tpot_s = LengthStatistics.of(load.requests), load.rate_rps, question.objective.tpot_s
    found: list[tuple[float, Candidate]] = []
    with Pool(min(jobs, default_jobs())) as pool:
        runner = Runner(question, pool, stop, report)

        def fleet(family: Family, counts: Counts) -> Layout:
            return family.layout(counts, lengths, rate_rps, tpot_s)

        def search_in(family: Family) -> None:
            def trial(several: Sequence[Counts]) -> list[float]:
                pairs = [(fleet(family, counts), default_variant()) for counts in several]
                return [each.attainment for each in runner.on_all(_words(family), pairs)]

            def price(counts: Counts) -> float:
                return family.price(counts, prices)

            start = family.start(lengths, rate_rps, tpot_s)
            cheapest = min((known for known, _ in found), default=math.inf)
            best = smallest(
                start,
                allows=family.allows,
                price=price,
                trial=trial,
                wanted=question.attainment,
                below=cheapest * ALTERNATIVES,
            )
            if best is not None:
                (candidate,) = runner.on_all(_words(family), [(fleet(family, best), default_variant())])
                found.append((price(best), candidate))

        every = families(question.hardware)
        for family in sorted(every, key=lambda each: each.price(each.start(lengths, rate_rps, tpot_s), prices)):
            search_in(family)
        if not found:
            raise SettingError(
                "budget",
                f"no fleet within it was found that keeps {question.attainment:.1%} of {rate_rps:.3g} requests/s "
                "within the SLO; allow more GPUs, or ease --slo",
            )
        found.sort(key=lambda each: (each[0], -each[1].attainment, each[1].shape))
        best = found[0][1]
        growth = zip(GROWTHS, runner.grown("headroom", (best.layout, best.variant), GROWTHS), strict=True)
        return Answer(
            question,
            rate_rps,
            lengths,
            shares_prefixes(load.requests),
            len(load.requests),
            None,
            tuple(candidate for _, candidate in found),
            (),
            tuple(growth),
            Effort(runner.runs, runner.requests),
        )


def gpus_of(layout: Layout) -> int:
    """GPUs of a fleet."""
    return sum(part.count * part.profile.gpus for part in layout.parts)


def cost_of(layout: Layout, prices: Mapping[str, float]) -> float:
    """Cost of a fleet for an hour."""
    return sum(part.count * prices[part.profile.name] for part in layout.parts)


def enough(question: Question, seconds: float = 120.0, most: int = 10_000) -> Question:
    """The question with so many requests that they last for `seconds`, if its limit has fewer.

    For a limit that nobody asked for: shorter traffic would end before decode endpoints have filled up.
    """
    load = question.source.load(question.seeds[0], question.rate_scale)
    wanted = min(most, math.ceil((load.rate_rps or 0.0) * seconds))
    if question.source.limit is None or wanted <= question.source.limit:
        return question
    return replace(question, source=replace(question.source, limit=wanted))


def _changed(counts: Counts, index: int, by: int) -> Counts:
    return tuple(count + by if k == index else count for k, count in enumerate(counts))


def _grown(counts: Counts, index: int, able: Callable[[Counts], bool]) -> Counts | None:
    """With as many more engines of a part as a step has, or as there may be; None where there may be none."""
    steps = range(math.ceil(counts[index] / STEP_SHARE), 0, -1)
    return next((more for step in steps if able(more := _changed(counts, index, step))), None)


def _exchanged(counts: Counts) -> list[Counts]:
    """With one engine of a part less and one of another more."""
    parts = range(len(counts))
    return [_changed(_changed(counts, k, -1), j, 1) for k in parts for j in parts if k != j and counts[k] > 1]


def _rps(letter: str, hardware: Hardware, lengths: LengthStatistics, tpot_s: float | None) -> float:
    """Requests a second that one engine carries in that role."""
    prefill, decode = prefill_rps(hardware.profile, lengths), decode_rps(hardware.profile, lengths, tpot_s)
    return {"P": prefill, "D": decode}.get(letter) or 1 / (1 / prefill + 1 / decode)


def _words(family: Family) -> str:
    return " + ".join(f"{letter}@{hardware.profile.name}" for letter, hardware in family.stages)
