"""Endpoints, their roles, the stages that they serve, and observations of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

EndpointId = NewType("EndpointId", str)
"""Names one serving target for as long as it lives: the pod's name, or the entry's name in an endpoints file."""


class Role(StrEnum):
    """Which stages an endpoint may serve."""

    PREFILL = "prefill"
    DECODE = "decode"
    FLEXIBLE = "flexible"
    """Either stage, or both stages of one request without a hand-off."""


class Stage(StrEnum):
    """The two stages of a request. Each has a placement of its own."""

    PREFILL = "prefill"
    DECODE = "decode"


STAGE_ROLES: dict[Stage, frozenset[Role]] = {
    Stage.PREFILL: frozenset({Role.PREFILL, Role.FLEXIBLE}),
    Stage.DECODE: frozenset({Role.DECODE, Role.FLEXIBLE}),
}
"""Which roles may serve each stage."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One serving target."""

    id: EndpointId
    address: str
    """`host:port`; an IPv6 host stands in brackets."""
    role: Role
    pool: str = ""
    """The pool of the ServingPool that it belongs to."""
    profile: str = ""
    """Name of its HardwareProfile; empty if unknown."""
    revision: str = ""
    """What the KV compatibility of its engine depends on, as a hash; empty if unknown. Endpoints of different
    revisions exchange no KV blocks."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The metrics of an endpoint at one scrape, from vLLM's gauges of the same names."""

    observed_at_s: float
    running: int
    waiting: int
    kv_usage_ratio: float = 0.0
    preemptions: int = 0
