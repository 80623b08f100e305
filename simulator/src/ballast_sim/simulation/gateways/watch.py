"""Which endpoints one gateway takes to be there, by the rules of the real one (`ballast_gateway.observe.fleet`)."""

from __future__ import annotations

from ballast_core.model import EndpointId
from ballast_core.model.events import EndpointDraining, EndpointLost, Event


class Watch:
    """Turns what scrapes and discovery say into events. Every endpoint is taken to have answered once."""

    def __init__(self, failures_until_lost: int) -> None:
        """An endpoint is lost after so many failed scrapes in a row."""
        self._failures_until_lost = failures_until_lost
        self._failures: dict[EndpointId, int] = {}
        self._draining: set[EndpointId] = set()

    def takes(self, endpoint_id: EndpointId) -> bool:
        """A scrape succeeded. Whether its answer counts: an endpoint that was lost is there again, unless it drains."""
        failures = self._failures.pop(endpoint_id, 0)
        if failures >= self._failures_until_lost and endpoint_id in self._draining:
            self._failures[endpoint_id] = failures
            return False
        return True

    def failed(self, endpoint_id: EndpointId) -> Event | None:
        """A scrape failed."""
        failures = self._failures[endpoint_id] = self._failures.get(endpoint_id, 0) + 1
        return EndpointLost(endpoint_id) if failures == self._failures_until_lost else None

    def drains(self, endpoint_id: EndpointId) -> Event | None:
        """Discovery says that it is to get nothing new."""
        if endpoint_id in self._draining:
            return None
        self._draining.add(endpoint_id)
        return EndpointDraining(endpoint_id)
