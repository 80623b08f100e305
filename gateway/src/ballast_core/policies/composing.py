"""Which policies go together, and in which fleet. What makes no sense is refused with the reason (docs/policies.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ballast_core.model import Role
from ballast_core.policies.suite import Suite

NOTHING_WAITS: Final = (
    "orders nobody: without an admission that bounds no request waits in the gateway, and the engines are not told; "
    "add an admission of type bounded, or set engine_priority where the queue order has it"
)
NOBODY_CUTS: Final = (
    "cuts nothing: only endpoints that both prefill and decode take parts of a request, and there is none; "
    "add flexible endpoints, or leave the partition out"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a suite; `part` is what to change."""

    part: str
    reason: str


def problems(suite: Suite, endpoints: Mapping[Role, int] | None = None) -> list[Problem]:
    """What makes no sense, in itself and, where `endpoints` (number by role) is known, in such a fleet."""
    found = []
    if suite.queue is not None and suite.queue.type != "fcfs" and not _is_felt(suite):
        found.append(Problem("queue", NOTHING_WAITS))
    if suite.partition is not None and endpoints is not None and not endpoints.get(Role.FLEXIBLE):
        found.append(Problem("partition", NOBODY_CUTS))
    return found


def _is_felt(suite: Suite) -> bool:
    """Whether a queue order has any effect."""
    bounded = suite.admission is not None and suite.admission.bounded
    return bounded or (suite.queue is not None and suite.queue.engine_priority)


def remarks(suite: Suite, endpoints: Mapping[Role, int]) -> list[Problem]:
    """What has no effect while the fleet has so many endpoints by role: worth a word, nothing to refuse."""
    flexible, in_all = endpoints.get(Role.FLEXIBLE, 0), sum(endpoints.values())
    found = []
    if suite.partition is not None and flexible == 1:
        found.append(Problem("partition", "cuts nothing while there is one flexible endpoint only"))
    if suite.partition is not None and 0 < flexible < in_all:
        found.append(
            Problem("partition", "endpoints that only prefill or decode are used while no flexible one is ready only")
        )
    if suite.rescheduling is not None and flexible + endpoints.get(Role.DECODE, 0) < 2:
        found.append(Problem("rescheduling", "moves nothing while there is one endpoint only that decodes"))
    return found
