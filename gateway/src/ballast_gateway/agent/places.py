"""The endpoints that an agent knows: its own engine, and the others by the pickers' inventory."""

from __future__ import annotations

from collections.abc import Container
from zlib import crc32

from ballast_core.model import STAGE_ROLES, Endpoint, EndpointId, Stage
from ballast_gateway.podapi.messages import Inventory, Listed
from ballast_gateway.podapi.plan import Place


class Places:
    """One agent's. Its own engine is reached at `engine`, without the way through itself."""

    def __init__(self, *, name: str, address: str, engine: str) -> None:
        """`name` and `address`: of this endpoint, as pickers know it."""
        self.name = name
        self.address = address
        self._engine = engine
        self._listed: dict[str, Listed] = {}

    def take(self, inventory: Inventory) -> None:
        """The fleet is this now."""
        self._listed = {listed.id: listed for listed in inventory.endpoints}

    def ids(self) -> set[EndpointId]:
        """Those of all known endpoints."""
        return {EndpointId(self.name), *map(EndpointId, self._listed)}

    def is_own(self, place: Place) -> bool:
        """Whether it is the endpoint that this agent sits beside."""
        return place.id == self.name or place.address == self.address

    def endpoint(self, place: Place) -> Endpoint:
        """Where a leg is sent."""
        return Endpoint(EndpointId(place.id), self._engine if self.is_own(place) else place.address, place.role)

    def find(self, endpoint_id: str) -> Listed | None:
        """An endpoint of the inventory."""
        return self._listed.get(endpoint_id)

    def takes(self, place: Place) -> bool:
        """Whether it takes requests, as far as is known: a plan may be newer than the inventory."""
        listed = self._listed.get(place.id)
        return listed is None or listed.usable

    def others(self, stage: Stage, key: str, without: Container[str]) -> list[Place]:
        """Usable endpoints for a stage, in an order of each request's own, so that many requests spread."""
        usable = [
            listed.place()
            for listed in self._listed.values()
            if listed.usable and listed.role in STAGE_ROLES[stage] and listed.id not in without
        ]
        return sorted(usable, key=lambda place: (crc32(f"{key} {place.id}".encode()), place.id))
