"""Requests that others decide about: those of other gateways, and what holders do by the plans of ours.

The ledger is the fleet's if every gateway books every request. What is learned of endpoints (step times, rates, output
lengths, cached prefixes, health) is learned from all requests alike. What is a gateway's own counts its own requests
only: the limit of requests in flight, the retry budget, the queue with its turns and its learned patience, and the
shares by which a prefix is found hot.
"""

from __future__ import annotations

from ballast_core.directing.bookings import Bookings
from ballast_core.directing.learning import Learner
from ballast_core.directing.outcomes import Outcomes
from ballast_core.directing.partitioner import Partitioner
from ballast_core.directing.placer import Placer
from ballast_core.model import Request, Stage
from ballast_core.model.effects import Effect
from ballast_core.model.events import DispatchFailed, LegFailed, MoveOrdered, RequestAdopted, RequestMoved
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, Ledger, Phase


class Adoption:
    """Books for one Director what others have decided. Times are seconds on its clock."""

    def __init__(
        self,
        inventory: Inventory,
        ledger: Ledger,
        *,
        learner: Learner,
        placer: Placer,
        partitioner: Partitioner,
        outcomes: Outcomes,
        bookings: Bookings,
    ) -> None:
        self._inventory = inventory
        self._ledger = ledger
        self._learner = learner
        self._placer = placer
        self._partitioner = partitioner
        self._outcomes = outcomes
        self._bookings = bookings

    def adopt(self, event: RequestAdopted, now_s: float) -> None:
        """Book another gateway's request on these endpoints, or book it anew there, if they are known. The endpoint
        that computed its prompt may be gone once it decodes."""
        request, ledger = event.request, self._ledger
        known = ledger.get(request.id)
        if known is not None and not known.adopted:
            return
        decode_slot = self._inventory.slot_of(event.decode)
        first_slot = decode_slot if event.prefill is None else self._inventory.slot_of(event.prefill)
        if decode_slot is None or (first_slot is None and not event.decoding):
            return
        counted_tokens = event.generated_tokens  # what ended before was not seen: only its life from now on counts
        if known is None:
            entry = ledger.open(request, now_s, adopted=True)
        elif known.decode_slot == decode_slot and event.decoding == (known.phase is Phase.DECODING):
            self._read(request, first_slot, now_s)
            return
        else:
            entry, counted_tokens = known, known.counted_tokens
            self._bookings.dropped(entry)
        class_slot = self._learner.class_slot(request, now_s)
        if event.decoding or first_slot is None:
            ledger.assign_decode(entry, decode_slot, now_s, class_slot=class_slot)
        else:
            stage = Stage.DECODE if event.prefill is None else Stage.PREFILL
            cached_tokens, prefill_s = self._placer.foresee(stage, request, first_slot, now_s)
            ledger.assign(
                entry,
                None if first_slot == decode_slot else first_slot,
                decode_slot,
                now_s,
                cached_tokens=cached_tokens,
                prefill_s=prefill_s,
                class_slot=class_slot,
            )
        self._read(request, first_slot, now_s)
        self._partitioner.unplanned(entry)
        if event.generated_tokens:
            ledger.progressed(entry, event.generated_tokens, now_s)
            ledger.flights.resume(entry.row, min(counted_tokens, event.generated_tokens))
        self._bookings.release_lost()

    def _read(self, request: Request, slot: int | None, now_s: float) -> None:
        """Its prompt is computed in this slot; None: by an endpoint that is not known."""
        if slot is not None:
            self._learner.dispatched(request, slot, now_s)

    def prefilled(self, entry: Entry, now_s: float) -> None:
        """Its holder has it on its decode endpoint. What is left of a cut is one piece there."""
        if entry.phase is Phase.HELD:
            return
        self._bookings.prefilled(entry, now_s)
        if self._partitioner.planned(entry.request.id):
            self._partitioner.closed(entry.request.id)
            self._partitioner.unplanned(entry)

    def moved(self, entry: Entry, event: RequestMoved, now_s: float) -> bool:
        """It decodes elsewhere now. False if that is not known, is where it was, or if it does not decode yet."""
        slot = self._inventory.slot_of(event.target)
        decodes = entry.phase is Phase.DECODING and not self._partitioner.has_next(entry.request.id)
        if slot is None or not decodes or slot == entry.decode_slot:
            return False
        self._ledger.move(entry, slot, now_s)
        self._partitioner.moved(entry)
        self._bookings.release_lost()
        return True

    def ordered(self, entry: Entry, event: MoveOrdered, now_s: float) -> None:
        """It is to decode elsewhere: book it there, too, if it decodes and is not being moved."""
        slot = self._inventory.slot_of(event.target)
        decodes = entry.phase is Phase.DECODING and not self._partitioner.has_next(entry.request.id)
        if slot is not None and decodes and slot != entry.decode_slot and entry.reservation is None:
            self._ledger.reserve(entry, slot, now_s)

    def leg_failed(self, entry: Entry, event: LegFailed | DispatchFailed, now_s: float) -> list[Effect]:
        """A leg failed; its holder goes on. The endpoint's health learns of it."""
        if entry.phase is not Phase.HELD:
            self._outcomes.count(entry, event, now_s)
        return []
