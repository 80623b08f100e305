"""Changes of the ledger, each together with all that must change with it.

What is learned of a request is learned before the ledger changes; planned micro-requests leave with their request; the
slot of an endpoint that is gone becomes free once no request is on its books.
"""

from __future__ import annotations

from ballast_core.directing.learning import Learner
from ballast_core.directing.partitioner import NoPartitioner, Partitioner
from ballast_core.directing.placer import Placed, Placer
from ballast_core.model import Outcome
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, Ledger


class Bookings:
    """The books of one Director. Times are seconds on its clock."""

    def __init__(
        self,
        inventory: Inventory,
        ledger: Ledger,
        *,
        learner: Learner,
        placer: Placer,
        partitioner: Partitioner | NoPartitioner,
    ) -> None:
        self._inventory = inventory
        self._ledger = ledger
        self._learner = learner
        self._placer = placer
        self._partitioner = partitioner

    def place(self, entry: Entry, prefill: Placed | None, decode: Placed, now_s: float) -> None:
        """A whole request goes to these endpoints; without `prefill` the decode endpoint does both."""
        first = decode if prefill is None else prefill
        self._ledger.assign(
            entry,
            None if prefill is None else prefill.slot,
            decode.slot,
            now_s,
            cached_tokens=first.cached_tokens,
            prefill_s=first.prefill_s,
            class_slot=self._learner.class_slot(entry.request, now_s),
        )
        self._learner.dispatched(entry.request, first.slot, now_s)
        self._partitioner.unplanned(entry)

    def place_again(self, entry: Entry, decode_slot: int, now_s: float) -> None:
        """A request whose prefill is over, and that is on no books, decodes in this slot."""
        class_slot = self._learner.class_slot(entry.request, now_s)
        self._ledger.assign(entry, None, decode_slot, now_s, class_slot=class_slot)
        self._ledger.prefilled(entry, now_s)
        self._partitioner.unplanned(entry)

    def prefilled(self, entry: Entry, now_s: float) -> None:
        """Its prefill has ended; it decodes where it was to."""
        slots = slots_of(entry)
        self._learner.prefilled(entry, now_s)
        self._ledger.prefilled(entry, now_s)
        self.release(*slots)

    def prefilled_and_withdrawn(self, entry: Entry, now_s: float) -> None:
        """Its prefill has ended, and it is taken off all books: where it decodes is decided anew."""
        self._learner.prefilled(entry, now_s)
        self._ledger.prefilled(entry, now_s)
        self._ledger.unassign(entry)

    def progressed(self, entry: Entry, generated_tokens: int, now_s: float) -> None:
        """So many output tokens exist by now."""
        slots = slots_of(entry)
        self._learner.progressed(entry, generated_tokens, now_s)
        self._ledger.progressed(entry, generated_tokens, now_s)
        if len(slots) > 1:  # the first report of tokens may have ended its prefill
            self.release(*slots)

    def failed(self, entry: Entry) -> None:
        """One of its legs has failed: it is on no books."""
        slots = slots_of(entry)
        self._ledger.unassign(entry)
        self._partitioner.closed(entry.request.id)
        self.release(*slots)

    def ended(self, entry: Entry, outcome: Outcome, output_tokens: int, now_s: float) -> None:
        """It is over, after so many output tokens (0 if the driver does not know)."""
        slots = slots_of(entry)
        self._learner.ended(entry, outcome, output_tokens, now_s)
        self._ledger.close(entry.request.id)
        self._partitioner.closed(entry.request.id)
        self.release(*slots)

    def release(self, *slots: int) -> None:
        """Frees those of these slots whose endpoint is gone and on whose books there is no request."""
        for slot in slots:
            if self._ledger.is_idle(slot) and self._inventory.release(slot):
                self._learner.forget(slot)
                self._placer.forget(slot)
                self._partitioner.forget(slot)


def slots_of(entry: Entry) -> list[int]:
    """Every slot on whose books a request is."""
    coming = None if entry.reservation is None else entry.reservation.decode_slot
    return [slot for slot in (entry.prefill_slot, entry.decode_slot, coming) if slot is not None]
