"""What the Director wants done. A driver carries effects out in the order given and reports back by events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ballast_core.model import Endpoint, RejectReason, RequestId
from ballast_core.model.segments import Segment
from ballast_core.model.traces import PlacementTrace, RoundTrace


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
    segments: tuple[Segment, ...] = ()
    """How a partition policy cut it, in order; the first one's end is reported by `SegmentDone`. Empty: not cut."""
    priority: int | None = None
    """For engines that schedule by priority, lower first; None: the request's own."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """Prefill has ended, or a segment: go on, on this endpoint."""

    request_id: RequestId
    decode: Endpoint
    traces: tuple[PlacementTrace, ...] = ()


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move a running decode: copy its KV while it goes on, then continue on `target` at the exact next token.

    Report `Migrated` when it runs there, or `MigrationFailed` when it stays where it is.
    """

    request_id: RequestId
    source: Endpoint
    target: Endpoint
    trace: RoundTrace | None = None
    """The round that chose it."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop whatever legs of the request still run."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `TimerFired` once at this time, or soon after. One that is sent too soon is answered by the same effect."""

    at_s: float


Effect: TypeAlias = Hold | Reject | Dispatch | Handoff | Migrate | Cancel | WakeAt
