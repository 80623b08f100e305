"""What became of the requests of draining endpoints, counted by the Director that dispatched them."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_core.model import Outcome
from ballast_core.state.ledger import Entry


@dataclass(slots=True)
class Departures:
    """Requests since the start. One that moves from one draining endpoint to another counts twice."""

    moved_out: int = 0
    """They decode elsewhere now."""
    finished: int = 0
    """They ended there, whole."""
    lost: int = 0
    """They failed there, and could not go on elsewhere."""

    def moved(self, entry: Entry) -> None:
        """A move of it is done."""
        self.moved_out += not entry.adopted

    def ended(self, entry: Entry, outcome: Outcome) -> None:
        """It ended on a draining endpoint. One that its client cancelled was not lost."""
        if not entry.adopted:
            self.finished += outcome is Outcome.COMPLETED
            self.lost += outcome is Outcome.FAILED
