"""What gateways answered when they were asked what it takes to empty each engine pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ballast_api.load_report import EndpointLoad, LoadReport, by_endpoint


@dataclass(frozen=True, slots=True)
class Loads:
    """One round of asking."""

    by_pod: Mapping[str, EndpointLoad] = field(default_factory=dict)
    """All that some gateway knows, by name of the pod."""
    silent: tuple[str, ...] = ()
    """Ready gateways that did not answer, each with its reason: what they hold is not known."""
    lost: int = 0
    """Requests that failed on draining pods, at all gateways since each one's start."""

    @property
    def complete(self) -> bool:
        """Whether no gateway was silent; without any gateway nothing is sent to anybody."""
        return not self.silent


def loads_of(reports: Sequence[LoadReport], silent: Sequence[str]) -> Loads:
    """The answers of all gateways together."""
    return Loads(by_endpoint(reports), tuple(silent), sum(each.lost for each in reports))
