"""A gateway's view of its fleet: who is followed, what the others are told, and orders to those who hold streams."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from ballast_core.model import EndpointId, RequestId
from ballast_core.model.effects import Dispatch, Leave, Migrate
from ballast_core.model.events import LeadershipChanged, MigrationFailed
from ballast_core.state.inventory import Readiness
from ballast_gateway.driver import Driver, Ticket
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.messages import BadMessage, Inventory, LeaveOrder, Listed, Message, MoveOrder
from ballast_gateway.podapi.plan import Part, Place, Plan, sign
from ballast_gateway.view.book import Book, OwnRequest, Share
from ballast_gateway.view.calls import CallFailed, Calls
from ballast_gateway.view.leading import least_leads
from ballast_gateway.view.publisher import Publisher
from ballast_gateway.view.subscription import Subscription

_log = logging.getLogger(__name__)

TICK_S: Final = 0.25
HOPELESS_S: Final = 5.0
"""A source that has not spoken for so long since it became known is not waited for."""
_AGENT, _PEER = "agent/", "gateway/"
_MOST_ANSWER_BYTES: Final = 1024 * 1024
"""Of what a gateway is asked for people's sake."""


class FleetView:
    """Follows every agent and every other gateway, for one driver. Times are seconds on the loop's clock.

    `leases`: leadership is decided elsewhere, by `lead`; else by the least name.
    """

    def __init__(
        self,
        me: str,
        driver: Driver,
        publisher: Publisher,
        calls: Calls,
        tokens: Callable[[], tuple[bytes, ...]],
        *,
        incarnation: str,
        loop: asyncio.AbstractEventLoop,
        max_retries: int,
        alone: bool = True,
        leases: bool = False,
        synced: Callable[[], bool] = lambda: True,
        on_engine: Callable[[said.Engine], None] = lambda engine: None,
        share_of: Callable[[str], Share | None] = lambda tenant: None,
    ) -> None:
        """`incarnation`: what others hear with the name `me`. `alone`: no other gateways are to be expected, so this
        one leads from the start. `synced`: whether discovery has named all endpoints, and so all agents. `share_of`:
        tenants by name, where their shares are bounded."""
        self.me = me
        self._incarnation = incarnation
        self.leads = alone
        self.everywhere = False
        """Whether every endpoint that decodes has an agent that takes plans."""
        self.book = Book(me, driver.director, driver.feed, on_engine=on_engine, on_signs=self._signs, share_of=share_of)
        self.publisher = publisher
        self._driver = driver
        self._calls = calls
        self._tokens = tokens
        self._loop = loop
        self.max_retries = max_retries
        self._leases = leases
        self._subscriptions: dict[str, Subscription] = {}
        self._mine: set[str] = set()
        """Addresses of peers that turned out to be this gateway."""
        self._peers: tuple[str, ...] = ()
        self._also: dict[str, str] = {}
        """Peers that turned out to be one which is heard at another address: as which."""
        self._leaving: set[str] = set()
        """Agents that are heard only until what they hold has ended."""
        self._known: set[EndpointId] = set()
        self._inventory = b""
        self._given: dict[str, bytes] = {}
        """By source: the inventory that its agent has."""
        self._giving: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers_known = alone
        self._synced = synced
        self._settled = False
        driver.on_event = publisher.event
        driver.on_order = self.order
        driver.feed(LeadershipChanged(self.leads))
        self._ticker: asyncio.TimerHandle | None = None
        self._tick()

    # --- who is followed --------------------------------------------------------------------------------------------

    def follow_agents(self, addresses: Mapping[EndpointId, str]) -> None:
        """These endpoints have agents, at these addresses. Those of others are heard until nothing runs there: a pod
        that is not ready serves what it has."""
        wanted = {f"{_AGENT}{endpoint_id}": address for endpoint_id, address in addresses.items()}
        followed = {name: one.address for name, one in self._subscriptions.items() if name.startswith(_AGENT)}
        self._leaving = {name for name in followed.keys() - wanted.keys() if self._claims(name)}
        self._follow(_AGENT, {name: followed[name] for name in self._leaving} | wanted)

    def _claims(self, name: str) -> bool:
        source = self.book.sources.get(name)
        return source is not None and bool(source.keys)

    def follow_peers(self, addresses: Iterable[str]) -> None:
        """These are the gateways of the fleet; this one may be among them."""
        self._peers_known = True
        self._peers = tuple(addresses)
        self._follow_each_once()

    def _follow_each_once(self) -> None:
        """Of several addresses of one gateway, such as a worker's on loopback and its host's, one is followed."""
        wanted = {f"{_PEER}{address}": address for address in self._peers if address not in self._mine}
        self._also = {name: heard for name, heard in self._also.items() if name in wanted and heard in wanted}
        self._follow(_PEER, {name: address for name, address in wanted.items() if name not in self._also})

    def _follow(self, kind: str, wanted: Mapping[str, str]) -> None:
        for name, subscription in list(self._subscriptions.items()):
            if name.startswith(kind) and wanted.get(name) != subscription.address:
                self._drop(name)
        for name, address in wanted.items():
            if name not in self._subscriptions:
                self._subscriptions[name] = Subscription(
                    name, address, loop=self._loop, calls=self._calls, on_message=self._take, on_lost=self._lost
                )

    def _drop(self, name: str) -> None:
        self._subscriptions.pop(name).close()
        self.book.forget(name)
        self._given.pop(name, None)

    def waits_for(self) -> list[str]:
        """Sources whose snapshot may still come: the view is not whole without them. Once empty, always empty."""
        self._catch_up()
        if self._settled:
            return []
        now_s = self._loop.time()
        missing = [
            name for name, one in self._subscriptions.items() if not one.connected and now_s - one.since_s < HOPELESS_S
        ]
        if not self._synced():
            missing.append("the list of endpoints")
        if not self._peers_known:
            missing.append("the list of gateways")
        self._settled = not missing
        return missing

    def close(self) -> None:
        """Follow nobody any more."""
        if self._ticker is not None:
            self._ticker.cancel()
        for subscription in self._subscriptions.values():
            subscription.close()
        for task in self._tasks:
            task.cancel()

    def report(self) -> dict[str, Any]:
        """For the admin API: who leads, and every source with the age of what it said last."""
        now_s = self._loop.time()
        return {
            "name": self.me,
            "leads": self.leads,
            "published": len(self.publisher),
            "followed": len(self.book),
            "sources": [self._report(one, now_s) for _, one in sorted(self._subscriptions.items())],
        }

    def _report(self, one: Subscription, now_s: float) -> dict[str, Any]:
        source = self.book.sources.get(one.name)
        return {
            "source": one.name,
            "address": one.address,
            "connected": one.connected,
            "age_s": None if one.heard_s is None else round(now_s - one.heard_s, 3),
            "problem": "" if one.connected else one.problem,
            "holder": "" if source is None else source.holder,
            "draining": source is not None and source.draining,
            "requests": 0 if source is None else len(source.keys),
        }

    def connected(self) -> tuple[int, int]:
        """How many agents and how many other gateways are heard."""
        names = [name for name, one in self._subscriptions.items() if one.connected]
        agents = sum(name.startswith(_AGENT) for name in names)
        return agents, len(names) - agents

    def gateways(self) -> dict[str, str]:
        """Addresses of the other gateways that are heard, by name."""
        sources, heard = self.book.sources, [one for one in self._subscriptions.values() if one.connected]
        known = [one for one in heard if one.name.startswith(_PEER) and one.name in sources]
        return {sources[one.name].holder: one.address for one in known}

    def peers(self) -> int:
        """How many other gateways are followed, heard or not."""
        return sum(name.startswith(_PEER) for name in self._subscriptions)

    async def ask(self, gateway: str, target: str) -> bytes | None:
        """What another gateway answers to a GET; None if it is not heard, has no such thing or does not answer."""
        address = self.gateways().get(gateway)
        if address is None:
            return None
        try:
            answer = await self._calls.call(address, "GET", target, limit_bytes=_MOST_ANSWER_BYTES)
        except CallFailed as error:
            _log.debug("another gateway does not answer", extra={"gateway": gateway, "problem": str(error)})
            return None
        return answer.body if answer.status == 200 else None

    def oldest_s(self) -> float:
        """Seconds since the most silent source that is heard said anything; 0 without one."""
        now_s = self._loop.time()
        heard_s = [one.heard_s for one in self._subscriptions.values() if one.heard_s is not None]
        return now_s - min(heard_s, default=now_s)

    # --- what they say ----------------------------------------------------------------------------------------------

    def _take(self, name: str, message: Message) -> None:
        if isinstance(message, said.Snapshot):
            if message.holder == self.me and name.startswith(_PEER):
                address = name.removeprefix(_PEER)
                if message.incarnation != self._incarnation:
                    raise BadMessage(f"it is called {self.me}, as this gateway is: give each host a name of its own")
                self._mine.add(address)
                self._loop.call_soon(self._leave, name)
                return
            if (heard := self._heard_as(name, message)) is not None:
                self._also[name] = heard
                self._loop.call_soon(self._leave, name)
                return
            self._given.pop(name, None)
        elif name.removeprefix(_PEER) in self._mine or name in self._also:
            return
        self._book(name, message)
        if isinstance(message, said.Snapshot | said.Part) and not message.more:
            self.everywhere = self._has_agents()
            self._elect()
            self._give_inventory()

    def _book(self, name: str, message: Message) -> None:
        """Whatever goes wrong over a line ends the connection that it came over, and nothing else."""
        try:
            self.book.take(name, message, self._driver.now_s())
        except BadMessage:
            raise
        except Exception as error:
            _log.exception("a line of a source cannot be booked", extra={"source": name})
            raise BadMessage(f"a line cannot be booked: {error!r}") from error

    def _heard_as(self, name: str, snapshot: said.Snapshot) -> str | None:
        """By which other name a peer is heard."""
        if not name.startswith(_PEER):
            return None
        them = (snapshot.holder, snapshot.incarnation)
        others = ((other, one) for other, one in self.book.sources.items() if other.startswith(_PEER) and other != name)
        return next((other for other, one in others if one.is_there and (one.holder, one.incarnation) == them), None)

    def _leave(self, name: str) -> None:
        if name in self._subscriptions:
            self._drop(name)

    def _lost(self, name: str) -> None:
        self.book.lost(name, self._driver.now_s())
        self._driver.life_signs.heard(name, {}, self._loop.time())
        if name in self._also.values():
            self._also = {other: heard for other, heard in self._also.items() if heard != name}
            self._follow_each_once()
        self.everywhere = self._has_agents()
        self._elect()

    def _signs(self, name: str, signs: said.Signs) -> None:
        self._driver.life_signs.heard(name, signs.engines, self._loop.time())

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)  # first of all: a fault of ours must not be the last
        self.book.passes(self._driver.now_s())
        self._part()
        self._catch_up()
        self.everywhere = self._has_agents()
        self._inventory = self._listed()
        self._give_inventory()
        self._elect()

    def _part(self) -> None:
        """From agents that were heard only for what they had."""
        for name in [name for name in self._leaving if not self._claims(name)]:
            self._leaving.discard(name)
            self._drop(name)

    def _catch_up(self) -> None:
        """Book what runs on endpoints that have become known."""
        known = self._driver.director.inventory.known()
        if known != self._known:
            self._known = known
            self.book.endpoints_changed()

    # --- leading ----------------------------------------------------------------------------------------------------

    def lead(self, leads: bool) -> None:
        """Whether this gateway leads from now on."""
        if leads is not self.leads:
            self.leads = leads
            _log.info("this gateway %s", "leads" if leads else "leads no more", extra={"gateway": self.me})
            self._driver.feed(LeadershipChanged(leads))

    def _elect(self) -> None:
        if not self._leases and self._peers_known and not self.waits_for():
            peers = [one.holder for one in self.book.sources.values() if one.connected and not one.agent]
            self.lead(least_leads(self.me, peers))

    # --- plans ------------------------------------------------------------------------------------------------------

    def has_agent(self, endpoint_id: EndpointId) -> bool:
        """Whether an agent there takes plans now."""
        source = self.book.sources.get(f"{_AGENT}{endpoint_id}")
        return source is not None and source.connected and not source.draining

    def _has_agents(self) -> bool:
        inventory = self._driver.director.inventory
        endpoints = [inventory.endpoint(slot) for slot in inventory.known_slots().tolist()]
        return any(one.role != "prefill" for one in endpoints) and all(
            one.role == "prefill" or self.has_agent(one.id) for one in endpoints
        )

    def plan(self, ticket: Ticket, dispatch: Dispatch) -> str:
        """The header that tells the decode endpoint's agent what was decided."""
        request = ticket.request
        plan = Plan(
            id=request.id,
            by=self.me,
            decode=Place.of(dispatch.decode),
            prefill=None if dispatch.prefill is None else Place.of(dispatch.prefill),
            segments=tuple(map(Part.of, dispatch.segments)),
            fallbacks=tuple(map(Place.of, dispatch.fallbacks)),
            prefill_fallbacks=tuple(map(Place.of, dispatch.prefill_fallbacks)),
            priority=dispatch.priority,
            prompt_tokens=request.prompt_tokens,
            max_output_tokens=request.max_output_tokens,
            model=request.model,
            traffic_class=request.traffic_class,
            tenant=request.tenant,
            max_retries=self.max_retries,
        )
        return sign(plan, self._tokens()[0], time.time())

    def expect(self, request_id: RequestId, own: OwnRequest) -> None:
        """Holders will speak of this request of ours."""
        self.book.own[request_id] = own

    def forget(self, request_id: RequestId) -> None:
        """They will not any more."""
        self.book.own.pop(request_id, None)

    def release(self, request_id: RequestId) -> None:
        """The others hear of it from its holder, or count it by scrapes."""
        self.publisher.release(request_id)

    # --- orders -----------------------------------------------------------------------------------------------------

    def order(self, order: Migrate | Leave) -> None:
        """Ask the holder of a request to move it, or to leave a leg. About others' requests, only while this leads."""
        held = self.book.holder_of(order.request_id)
        if held is None or not (self.leads or held[1].by == self.me):
            self._unmoved(order)
            return
        source, row = held
        subscription = self._subscriptions.get(source.name)
        if subscription is None:
            self._unmoved(order)
            return
        self._start(self._ask(subscription.address, order, row))

    async def _ask(self, address: str, order: Migrate | Leave, row: said.Row) -> None:
        if isinstance(order, Migrate):
            target, body = said.MIGRATIONS, msgspec.json.encode(MoveOrder(row.id, order.target.id, row.by))
        else:
            leave = LeaveOrder(row.id, order.endpoint_id, order.reason, row.by, order.alone)
            target, body = said.LEAVE, msgspec.json.encode(leave)
        try:
            answer = await self._calls.call(address, "POST", target, body)
            problem = "" if answer.status == 202 else f"answered {answer.status}: {answer.body[:200]!r}"
        except CallFailed as error:
            problem = str(error)
        if problem:
            extra = {"holder": address, "request_id": row.id, "by": row.by, "problem": problem}
            _log.info("an order was not followed", extra=extra)
            self._unmoved(order)

    def _unmoved(self, order: Migrate | Leave) -> None:
        if isinstance(order, Migrate):
            self._driver.feed(MigrationFailed(order.request_id, order.target.id))

    # --- inventory --------------------------------------------------------------------------------------------------

    def _listed(self) -> bytes:
        inventory = self._driver.director.inventory
        listed = []
        for slot in sorted(inventory.known_slots().tolist()):
            endpoint = inventory.endpoint(slot)
            doubtful = slot in inventory.shunned or slot in inventory.suspected or slot in inventory.on_trial
            usable = inventory.readiness(slot) is Readiness.READY and not doubtful
            listed.append(Listed.of(Place.of(endpoint), usable=usable))
        return msgspec.json.encode(Inventory(tuple(listed)))

    def _give_inventory(self) -> None:
        for name, source in self.book.sources.items():
            if source.agent and source.connected and name not in self._giving:
                subscription = self._subscriptions.get(name)
                if subscription is not None and self._given.get(name) != self._inventory:
                    self._giving.add(name)
                    self._start(self._give(name, subscription.address, self._inventory))

    async def _give(self, name: str, address: str, body: bytes) -> None:
        try:
            answer = await self._calls.call(address, "PUT", said.INVENTORY, body)
        except CallFailed as error:
            _log.info("an agent did not take the inventory", extra={"agent": address, "problem": str(error)})
            return
        finally:
            self._giving.discard(name)
        self._given[name] = body
        if answer.status != 204:
            _log.warning("an agent refuses the inventory", extra={"agent": address, "status": answer.status})

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
