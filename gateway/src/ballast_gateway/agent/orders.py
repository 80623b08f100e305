"""What pickers order by the pod API: found among what is held, and carried out, or refused with its reason."""

from __future__ import annotations

from ballast_core.model import STAGE_ROLES, EndpointId, RequestId, Stage
from ballast_core.model.effects import Leave, Migrate
from ballast_gateway.agent.face import AgentFace, HeldRequest
from ballast_gateway.podapi import refusals
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.messages import CancelOrder, Draining, Inventory, LeaveOrder, MoveOrder
from ballast_gateway.podapi.plan import key_of
from ballast_gateway.proxy.life import MOVING, State


class AgentOrders:
    """The agent behind the pod API (`podapi.server.Holder`)."""

    def __init__(self, face: AgentFace, feed: Feed) -> None:
        self._face = face
        self._feed = feed

    def ready(self) -> bool:
        """Whether plans are taken."""
        return not self._face.draining

    def move(self, order: MoveOrder) -> None:
        """Begin to move a decode."""
        held = self._find(order.request_id, order.by)
        listed = self._face.places.find(order.target)
        if listed is None:
            raise refusals.unknown_target(order.target)
        ticket, state = held.ticket, held.run.life.state
        decode = ticket.choosing.decode
        if not listed.usable or listed.role not in STAGE_ROLES[Stage.DECODE] or listed.id == decode.id:
            raise refusals.unusable_target(order.target)
        if state in MOVING:
            raise refusals.moving()
        if ticket.mover is None or state is not State.FLOWING:
            raise refusals.not_movable()
        places = self._face.places
        ticket.choosing.order(listed.place())
        ticket.mover(Migrate(RequestId(ticket.request.id), places.endpoint(decode), places.endpoint(listed.place())))

    def leave(self, order: LeaveOrder) -> None:
        """Leave a silent engine."""
        ticket = self._find(order.request_id, order.by).ticket
        failures = ticket.failures
        if ticket.leaver is not None:
            reason = order.reason or "a gateway takes it for hung"
            ticket.leaver(Leave(RequestId(ticket.request.id), EndpointId(order.endpoint), reason, order.alone))
        if ticket.failures == failures:
            raise refusals.not_there(order.endpoint)

    def cancel(self, order: CancelOrder) -> None:
        """Stop a request."""
        self._find(order.request_id, order.by).run.cancel()

    def drain(self, on: bool) -> None:
        """Take no new plans, or take them again."""
        if self._face.draining is not on:
            self._face.draining = on
            self._feed.say(Draining(on=on))

    def take_inventory(self, inventory: Inventory) -> None:
        """The fleet is this now."""
        self._face.places.take(inventory)

    def _find(self, request_id: str, by: str) -> HeldRequest:
        held = self._face.held
        if by:
            found = [held[key] for key in (key_of(by, request_id),) if key in held]
        else:
            found = [each for each in held.values() if each.ticket.request.id == request_id]
        if not found:
            raise refusals.unknown_request(request_id)
        if len(found) > 1:
            raise refusals.ambiguous(request_id)
        return found[0]
