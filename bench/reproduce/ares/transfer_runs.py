"""What ARES's figure 11 asks of a run: how long the KV of a moving decode is on its way, and how long a step takes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ballast_core.model import EndpointId
from ballast_core.model.effects import Migrate
from ballast_core.profiles import HardwareProfile
from ballast_sim.physics import PHYSICS
from ballast_sim.simulation.figures.results import summarise
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.fleet.migrations import Migrations
from ballast_sim.simulation.requests.legs import EngineLeg
from ballast_sim.simulation.requests.records import Record
from ballast_sim.simulation.runs.experiment import RunSpec, build_fleet
from ballast_sim.simulation.world.links import Link
from bench.reproduce.tasks import Simulated, flat

PAPERS_TOKENS = 2000
"""The average length of the requests in a decode endpoint, "e.g. 2000 tokens in our settings" (5.3)."""
TRANSFER_FIGURES = (
    "moves",
    "moved_tokens_mean",
    "moved_step_mean_s",
    "moved_transfer_mean_s",
    "moved_pause_mean_s",
    "moved_share_percent",
    "papers_share_percent",
)


@dataclass(frozen=True, slots=True)
class Move:
    """One decode that has moved."""

    tokens: int
    """Of KV at the cut: prompt and output so far."""
    step_s: float
    """A step of the source's batch when the move was ordered."""
    pause_s: float
    """From the cut to the next token, as simulated: the source decodes while the KV is copied."""


def share_percent(tokens: int, step_s: float, link: Link) -> float:
    """Share of the transfer in the gap before the next token, of a request that waits for all of its KV (5.4)."""
    transfer_s = link.whole_s(tokens)
    return 100 * transfer_s / (transfer_s + step_s)


def figures_of(moves: Iterable[Move], profile: HardwareProfile) -> dict[str, float]:
    """Means over moves between two endpoints with this profile; only their number where there are none."""
    known, link = list(moves), Link.between(profile, profile)
    if not known:
        return {"moves": 0.0}
    return {
        "moves": float(len(known)),
        "moved_tokens_mean": statistics.fmean(move.tokens for move in known),
        "moved_step_mean_s": statistics.fmean(move.step_s for move in known),
        "moved_transfer_mean_s": statistics.fmean(link.whole_s(move.tokens) for move in known),
        "moved_pause_mean_s": statistics.fmean(move.pause_s for move in known),
        "moved_share_percent": statistics.fmean(share_percent(move.tokens, move.step_s, link) for move in known),
        "papers_share_percent": statistics.fmean(share_percent(PAPERS_TOKENS, move.step_s, link) for move in known),
    }


class NotedMigrations(Migrations):
    """Migrations that are noted as they succeed."""

    def __init__(self, fleet: Fleet) -> None:
        """Those of this fleet, to be put in place of its own before it runs."""
        super().__init__(fleet.settings.migration, fleet.kernel, fleet.world, fleet)
        self.moves: list[Move] = []
        self._fleet = fleet
        self._steps_s: dict[int, float] = {}
        """Of the source, by the index of a request whose move was ordered."""

    def begin(self, record: Record, effect: Migrate) -> None:
        """See `Migrations`."""
        self._steps_s[record.index] = self._step_s(effect.source.id)
        super().begin(record, effect)

    def began(self, leg: EngineLeg, at_s: float) -> None:
        """See `Migrations`."""
        record = leg.record
        before = record.migrations
        super().began(leg, at_s)
        if record.migrations > before:
            tokens = record.input_tokens + leg.before
            self.moves.append(Move(tokens, self._steps_s[record.index], self.figures.pauses_s[-1]))

    def _step_s(self, endpoint_id: EndpointId) -> float:
        physics = PHYSICS[self._fleet.settings.physics]
        return next(
            physics.decode_step_s(machine.profile, running, held)
            for machine, running, held in self._fleet.world.decode_loads()
            if machine.endpoint.id == endpoint_id
        )


def moved(seed: int, run: Simulated) -> Mapping[str, float]:
    """The figures of a run on endpoints of one profile, and `TRANSFER_FIGURES` of the decodes that moved in it."""
    spec: RunSpec = run.with_seed(seed)
    fleet = build_fleet(spec, spec.setup.source.load(seed, spec.rate_scale))
    noted = NotedMigrations(fleet)
    fleet.migrations = noted
    fleet.run()
    figures = flat(summarise(fleet, spec.setup.objective))
    return {**figures, **figures_of(noted.moves, spec.setup.machines[0].profile)}
