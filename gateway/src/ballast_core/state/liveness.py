"""When an endpoint counts as present: the rule that turns discovery and scrapes into endpoint events."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ballast_core.model import EndpointId
from ballast_core.model.events import EndpointDraining, EndpointLost, EndpointRestored


@dataclass(frozen=True, slots=True)
class Liveness:
    """The health of one endpoint. Each method returns the state after the event that it is named for.

    An endpoint is usable from its first sign of life. It is lost after some failed scrapes in a row, and usable again
    after one success, unless it drains.
    """

    usable: bool = False
    """The Director has been given the endpoint, and it has not been taken back."""
    draining: bool = False
    """It gets no new requests, and once lost it stays lost, unless the drain is taken back."""
    failures: int = 0
    """Failed scrapes in a row."""

    def proven(self) -> Liveness:
        """Discovery vouches for it: a readiness probe has passed."""
        return replace(self, usable=True)

    def answered(self) -> Liveness:
        """A scrape succeeded."""
        if self.usable and not self.failures:
            return self
        return replace(self, usable=self.usable or not self.draining, failures=0)

    def failed(self, failures_until_lost: int) -> Liveness:
        """A scrape failed; `failures_until_lost` of them in a row lose the endpoint."""
        failures = self.failures + 1
        return replace(self, usable=self.usable and failures < failures_until_lost, failures=failures)

    def drained(self) -> Liveness:
        """Discovery wants it to finish its requests and take no new ones."""
        return replace(self, draining=True)

    def restored(self) -> Liveness:
        """The drain is taken back. One that was lost meanwhile is usable from its next sign of life."""
        return replace(self, draining=False)

    def gone(self) -> Liveness:
        """Discovery no longer has it."""
        return replace(self, usable=False)


def news(
    before: Liveness, after: Liveness, endpoint_id: EndpointId
) -> EndpointLost | EndpointDraining | EndpointRestored | None:
    """The event for the Director after this change; None if there is none, or if an observation reports it."""
    if before.usable and not after.usable:
        return EndpointLost(endpoint_id)
    if after.draining and not before.draining:
        return EndpointDraining(endpoint_id)
    if before.draining and not after.draining and after.usable:
        return EndpointRestored(endpoint_id)
    return None
