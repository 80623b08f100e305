"""The endpoints that discovery and scrapes report, and the events that follow for the Director.

Discovery names the endpoints that should serve; scrapes show which of them answer. The rule is
`ballast_core.state.liveness`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ballast_core.model import Endpoint, EndpointId, Observation
from ballast_core.model.events import EndpointLost, EndpointObserved, Event, ModelsObserved
from ballast_core.model.served_models import ServedModels
from ballast_core.state.liveness import Liveness, news
from ballast_gateway.observe.exposition import AdapterGauges
from ballast_gateway.observe.model_card import ModelCard


@dataclass(slots=True)
class Member:
    """One discovered endpoint."""

    endpoint: Endpoint
    incarnation: str
    """A pod's uid: two endpoints of one name differ in it."""
    liveness: Liveness = field(default_factory=Liveness)
    tried: bool = False
    """It has been scraped, with success or without."""
    observation: Observation | None = None
    problem: str = ""
    """Why the last scrape failed; empty if it did not."""
    card: ModelCard | None = None
    """What it says of its models; None until asked."""
    pod_api: str = ""
    """Address of its agent; empty if it has none."""
    asked_s: float = 0.0
    """When it was asked for that last."""
    adapters: AdapterGauges | None = None
    """The adapters at work there at the last scrape; None where it has no LoRA."""

    told: ServedModels | None = None
    """What the Director knows of its models; None after it was lost."""

    @property
    def models(self) -> ServedModels | None:
        """What it serves; None while it has not said."""
        card, work = self.card, self.adapters
        if card is None:
            return None
        if work is None:
            return ServedModels(frozenset(card.names), card.adapters, roots=card.roots)
        running, waiting, most = work.running, work.waiting, work.most_running
        return ServedModels(frozenset(card.names), card.adapters, running, waiting, most, card.roots)

    @property
    def state(self) -> str:
        """ready, draining, unreachable (scrapes fail) or pending (not yet scraped)."""
        if self.liveness.draining:
            return "draining"
        if self.liveness.usable:
            return "ready"
        return "unreachable" if self.tried else "pending"


class Fleet:
    """Passes endpoint events to `feed`. Calls `on_change` when members have come or gone.

    `on_scraped` gets each observation of a usable endpoint before the Director does, `on_lost` each endpoint that is
    lost after it has been told.
    """

    def __init__(
        self,
        feed: Callable[[Event], None],
        *,
        failures_until_lost: int,
        on_change: Callable[[], None] = lambda: None,
        on_scraped: Callable[[EndpointId, Observation], None] = lambda endpoint_id, observation: None,
        on_lost: Callable[[EndpointId], None] = lambda endpoint_id: None,
    ) -> None:
        self.members: dict[EndpointId, Member] = {}
        self.synced = False
        """Discovery has given its first complete answer."""
        self.on_change = on_change
        self.on_scraped = on_scraped
        self.on_lost = on_lost
        self._feed = feed
        self.failures_until_lost = failures_until_lost
        self._settled = False

    @property
    def settled(self) -> bool:
        """Discovery is synced, and each of its first endpoints has been scraped once. Stays true."""
        self._settled = self._settled or (self.synced and all(member.tried for member in self.members.values()))
        return self._settled

    def max_model_len(self, model: str) -> int | None:
        """Tokens of prompt and output that every endpoint with this model takes that has said its limit; None if none
        has."""
        cards = [
            member.card for member in self.members.values() if member.card is not None and model in member.card.names
        ]
        return min((card.max_model_len for card in cards if card.max_model_len is not None), default=None)

    def serving(self, model: str) -> list[str]:
        """Addresses of the endpoints that take requests and serve this model, as far as they have said what they
        serve."""
        usable = [member for member in self.members.values() if member.liveness.usable]
        return [
            member.endpoint.address
            for member in usable
            if member.card is None or not member.card.names or model in member.card.names
        ]

    def ready(
        self, endpoint: Endpoint, *, incarnation: str = "", proven: bool, pod_api: str = "", draining: bool = False
    ) -> None:
        """Discovery reports this endpoint as ready. Unless `proven`, it must first answer a scrape.

        `draining`: one that appears takes no new requests.
        """
        member = self.members.get(endpoint.id)
        moved = member is not None and (
            member.incarnation != incarnation or member.endpoint.address != endpoint.address
        )
        if moved:
            self.gone(endpoint.id)
            member = None
        if member is None:
            member = self.members[endpoint.id] = Member(endpoint, incarnation, pod_api=pod_api)
            if proven:
                member.liveness = member.liveness.proven()
                self._feed(EndpointObserved(endpoint, draining=draining))
            if draining:
                member.liveness = member.liveness.drained()
            self.on_change()
            return
        if member.endpoint != endpoint:
            member.endpoint = endpoint
            if member.liveness.usable:
                self._feed(EndpointObserved(endpoint))
        if member.pod_api != pod_api:
            member.pod_api = pod_api
            self.on_change()

    def draining(self, endpoint_id: EndpointId) -> None:
        """It gets no new requests and finishes those that it has."""
        member = self.members.get(endpoint_id)
        if member is not None:
            self._change(member, member.liveness.drained())

    def restored(self, endpoint_id: EndpointId) -> None:
        """It takes new requests again, if it drained."""
        member = self.members.get(endpoint_id)
        if member is not None and member.liveness.draining:
            self._change(member, member.liveness.restored())

    def gone(self, endpoint_id: EndpointId) -> None:
        """Discovery no longer reports it, or reports it as not ready."""
        member = self.members.pop(endpoint_id, None)
        if member is not None:
            self._change(member, member.liveness.gone())
            self.on_change()

    def keep_only(self, endpoint_ids: set[EndpointId]) -> None:
        """Discovery has listed all endpoints: all others are gone."""
        for endpoint_id in [known for known in self.members if known not in endpoint_ids]:
            self.gone(endpoint_id)

    def scraped(self, member: Member, observation: Observation) -> None:
        """A scrape succeeded."""
        member.tried, member.problem = True, ""
        member.observation = observation
        if self._is_current(member):
            member.liveness = member.liveness.answered()
            if member.liveness.usable:
                self.on_scraped(member.endpoint.id, observation)
                self._feed(EndpointObserved(member.endpoint, observation))
                models = member.models
                if models is not None and (member.adapters is not None or models != member.told):
                    member.told = models
                    self._feed(ModelsObserved(member.endpoint.id, models))

    def loaded_adapters(self) -> frozenset[str]:
        """The adapters that usable endpoints have loaded."""
        cards = [member.card for member in self.members.values() if member.liveness.usable]
        return frozenset(name for card in cards if card is not None for name in card.adapters)

    def scrape_failed(self, member: Member, problem: str) -> None:
        """A scrape failed; after enough in a row the endpoint is lost until one succeeds."""
        member.tried, member.problem = True, problem
        if self._is_current(member):
            self._change(member, member.liveness.failed(self.failures_until_lost))

    def _is_current(self, member: Member) -> bool:
        """Whether the scraped endpoint is still a member: it may have gone or been replaced during the scrape."""
        return self.members.get(member.endpoint.id) is member

    def _change(self, member: Member, after: Liveness) -> None:
        event = news(member.liveness, after, member.endpoint.id)
        member.liveness = after
        if event is not None:
            member.told = None
            self._feed(event)
            if isinstance(event, EndpointLost):
                self.on_lost(event.endpoint_id)
