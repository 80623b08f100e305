"""Binds requests to endpoints: at dispatch, when prefill is done, and at the cuts of a plan."""

from __future__ import annotations

from dataclasses import replace

from ballast_core.directing.bookings import Bookings
from ballast_core.directing.partitioner import Partitioner
from ballast_core.directing.placer import Placed, Placer
from ballast_core.directing.queue import Queue
from ballast_core.model import Binding, Endpoint, EndpointId, Role, Stage
from ballast_core.model.effects import Dispatch, Handoff
from ballast_core.model.events import RequestRedirected
from ballast_core.state.health import Health
from ballast_core.state.inventory import Inventory, Readiness
from ballast_core.state.ledger import Entry, Phase


class Dispatcher:
    """Lets the partition and the placements choose a request's endpoints, and books the choice."""

    def __init__(
        self,
        binding: Binding,
        inventory: Inventory,
        *,
        placer: Placer,
        partitioner: Partitioner,
        queue: Queue,
        bookings: Bookings,
        health: Health,
        fallbacks: int,
    ) -> None:
        """`queue`: computes the priority that is sent to engines. `fallbacks`: how many a dispatch names at most."""
        self.fallbacks = fallbacks
        self._placer = placer
        self._binding = binding
        self._inventory = inventory
        self._partitioner = partitioner
        self._queue = queue
        self._bookings = bookings
        self._health = health

    def dispatch(self, entry: Entry, now_s: float, *, anyway: bool = False) -> Dispatch | None:
        """Dispatch a held request, cut or whole; None if no endpoint has capacity for it.

        `anyway`: full endpoints count, too.
        """
        dispatch = self._dispatch(entry, now_s, anyway=anyway)
        if self._inventory.on_trial and dispatch is not None:
            self._sent(entry, dispatch.decode.id)
            if dispatch.prefill is not None:
                self._sent(entry, dispatch.prefill.id)
        return dispatch

    def _sent(self, entry: Entry, endpoint_id: EndpointId) -> None:
        slot = self._inventory.slot_of(endpoint_id)
        if slot in self._inventory.on_trial:
            self._health.sent(entry.request.id, slot)

    def _dispatch(self, entry: Entry, now_s: float, *, anyway: bool) -> Dispatch | None:
        cut = self._partitioner.dispatch(entry, now_s)
        if cut is None:
            return self._whole(entry, now_s, anyway=anyway)
        first = self._inventory.slot_of((cut.prefill or cut.decode).id)
        assert first is not None
        return replace(cut, priority=self._queue.priority(entry, first, now_s))

    def _whole(self, entry: Entry, now_s: float, *, anyway: bool) -> Dispatch | None:
        """Both stages go to endpoints of one revision; where there are several, the least busy one is tried first."""
        mixed = len(self._inventory.ready_revisions()) > 1
        for revision in self._placer.revisions(entry) if mixed else (None,):
            pair = self._pair(entry, now_s, anyway=anyway, revision=revision)
            if pair is not None:
                return pair
        return self._alone(entry, now_s, anyway=anyway)

    def _pair(self, entry: Entry, now_s: float, *, anyway: bool, revision: str | None) -> Dispatch | None:
        """Prefill is placed first: the decode endpoint's load counts at its expected end."""
        placer = self._placer
        prefill = None
        if placer.may_hand_off():
            prefill = placer.place(Stage.PREFILL, entry, now_s, anyway=anyway, revision=revision)
        handoff_s = None if prefill is None else placer.prefill_s(prefill)
        decode = placer.place(Stage.DECODE, entry, now_s, anyway=anyway, handoff_s=handoff_s, revision=revision)
        if decode is None:
            return None
        endpoint = self._inventory.endpoint(decode.slot)
        if endpoint.role is Role.FLEXIBLE and Role.PREFILL not in self._inventory.ready_roles():
            prefill = None
        elif prefill is None:
            return None
        elif prefill.slot == decode.slot:
            prefill = None
        named = self.fallbacks and self._next_best(prefill, decode)
        placer.chosen(Stage.DECODE, decode.slot, entry.request.model)
        if prefill is not None:
            placer.chosen(Stage.PREFILL, prefill.slot, entry.request.model)
        self._bookings.assign(entry, prefill, decode, now_s)
        return Dispatch(
            entry.request.id,
            prefill=None if prefill is None else self._inventory.endpoint(prefill.slot),
            decode=endpoint,
            traces=(decode.trace,) if prefill is None else (prefill.trace, decode.trace),
            priority=self._queue.priority(entry, (prefill or decode).slot, now_s),
            fallbacks=named[0] if named else (),
            prefill_fallbacks=named[1] if named else (),
        )

    def _next_best(self, prefill: Placed | None, decode: Placed) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]]:
        """Fall-backs of decode and prefill. What prefills it is none for its decode, nor the other way round."""
        placer, most = self._placer, self.fallbacks
        if prefill is None:
            return placer.next_best(decode, most), ()
        return (
            placer.next_best(decode, most, other_than=prefill.slot),
            placer.next_best(prefill, most, other_than=decode.slot),
        )

    def _alone(self, entry: Entry, now_s: float, *, anyway: bool) -> Dispatch | None:
        """Where no endpoint may serve one of the stages, one of the other role serves both; its costs count both."""
        candidates = self._placer.stand_ins(entry)
        if candidates is None:
            return None
        among = candidates if anyway else self._placer.with_capacity(candidates)
        placed = self._placer.place(Stage.DECODE, entry, now_s, among=among)
        if placed is None:
            return None
        self._placer.chosen(Stage.DECODE, placed.slot, entry.request.model)
        self._bookings.assign(entry, None, placed, now_s)
        return Dispatch(
            entry.request.id,
            prefill=None,
            decode=self._inventory.endpoint(placed.slot),
            traces=(placed.trace,),
            priority=self._queue.priority(entry, placed.slot, now_s),
            fallbacks=self._placer.next_best(placed, self.fallbacks) if self.fallbacks else (),
        )

    def prefill_done(self, entry: Entry, now_s: float) -> Handoff | None:
        """Choose where it decodes; None if it was not prefilling.

        Late binding keeps the provisional endpoint unless another one is strictly better now, or it has been lost. If
        it was lost and no other one is left, the endpoint that prefilled the request has its KV, and decodes it.
        """
        old_slot = entry.decode_slot
        if old_slot is None or entry.phase is not Phase.PREFILLING:
            return None
        if self._partitioner.planned(entry.request.id):
            return self.segment_done(entry, 0, now_s)
        handoff = self._hand_off(entry, old_slot, now_s)
        if self._inventory.on_trial:
            self._sent(entry, handoff.decode.id)
        return handoff

    def _hand_off(self, entry: Entry, old_slot: int, now_s: float) -> Handoff:
        kept = self._inventory.endpoint(old_slot)
        if self._binding is Binding.EARLY:
            self._bookings.prefilled(entry, now_s)
            return Handoff(entry.request.id, kept)
        prefill_slot = entry.prefill_slot
        holder = kept if prefill_slot is None else self._inventory.endpoint(prefill_slot)
        self._bookings.prefilled_and_withdrawn(entry, now_s)
        if self._health.probes:
            self._health.left(entry.request.id)  # it may go elsewhere; else it is the probe again
        placed = self._placer.place(Stage.DECODE, entry, now_s, keep=old_slot, handoff_s=0.0, revision=holder.revision)
        if placed is None:
            left_slot = old_slot if prefill_slot is None else self._left(old_slot, prefill_slot)
            self._bookings.assign_decode(entry, left_slot, now_s)
            self._bookings.release_lost()
            return Handoff(entry.request.id, self._inventory.endpoint(left_slot))
        if placed.slot != old_slot:
            self._placer.chosen(Stage.DECODE, placed.slot, entry.request.model)
        self._bookings.assign_decode(entry, placed.slot, now_s)
        self._bookings.release_lost()
        return Handoff(entry.request.id, self._inventory.endpoint(placed.slot), (placed.trace,))

    def _left(self, decode_slot: int, prefill_slot: int) -> int:
        """The provisional slot, which may still answer; the prefill's if that is ready and the other one is gone."""
        readiness = self._inventory.readiness
        gone = readiness(decode_slot) is Readiness.GONE
        return prefill_slot if gone and readiness(prefill_slot) is Readiness.READY else decode_slot

    def redirected(self, entry: Entry, event: RequestRedirected, now_s: float) -> None:
        """It runs elsewhere, by no decision of ours."""
        prefill_slot = None
        if event.prefill is not None and not entry.decodes:
            prefill_slot = self._inventory.slot_of(event.prefill)
        if self._health.probes:
            self._health.left(entry.request.id)
        decode_slot = self._inventory.slot_of(event.decode)
        if decode_slot is None or (prefill_slot is None and event.prefill is not None and not entry.decodes):
            self._bookings.lost_sight(entry)
            return
        self._bookings.redirected(entry, prefill_slot, decode_slot, now_s)
        if self._inventory.on_trial:
            self._sent(entry, event.decode)
            if prefill_slot is not None and event.prefill is not None:
                self._sent(entry, event.prefill)

    def segment_done(
        self, entry: Entry, generated_tokens: int, now_s: float, *, computed: bool = True
    ) -> Handoff | None:
        """Start the next segment of a cut request; None if it has no further segment."""
        if not self._partitioner.has_next(entry.request.id):
            return None
        self._bookings.progressed(entry, generated_tokens, now_s)
        handoff = self._partitioner.segment_done(entry, now_s, computed=computed)
        self._bookings.release_lost()
        if self._inventory.on_trial:
            self._sent(entry, handoff.decode.id)
        return handoff
