"""The endpoints as discovery and scrapes know them, and the events that tell the Director.

Discovery says what should serve; scrapes say whether it answers. An endpoint is offered to the Director while both
agree, and taken back when either does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ballast_core.model import Endpoint, EndpointId, Observation
from ballast_core.model.events import EndpointDraining, EndpointLost, EndpointObserved, Event


@dataclass(slots=True)
class Member:
    """One endpoint that discovery knows."""

    endpoint: Endpoint
    incarnation: str
    """Tells two endpoints of one name apart: a pod's uid."""
    offered: bool = False
    """The Director may use it."""
    draining: bool = False
    tried: bool = False
    """It has been scraped, with success or without."""
    failures: int = 0
    """Failed scrapes in a row."""
    observation: Observation | None = None
    problem: str = ""
    """Why the last scrape failed; empty if it did not."""

    @property
    def state(self) -> str:
        """ready, draining, unreachable (scrapes fail) or pending (not yet scraped)."""
        if self.draining:
            return "draining"
        if self.offered:
            return "ready"
        return "unreachable" if self.tried else "pending"


class Fleet:
    """Feeds endpoint events. `on_change` is called when members came or went."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        *,
        failures_until_lost: int,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.members: dict[EndpointId, Member] = {}
        self.synced = False
        """Discovery has given its first complete answer."""
        self.on_change = on_change
        self._feed = feed
        self._failures_until_lost = failures_until_lost
        self._settled = False

    @property
    def settled(self) -> bool:
        """Discovery is synced, and each of its first endpoints has been scraped once. Stays true."""
        self._settled = self._settled or (self.synced and all(member.tried for member in self.members.values()))
        return self._settled

    def ready(self, endpoint: Endpoint, *, incarnation: str = "", proven: bool) -> None:
        """Discovery has this endpoint. Unless `proven`, it must first answer a scrape."""
        member = self.members.get(endpoint.id)
        moved = member is not None and (
            member.incarnation != incarnation or member.endpoint.address != endpoint.address
        )
        if moved:
            self.gone(endpoint.id)
            member = None
        if member is None:
            member = self.members[endpoint.id] = Member(endpoint, incarnation)
            if proven:
                self._offer(member, None)
            self.on_change()
        elif member.endpoint != endpoint:
            member.endpoint = endpoint
            if member.offered:
                self._feed(EndpointObserved(endpoint))

    def draining(self, endpoint_id: EndpointId) -> None:
        """It gets no new requests; those that it has go on."""
        member = self.members.get(endpoint_id)
        if member is not None and not member.draining:
            member.draining = True
            self._feed(EndpointDraining(endpoint_id))

    def gone(self, endpoint_id: EndpointId) -> None:
        """Discovery has it no more, or says that it is not ready."""
        member = self.members.pop(endpoint_id, None)
        if member is not None:
            self._take_back(member)
            self.on_change()

    def keep_only(self, endpoint_ids: set[EndpointId]) -> None:
        """A complete answer of discovery: all others are gone."""
        for endpoint_id in [known for known in self.members if known not in endpoint_ids]:
            self.gone(endpoint_id)

    def scraped(self, member: Member, observation: Observation) -> None:
        """A scrape succeeded."""
        member.tried, member.failures, member.problem = True, 0, ""
        member.observation = observation
        if self.members.get(member.endpoint.id) is not member:
            return
        if member.offered:
            self._feed(EndpointObserved(member.endpoint, observation))
        elif not member.draining:
            self._offer(member, observation)

    def scrape_failed(self, member: Member, problem: str) -> None:
        """A scrape failed; after enough in a row the endpoint is taken back until one succeeds."""
        member.tried, member.problem = True, problem
        member.failures += 1
        if member.failures >= self._failures_until_lost and self.members.get(member.endpoint.id) is member:
            self._take_back(member)

    def _offer(self, member: Member, observation: Observation | None) -> None:
        member.offered = True
        self._feed(EndpointObserved(member.endpoint, observation))

    def _take_back(self, member: Member) -> None:
        if member.offered:
            member.offered = False
            self._feed(EndpointLost(member.endpoint.id))
