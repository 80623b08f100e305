"""What the outcomes of legs mean: for the health of endpoints, and for the request that failed.

A fault counts against its endpoint at once, but for a refusal (4xx), which may be the client's fault: it counts once
another endpoint has served the same request, and for nobody if the others refuse it alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from ballast_core.directing.placer import Placer
from ballast_core.directing.retries import Credit, RetryBudget
from ballast_core.model import EndpointId, Fault, Outcome, RejectReason, Stage
from ballast_core.model.events import DispatchFailed, LegFailed, RequestEnded
from ballast_core.state.health import Health, HealthSettings
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, FailedLeg, Ledger, Phase

_OF_CONTENT: Final = frozenset({400, 413, 422})
"""Refusals that are about the request itself: a second opinion decides. Others are about who asks for what where."""
_BREAKS: Final = frozenset({Fault.BROKE, Fault.SILENT})


class Outcomes:
    """Judges the outcomes of one Director's legs. Times are seconds on its clock."""

    def __init__(
        self,
        settings: HealthSettings,
        max_retries: int,
        inventory: Inventory,
        ledger: Ledger,
        *,
        health: Health,
        placer: Placer,
    ) -> None:
        self.health = health
        self.budget = RetryBudget(settings.retry_ratio)
        self._credit = Credit()
        self._max_retries = max_retries
        self._inventory = inventory
        self._ledger = ledger
        self._placer = placer

    def use(self, settings: HealthSettings, max_retries: int) -> None:
        """Judge by these from now on; what has been counted stays."""
        self.health.use(settings)
        self.budget.ratio = settings.retry_ratio
        self._max_retries = max_retries

    # --- success ------------------------------------------------------------------------------------------------

    def prefilled(self, entry: Entry, now_s: float) -> None:
        """Its prefill leg has given what was asked of it."""
        slot = entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot
        if slot is not None and entry.phase is Phase.PREFILLING:
            self._succeeded(entry, Stage.PREFILL, slot, now_s)

    def decoded(self, entry: Entry, now_s: float) -> None:
        """Its first token has come, or its whole answer."""
        if entry.decode_slot is not None:
            self._succeeded(entry, Stage.DECODE, entry.decode_slot, now_s)

    def ended(self, entry: Entry, event: RequestEnded, now_s: float) -> None:
        """It is over. A whole answer has no first token: its end tells."""
        if event.outcome is Outcome.COMPLETED:
            if not entry.generated_tokens:
                self.decoded(entry, now_s)
        elif event.fault is not None and entry.decode_slot is not None:
            believed = event.fault is not Fault.REFUSED
            self.health.failed(entry.decode_slot, entry.request.id, event.fault, now_s, in_a_row=believed)

    def _succeeded(self, entry: Entry, stage: Stage, slot: int, now_s: float) -> None:
        self.health.succeeded(slot, entry.request.id, now_s)
        if entry.failed_legs:
            self._contradict(entry, stage, now_s)

    def _contradict(self, entry: Entry, stage: Stage, now_s: float) -> None:
        """Some endpoint has served what others refused: now it is their fault. A token contradicts at both stages."""
        refused = [leg for leg in entry.failed_legs if leg.fault is Fault.REFUSED]
        legs = [leg for leg in refused if stage in {Stage.DECODE, leg.stage}]
        for leg in legs:
            self._credit.contradicted(leg.endpoint_id, leg.status)
            slot = self._inventory.slot_of(leg.endpoint_id)
            if slot is not None:
                self.health.failed(slot, entry.request.id, f"refused with {leg.status} what others serve", now_s)
        entry.failed_legs = tuple(leg for leg in entry.failed_legs if leg not in legs)

    # --- failure ------------------------------------------------------------------------------------------------

    def failed(self, entry: Entry, event: DispatchFailed, now_s: float) -> tuple[RejectReason, str] | None:
        """A leg has failed; its request is still booked there. Why the request is not sent again; None: it is."""
        leg, slot = self.count(entry, event, now_s)
        others = self._placer.exist_for(entry)
        final = self._final(entry, leg, now_s, others=others)
        return self._over_budget(entry, leg, slot, now_s) if final is None and others else final

    def count(self, entry: Entry, event: DispatchFailed | LegFailed, now_s: float) -> tuple[FailedLeg, int | None]:
        """A leg has failed: what it means for its endpoint. Returns the leg, and the endpoint's slot if it is known."""
        began = entry.generated_tokens > 0
        prefilling = entry.phase is Phase.PREFILLING
        leg = FailedLeg(event.endpoint_id, event.stage, event.fault, event.status, began, prefilling, now_s)
        entry.failed_legs += (leg,)
        slot = self._inventory.slot_of(event.endpoint_id)
        if slot is not None:
            if leg.fault is Fault.REFUSED:
                self.health.suspected(slot, now_s)
            else:
                fault = f"{leg.fault} ({leg.status})" if leg.status else str(leg.fault)
                self.health.failed(slot, entry.request.id, fault, now_s)
        if self.health.probes:
            self.health.left(entry.request.id)
        return leg, slot

    def unreachable(self, entry: Entry, endpoint_ids: Iterable[EndpointId], now_s: float) -> None:
        """These took no connection for it, and it has gone on elsewhere without us."""
        for endpoint_id in endpoint_ids:
            slot = self._inventory.slot_of(endpoint_id)
            if slot is not None:
                self.health.failed(slot, entry.request.id, Fault.UNREACHABLE, now_s)

    def _final(self, entry: Entry, leg: FailedLeg, now_s: float, *, others: bool) -> tuple[RejectReason, str] | None:
        """Why no other endpoint is asked, whatever the budget."""
        where = f"{leg.endpoint_id} ({leg.stage})"
        alike = [other for other in entry.failed_legs if (other.fault, other.status) == (leg.fault, leg.status)]
        only_refused = leg.fault is Fault.REFUSED and len(alike) == len(entry.failed_legs)
        if only_refused and len(alike) == 1 and self._credit.believes(leg.endpoint_id, leg.status, now_s):
            self._clear(alike)
            return RejectReason.UPSTREAM_REFUSED, f"{where} answered {leg.status}, as others did to requests before"
        last = entry.failures > self._max_retries or not others
        if only_refused and (last or (len(alike) > 1 and leg.status in _OF_CONTENT)):
            self._agree(alike, now_s)
            return RejectReason.UPSTREAM_REFUSED, f"{len(alike)} endpoints answered {leg.status}, the last {where}"
        if broken := self._also_broke(entry, leg):
            return RejectReason.BREAKS_ENGINES, f"{broken} and then {where} broke off when they got it"
        if entry.failures > self._max_retries:
            return RejectReason.UPSTREAM_FAILED, f"{entry.failures} attempts failed, the last on {where}"
        return None

    def _over_budget(
        self, entry: Entry, leg: FailedLeg, slot: int | None, now_s: float
    ) -> tuple[RejectReason, str] | None:
        if slot is None or leg.fault is Fault.UNREACHABLE or self.health.is_ejected(slot):
            return None  # no engine had work of it, or it had to leave
        in_flight = self._ledger.own
        overdraft = in_flight if any(each.began for each in entry.failed_legs) else 0  # its answer has begun
        if self.budget.left(in_flight, now_s) + overdraft <= 0:
            return RejectReason.RETRY_BUDGET, f"{leg.endpoint_id} failed ({leg.fault}), and retries are too many by now"
        self.budget.spend()
        return None

    def _also_broke(self, entry: Entry, leg: FailedLeg) -> EndpointId | None:
        """Another endpoint that broke off at the same work for it, before a token, and has given no sign of life since.

        What kills engines does so when the prompt is computed, or when it is decoded: two that fail at different work
        have fallen to something else.
        """
        if leg.fault not in _BREAKS or leg.began:
            return None
        for other in entry.failed_legs:
            alike = other.fault in _BREAKS and not other.began and other.prefilling is leg.prefilling
            if alike and other.endpoint_id != leg.endpoint_id:
                slot = self._inventory.slot_of(other.endpoint_id)
                if slot is None or self._silent_since(other.at_s, slot):
                    return other.endpoint_id
        return None

    def _silent_since(self, at_s: float, slot: int) -> bool:
        """Whether it is lost, or neither a scrape nor a leg of an endpoint that is scraped has succeeded since."""
        if slot in self._inventory.lost:
            return True
        return -np.inf < self._inventory.observed_at_s[slot] <= at_s and self.health.is_failing(slot)

    def _agree(self, legs: list[FailedLeg], now_s: float) -> None:
        """Several endpoints have given the same 4xx: it is the client's fault."""
        if len(legs) > 1:
            for leg in legs:
                self._credit.agreed(leg.endpoint_id, leg.status, now_s)
        self._clear(legs)

    def _clear(self, legs: list[FailedLeg]) -> None:
        for leg in legs:
            slot = self._inventory.slot_of(leg.endpoint_id)
            if slot is not None:
                self.health.cleared(slot)

    def retries_left(self, now_s: float) -> int:
        """How many retries the budget allows at the moment, 0 or more."""
        return max(0, self.budget.left(self._ledger.own, now_s))

    # --- endpoints ----------------------------------------------------------------------------------------------

    def forget(self, slot: int) -> None:
        """The slot is free for another endpoint."""
        endpoint_id = self._inventory.endpoint(slot).id
        self.health.forget(slot, endpoint_id)
        self._credit.forget(endpoint_id)
