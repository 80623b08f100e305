"""Which endpoints one simulated gateway counts as usable, by the gateway's rule `ballast_core.state.liveness`."""

from __future__ import annotations

from ballast_core.model import EndpointId
from ballast_core.model.events import Event
from ballast_core.model.observations import Observations
from ballast_core.state.liveness import Liveness, news

_FOUND = Liveness(usable=True)


class Watch:
    """Turns scrapes and discovery into events. Every endpoint counts as proven from the start."""

    def __init__(self, failures_until_lost: int) -> None:
        """An endpoint is lost after so many failed scrapes in a row."""
        self._failures_until_lost = failures_until_lost
        self._known: dict[EndpointId, Liveness] = {}
        """Only endpoints for which something else than a successful scrape was reported."""

    def taken(self, answers: Observations) -> Observations:
        """Scrapes succeeded. Returns the observations that count: not those of lost endpoints that drain."""
        if not self._known:
            return answers
        kept = [row for row, endpoint in enumerate(answers.endpoints) if self.takes(endpoint.id)]
        return answers if len(kept) == len(answers) else answers.take(kept)

    def takes(self, endpoint_id: EndpointId) -> bool:
        """A scrape succeeded. Returns whether its observation counts."""
        known = self._known.get(endpoint_id)
        if known is None:
            return True
        after = self._known[endpoint_id] = known.answered()
        return after.usable

    def failed(self, endpoint_id: EndpointId) -> Event | None:
        """A scrape failed."""
        return self._change(endpoint_id, self._of(endpoint_id).failed(self._failures_until_lost))

    def drains(self, endpoint_id: EndpointId) -> Event | None:
        """Discovery reports that the endpoint drains."""
        return self._change(endpoint_id, self._of(endpoint_id).drained())

    def _of(self, endpoint_id: EndpointId) -> Liveness:
        return self._known.get(endpoint_id, _FOUND)

    def _change(self, endpoint_id: EndpointId, after: Liveness) -> Event | None:
        before = self._of(endpoint_id)
        self._known[endpoint_id] = after
        return news(before, after, endpoint_id)
