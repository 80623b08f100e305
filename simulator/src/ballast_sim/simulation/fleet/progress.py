"""How far the running decodes have come, reported to the Directors before any later event.

Engines in steady decode leap over many steps, so their tokens are reported late. Each report carries the time at which
the token was generated.
"""

from __future__ import annotations

from typing import cast

from ballast_core.model import RequestId
from ballast_core.model.events import LengthPredicted
from ballast_sim.engine import TokensAdvanced
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
        self._settles = world.settles
        self._caught_up = (-1.0, False)
        self._late: list[tuple[float, str, int, RequestId]] = []
        """(time, id of the leg, output tokens, request) of decodes that were steady and have not been reported."""

    def catch_up(self, *, inclusive: bool = False) -> None:
        """Report every multiple of `PROGRESS_EVERY_TOKENS` that decodes reached before now.

        `inclusive`: also by steps that end now, which come before arrivals of now and after what is observed now.
        """
        if (self._kernel.now_s, inclusive) <= self._caught_up:
            return
        self._caught_up = (self._kernel.now_s, inclusive)
        reports = cast("list[tuple[float, RequestId, int]]", self._world.progress(inclusive=inclusive))
        if self._late:
            legs = self._book.last_decode
            whole = self._late + [(at_s, legs[name].id, tokens, name) for at_s, name, tokens in reports]
            reports = [(at_s, name, tokens) for at_s, _, tokens, name in sorted(whole)]
            self._late = []
        if not reports:
            return
        records = self._book.records
        if not self._settles:
            for _, request_id, tokens in reports:
                record = records[int(request_id)]
                record.generated_tokens = max(record.generated_tokens, tokens)
        gateways = len(self._gateways.directors)
        for gateway in range(gateways):
            reached = reports
            if gateways > 1:
                reached = [report for report in reports if records[int(report[1])].gateway == gateway]
            if reached:
                self._gateways.progress(gateway, reached)
                if self._foresight.changes:
                    for at_s, request_id, tokens in reached:
                        self._predict(records[int(request_id)], request_id, tokens, at_s)

    def late(self, leg: EngineLeg, event: TokensAdvanced) -> None:
        """A leg has got tokens, most of them before now."""
        every, request_id = PROGRESS_EVERY_TOKENS, self._book.id_of(leg.record)
        stop = event.first + event.stop - event.start
        for tokens in range(event.marked // every * every + every, stop + 1, every):
            at_s = event.ends_s[event.start + tokens - event.first - 1]
            self._late.append((at_s, leg.id, leg.before + tokens, request_id))
        self._caught_up = (-1.0, False)

    def predict(self, record: Record, tokens: int, at_s: float) -> None:
        """Where predictions change with the tokens so far, report the prediction after `tokens`."""
        if self._foresight.changes:
            self._predict(record, self._book.id_of(record), tokens, at_s)

    def _predict(self, record: Record, request_id: RequestId, tokens: int, at_s: float) -> None:
        if tokens < record.output_tokens:
            predicted = self._foresight.output_tokens(record, tokens)
            if predicted is not None:
                self._gateways.report(record.gateway, LengthPredicted(request_id, predicted - tokens), at_s)
