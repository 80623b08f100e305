"""Changes of the ledger, each together with everything that must change with it.

Learning comes before the ledger's change, since it reads the old state. Planned micro-requests leave with their
request. The slot of a lost endpoint becomes free once no request is booked on it.
"""

from __future__ import annotations

from ballast_core.directing.learning import Learner
from ballast_core.directing.partitioner import NoPartitioner, Partitioner
from ballast_core.directing.placer import Placed, Placer
from ballast_core.model import Outcome
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, Ledger


class Bookings:
    """Books and unbooks requests for one Director. Times are seconds on its clock."""

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

    def assign(self, entry: Entry, prefill: Placed | None, decode: Placed, now_s: float) -> None:
        """Book a whole request on these endpoints; without `prefill`, the decode endpoint serves both stages."""
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

    def assign_decode(self, entry: Entry, decode_slot: int, now_s: float) -> None:
        """Book the decode, in this slot, of a request whose prefill is over and which has no booking."""
        class_slot = self._learner.class_slot(entry.request, now_s)
        self._ledger.assign(entry, None, decode_slot, now_s, class_slot=class_slot)
        self._ledger.prefilled(entry, now_s)
        self._partitioner.unplanned(entry)

    def prefilled(self, entry: Entry, now_s: float) -> None:
        """Its prefill has ended; it decodes on the endpoint on which it is booked."""
        slots = slots_of(entry)
        self._learner.prefilled(entry, now_s)
        self._ledger.prefilled(entry, now_s)
        self.release(*slots)

    def prefilled_and_withdrawn(self, entry: Entry, now_s: float) -> None:
        """Its prefill has ended, and all its bookings are dropped: its decode endpoint is chosen again."""
        self._learner.prefilled(entry, now_s)
        self._ledger.prefilled(entry, now_s)
        self._ledger.unassign(entry)

    def progressed(self, entry: Entry, generated_tokens: int, now_s: float) -> None:
        """It has this many output tokens now."""
        slots = slots_of(entry)
        self._learner.progressed(entry, generated_tokens, now_s)
        self._ledger.progressed(entry, generated_tokens, now_s)
        if len(slots) > 1:  # the first report of tokens may have ended its prefill
            self.release(*slots)

    def failed(self, entry: Entry) -> None:
        """One of its legs has failed: drop all its bookings."""
        slots = slots_of(entry)
        self._ledger.unassign(entry)
        self._partitioner.closed(entry.request.id)
        self.release(*slots)

    def ended(self, entry: Entry, outcome: Outcome, output_tokens: int, now_s: float) -> None:
        """It has ended after this many output tokens (0 if the driver does not know)."""
        slots = slots_of(entry)
        self._learner.ended(entry, outcome, output_tokens, now_s)
        self._ledger.close(entry.request.id)
        self._partitioner.closed(entry.request.id)
        self.release(*slots)

    def release(self, *slots: int) -> None:
        """Free those of these slots whose endpoint is lost and on which no request is booked."""
        for slot in slots:
            if self._ledger.is_idle(slot) and self._inventory.release(slot):
                self._learner.forget(slot)
                self._placer.forget(slot)
                self._partitioner.forget(slot)


def slots_of(entry: Entry) -> list[int]:
    """Every slot on which a request is booked."""
    coming = None if entry.reservation is None else entry.reservation.decode_slot
    return [slot for slot in (entry.prefill_slot, entry.decode_slot, coming) if slot is not None]
