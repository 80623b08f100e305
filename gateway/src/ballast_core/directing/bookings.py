"""Changes of the ledger, each together with everything that must change with it.

What is learned from an event is learned at once, see `directing.learning`. Planned micro-requests leave with their
request. The slot of a lost endpoint becomes free once no request is booked on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ballast_core.directing.learning import Learner
from ballast_core.directing.outcomes import Outcomes
from ballast_core.directing.partitioner import Partitioner
from ballast_core.directing.placer import Placed, Placer
from ballast_core.model import Outcome, RequestId
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, Ledger

_MANY = 16
"""From so many reports of progress on, arrays are faster than one report after another."""


class Bookings:
    """Books and unbooks requests for one Director. Times are seconds on its clock."""

    def __init__(
        self,
        inventory: Inventory,
        ledger: Ledger,
        *,
        learner: Learner,
        placer: Placer,
        partitioner: Partitioner,
        outcomes: Outcomes,
    ) -> None:
        self._outcomes = outcomes
        self._inventory = inventory
        self._ledger = ledger
        self._learner = learner
        self._placer = placer
        self._partitioner = partitioner

    def assign(self, entry: Entry, prefill: Placed | None, decode: Placed, now_s: float) -> None:
        """Book a whole request on these endpoints; without `prefill`, the decode endpoint serves both stages."""
        first = decode if prefill is None else prefill
        self._ledger.assign(
            entry,
            None if prefill is None else prefill.slot,
            decode.slot,
            now_s,
            cached_tokens=self._placer.cached_tokens(first),
            prefill_s=self._placer.prefill_s(first),
            other_s=self._placer.other_prefill_s(first),
            class_slot=self._learner.class_slot(entry.request, now_s),
        )
        self._learner.dispatched(entry.request, first.slot, now_s)
        self._partitioner.unplanned(entry)

    def assign_decode(self, entry: Entry, decode_slot: int, now_s: float) -> None:
        """Book the decode, in this slot, of a request whose prefill is over and which has no booking."""
        self._ledger.assign_decode(entry, decode_slot, now_s, class_slot=self._learner.class_slot(entry.request, now_s))
        self._partitioner.unplanned(entry)

    def prefilled(self, entry: Entry, now_s: float) -> None:
        """Its prefill has ended; it decodes on the endpoint on which it is booked."""
        self._learner.prefilled(entry, now_s)
        self._ledger.prefilled(entry, now_s)
        self.release_lost()

    def prefilled_and_withdrawn(self, entry: Entry, now_s: float) -> None:
        """Its prefill has ended, and all its bookings are dropped: its decode endpoint is chosen again."""
        self._learner.prefilled(entry, now_s)
        self._ledger.withdraw(entry, now_s)

    def progressed(self, entry: Entry, generated_tokens: int, now_s: float) -> None:
        """It has this many output tokens now."""
        gap = self._ledger.progressed(entry, generated_tokens, now_s)
        if gap is None:
            self.release_lost()  # the first tokens end its prefill
        elif self._learner.follows_progress:
            self._learner.gap(*gap, now_s)

    def progressed_all(self, reports: Sequence[tuple[float, RequestId, int]]) -> None:
        """`progressed` for each (time, request, output tokens) in turn; unknown requests are skipped."""
        gaps = self._ledger.gaps(reports) if len(reports) >= _MANY else None
        if gaps is not None:
            self._learner.gaps(gaps)
            self._ledger.progressed_all(gaps)
            return
        entry_of = self._ledger.entries.get
        for at_s, request_id, generated_tokens in reports:
            entry = entry_of(request_id)
            if entry is not None:
                self.progressed(entry, generated_tokens, at_s)

    def failed(self, entry: Entry) -> None:
        """One of its legs has failed: drop all its bookings."""
        self.dropped(entry)
        self.release_lost()

    def dropped(self, entry: Entry) -> None:
        """Nothing of it is booked. The slots of lost endpoints stay taken until `release_lost`."""
        self._ledger.unassign(entry)
        self._partitioner.closed(entry.request.id)

    def redirected(self, entry: Entry, prefill_slot: int | None, decode_slot: int, now_s: float) -> None:
        """It runs whole in these slots now, by nobody's plan; the endpoint that prefills it will cache its prompt."""
        class_slot = self._learner.class_slot(entry.request, now_s)
        self._ledger.redirect(entry, prefill_slot, decode_slot, now_s, class_slot=class_slot)
        self._partitioner.closed(entry.request.id)
        self._partitioner.unplanned(entry)
        if not entry.decodes:
            self._learner.dispatched(entry.request, decode_slot if prefill_slot is None else prefill_slot, now_s)
        self.release_lost()

    def lost_sight(self, entry: Entry) -> None:
        """It runs where no endpoint is known."""
        self._ledger.lose_sight(entry)
        self._partitioner.closed(entry.request.id)
        self.release_lost()

    def ended(self, entry: Entry, outcome: Outcome, output_tokens: int, now_s: float) -> None:
        """It has ended after this many output tokens (0 if the driver does not know)."""
        self._learner.ended(entry, outcome, output_tokens, now_s)
        self._ledger.close(entry.request.id)
        self._partitioner.closed(entry.request.id)
        self.release_lost()

    def release_lost(self) -> None:
        """Free the slots of lost endpoints on which no request is booked any more."""
        lost = self._inventory.lost
        if lost:
            for slot in [slot for slot in lost if self._ledger.is_idle(slot)]:
                self._outcomes.forget(slot)
                self._inventory.release(slot)
                self._learner.forget(slot)
                self._placer.forget(slot)
                self._partitioner.forget(slot)
