"""How far the running decodes have come, reported to the Directors before any later event.

Engines in steady decode leap over many steps, so their tokens are reported late. Each report carries the time at which
the token was generated.
"""

from __future__ import annotations

from collections.abc import Sequence

from ballast_core.model import RequestId
from ballast_core.model.events import LengthPredicted
from ballast_sim.simulation.fleet.book import Book
from ballast_sim.simulation.fleet.foresight import Foresight
from ballast_sim.simulation.gateways.gateways import Gateways
from ballast_sim.simulation.kernel import Kernel
from ballast_sim.simulation.requests.legs import EngineLeg
from ballast_sim.simulation.requests.records import Record
from ballast_sim.simulation.world.world import World

PROGRESS_EVERY_TOKENS = 16
"""A running request is reported to the Director once per so many tokens."""


class ProgressReports:
    """Reports of steady decodes, with new length predictions."""

    def __init__(self, kernel: Kernel, world: World, book: Book, foresight: Foresight, gateways: Gateways) -> None:
        self._kernel = kernel
        self._world = world
        self._book = book
        self._foresight = foresight
        self._gateways = gateways
        self._caught_up = (-1.0, False)
        self._late: list[tuple[float, str, int]] = []

    def catch_up(self, *, inclusive: bool = False) -> None:
        """Report every multiple of `PROGRESS_EVERY_TOKENS` that decodes reached before now.

        `inclusive`: also by steps that end now, which come before arrivals of now and after what is observed now.
        """
        if (self._kernel.now_s, inclusive) <= self._caught_up:
            return
        self._caught_up = (self._kernel.now_s, inclusive)
        marks = self._world.progress(inclusive=inclusive)
        if self._late:
            marks = sorted(self._late + marks)
            self._late = []
        if not marks:
            return
        legs, ids = self._book.legs, self._book.ids
        reports: list[list[tuple[float, RequestId, int]]] = [[] for _ in self._gateways.directors]
        for at_s, name, tokens in marks:
            leg = legs[name]
            if leg.unseen:
                continue
            leg.tokens = max(leg.tokens, tokens)  # it may have ended meanwhile
            record, total = leg.record, leg.before + tokens
            record.generated_tokens = max(record.generated_tokens, total)
            reports[record.gateway].append((at_s, ids[record.index], total))
        for gateway, reached in enumerate(reports):
            if reached:
                self._gateways.progress(gateway, reached)
                for at_s, request_id, total in reached if self._foresight.changes else ():
                    self.predict(self._book.record(request_id), total, at_s)

    def late(self, leg: EngineLeg, first: int, times_s: Sequence[float]) -> None:
        """After `first` tokens, the next tokens of a leg came at `times_s`, most of them before now."""
        every = PROGRESS_EVERY_TOKENS
        for tokens in range(leg.tokens // every * every + every, first + len(times_s) + 1, every):
            self._late.append((times_s[tokens - first - 1], leg.id, tokens))
        self._caught_up = (-1.0, False)

    def predict(self, record: Record, tokens: int, at_s: float) -> None:
        """Where predictions change with the tokens so far, report the prediction after `tokens`."""
        if not self._foresight.changes or tokens >= record.output_tokens:
            return
        predicted = self._foresight.output_tokens(record, tokens)
        if predicted is not None:
            event = LengthPredicted(self._book.id_of(record), predicted - tokens)
            self._gateways.report(record.gateway, event, at_s)
