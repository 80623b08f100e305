"""Which policies go together, and in which fleet. Combinations without effect are refused (docs/policies.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ballast_core.model import Role
from ballast_core.policies.suite import Suite

NOTHING_WAITS: Final = (
    "orders nothing: without an admission that bounds, no request waits in the gateway, and engines get no priority; "
    "add an admission of type bounded, or set engine_priority where the queue order has it"
)
NOTHING_CUTS: Final = (
    "cuts nothing: only endpoints that both prefill and decode take parts of a request, and there is none; "
    "add flexible endpoints, or leave the partition out"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a suite: `part` is the part to change."""

    part: str
    reason: str


def problems(suite: Suite, endpoints: Mapping[Role, int] | None = None) -> list[Problem]:
    """Combinations without effect: in any fleet, and, with `endpoints` (number by role), in that fleet."""
    found = []
    if suite.queue is not None and suite.queue.type != "fcfs" and not _is_felt(suite):
        found.append(Problem("queue", NOTHING_WAITS))
    if suite.partition is not None and endpoints is not None and not endpoints.get(Role.FLEXIBLE):
        found.append(Problem("partition", NOTHING_CUTS))
    return found


def _is_felt(suite: Suite) -> bool:
    """Whether a queue order has any effect."""
    bounded = suite.admission is not None and suite.admission.bounded
    return bounded or (suite.queue is not None and suite.queue.engine_priority)


def remarks(suite: Suite, endpoints: Mapping[Role, int]) -> list[Problem]:
    """What has no effect with this number of endpoints by role: reported, but not refused."""
    flexible, in_all = endpoints.get(Role.FLEXIBLE, 0), sum(endpoints.values())
    found = []
    if suite.partition is not None and flexible == 1:
        found.append(Problem("partition", "cuts nothing while there is only one flexible endpoint"))
    if suite.partition is not None and 0 < flexible < in_all:
        found.append(
            Problem("partition", "endpoints that only prefill or decode are used only while no flexible one is ready")
        )
    if suite.rescheduling is not None and flexible + endpoints.get(Role.DECODE, 0) < 2:
        found.append(Problem("rescheduling", "moves nothing while there is only one endpoint that decodes"))
    return found
