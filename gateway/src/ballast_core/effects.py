"""What the Director wants done. A driver carries effects out in the order given and reports back by events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ballast_core.decision import PlacementTrace
from ballast_core.model import Endpoint, RejectReason, RequestId


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the request; a later effect of the same id says how it goes on."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer the client with an error: `reason` is machine-readable, `message` is for people."""

    request_id: RequestId
    reason: RejectReason
    message: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Start the request (again): prefill on `prefill`, then decode on `decode`.

    `prefill` is None when one endpoint does both without a hand-off. Under late binding the decode endpoint is
    provisional: `Handoff` names the final one.
    """

    request_id: RequestId
    prefill: Endpoint | None
    decode: Endpoint
    traces: tuple[PlacementTrace, ...] = ()


@dataclass(frozen=True, slots=True)
class Handoff:
    """Prefill has ended: decode on this endpoint."""

    request_id: RequestId
    decode: Endpoint
    traces: tuple[PlacementTrace, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop whatever legs of the request still run."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `TimerFired` at this time, or soon after."""

    at_s: float


Effect: TypeAlias = Hold | Reject | Dispatch | Handoff | Cancel | WakeAt
