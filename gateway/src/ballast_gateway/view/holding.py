"""What the pod API of a gateway does: as the holder of its own streams (proxy face), or of none (picker face)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ballast_core.model import EndpointId, RequestId
from ballast_core.model.effects import Leave, Migrate
from ballast_core.model.events import MoveOrdered
from ballast_core.state.inventory import Readiness
from ballast_gateway.driver import Driver, Ticket
from ballast_gateway.podapi import refusals
from ballast_gateway.podapi.messages import CancelOrder, Inventory, LeaveOrder, MoveOrder
from ballast_gateway.podapi.refusals import OrderRefused

_log = logging.getLogger(__name__)


class GatewayHolder:
    """Orders of other gateways about this one's streams."""

    def __init__(
        self,
        me: str,
        driver: Driver,
        *,
        holds: bool,
        ready: Callable[[], bool],
        drain: Callable[[bool], None],
    ) -> None:
        """`holds`: whether it holds any streams."""
        self._me = me
        self._driver = driver
        self._holds = holds
        self._drain = drain
        self.ready = ready

    def _held(self, request_id: str, by: str) -> Ticket:
        ours = self._holds and by in ("", self._me)
        ticket = self._driver.ticket(RequestId(request_id)) if ours else None
        if ticket is None or ticket.leaver is None:
            raise refusals.unknown_request(request_id)
        return ticket

    def move(self, order: MoveOrder) -> None:
        """Move a stream, as if this gateway's own Director had ordered it."""
        ticket = self._held(order.request_id, order.by)
        director, target = self._driver.director, EndpointId(order.target)
        inventory, entry = director.inventory, director.ledger.get(ticket.request.id)
        slot = inventory.slot_of(target)
        if slot is None:
            raise refusals.unknown_target(order.target)
        if inventory.readiness(slot) is not Readiness.READY or inventory.endpoint(slot).role == "prefill":
            raise refusals.unusable_target(order.target)
        if entry is not None and entry.reservation is not None:
            raise refusals.moving()
        if ticket.mover is None or entry is None or entry.decode_slot is None or not ticket.request.movable:
            raise refusals.not_movable()
        source = inventory.endpoint(entry.decode_slot)
        self._driver.feed(MoveOrdered(ticket.request.id, target))
        if entry.reservation is None:
            raise refusals.not_movable()
        ticket.mover(Migrate(ticket.request.id, source, inventory.endpoint(slot)))

    def leave(self, order: LeaveOrder) -> None:
        """Leave a leg on a silent engine."""
        ticket = self._held(order.request_id, order.by)
        director = self._driver.director
        entry = director.ledger.get(ticket.request.id)
        slots = () if entry is None else (entry.prefill_slot, entry.decode_slot)
        there = director.inventory.slot_of(EndpointId(order.endpoint))
        if there is None or there not in slots or ticket.leaver is None:
            raise refusals.not_there(order.endpoint)
        reason = order.reason or "as another gateway ordered"
        ticket.leaver(Leave(ticket.request.id, EndpointId(order.endpoint), reason, order.alone))

    def cancel(self, order: CancelOrder) -> None:
        """Stop a request, and tell its client."""
        ticket = self._held(order.request_id, order.by)
        if ticket.canceller is None:
            raise refusals.unknown_request(order.request_id)
        ticket.canceller()

    def drain(self, on: bool) -> None:
        """Report not ready, or ready again; what runs goes on."""
        _log.info("asked to drain" if on else "asked to drain no more")
        self._drain(on)

    def take_inventory(self, inventory: Inventory) -> None:
        """Refused: a gateway finds endpoints by itself."""
        raise OrderRefused(refusals.no_own_list())
