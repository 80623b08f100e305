"""The ways to assign roles to the engines of a budget, ranked by arithmetic before anything is simulated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ballast_core.profiles import HardwareProfile
from ballast_core.profiles.capacity import LengthStatistics, decode_rps, prefill_rps
from ballast_sim.recommend.budget import Hardware

MOST_LAYOUTS = 2_000
"""Splits to consider at most; of a larger budget an evenly spread selection."""
SPLITS_LISTED = 4
FAR_BEHIND = 0.5
"""A layout that cannot carry the traffic is not simulated if it has less than this share of the roomiest one's room."""


@dataclass(frozen=True, slots=True)
class Part:
    """Engines of one profile in one role: `P`, `D` or `C`, as in a shape."""

    letter: str
    profile: HardwareProfile
    count: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a fleet. `headroom`: the narrower stage's capacity over the rate of the traffic, by arithmetic."""

    parts: tuple[Part, ...]
    headroom: float

    @property
    def colocated(self) -> bool:
        """Whether every engine does both stages of its own requests."""
        return all(part.letter == "C" for part in self.parts)

    @property
    def shape(self) -> str:
        """As `ballast simulate --endpoints` takes it."""
        return self._shape({})

    @property
    def flexible_shape(self) -> str:
        """The same engines with hand-offs between any two: what a partition needs."""
        return self._shape({"C": "F"})

    def _shape(self, letters: dict[str, str]) -> str:
        counts: dict[str, str] = {}
        for part in self.parts:
            letter = letters.get(part.letter, part.letter)
            counts[part.profile.name] = f"{counts.get(part.profile.name, '')}{part.count}{letter}"
        return ",".join(f"{count}@{name}" for name, count in counts.items())


def layouts(
    hardware: Sequence[Hardware], lengths: LengthStatistics, rate_rps: float, tpot_s: float | None
) -> list[Layout]:
    """Every split into prefill and decode, the roomiest first, and then colocated.

    `tpot_s` bounds the batch with which a decode endpoint counts.
    """
    found = [
        Layout(parts, _headroom(parts, lengths, rate_rps, tpot_s))
        for parts in _splits(hardware)
        if {part.letter for part in parts} == {"P", "D"}
    ]
    found.sort(key=lambda layout: (-layout.headroom, layout.shape))
    together = tuple(Part("C", each.profile, each.instances) for each in hardware)
    return [*found, Layout(together, _headroom(together, lengths, rate_rps, tpot_s))]


def shortlist(every: Sequence[Layout]) -> tuple[list[Layout], list[Layout]]:
    """Of what `layouts` returns, those to simulate, and those that arithmetic rules out.

    The roomiest splits and the colocated layout; but none that is both below the rate and `FAR_BEHIND`: prefix hits,
    which arithmetic does not count, help them all.
    """
    listed = [*every[:-1][:SPLITS_LISTED], every[-1]]
    roomiest = max(layout.headroom for layout in listed)
    hopeless = [layout for layout in listed if layout.headroom < min(1.0, FAR_BEHIND * roomiest)]
    return [layout for layout in listed if layout not in hopeless], hopeless


def _splits(hardware: Sequence[Hardware]) -> Iterator[tuple[Part, ...]]:
    steps = _steps([each.instances for each in hardware])
    for prefills in itertools.product(*steps):
        yield tuple(
            Part(letter, each.profile, count)
            for each, prefill in zip(hardware, prefills, strict=True)
            for letter, count in (("P", prefill), ("D", each.instances - prefill))
            if count
        )


def _steps(instances: Sequence[int]) -> list[list[int]]:
    """Numbers of prefill engines to try of each kind: all, or evenly spread where they are too many."""
    each = max(2, int(MOST_LAYOUTS ** (1 / len(instances))))
    return [sorted({round(k * count / min(count, each)) for k in range(min(count, each) + 1)}) for count in instances]


def _headroom(parts: Sequence[Part], lengths: LengthStatistics, rate_rps: float, tpot_s: float | None) -> float:
    """Capacity over rate of the narrower stage; colocated engines share their time between the two stages."""
    prefill = sum(part.count * prefill_rps(part.profile, lengths) for part in parts if part.letter == "P")
    decode = sum(part.count * decode_rps(part.profile, lengths, tpot_s) for part in parts if part.letter == "D")
    both = sum(
        part.count / (1 / prefill_rps(part.profile, lengths) + 1 / decode_rps(part.profile, lengths, tpot_s))
        for part in parts
        if part.letter == "C"
    )
    return (min(prefill, decode) + both) / rate_rps
