"""What the Director wants done. A driver carries out effects in the order given and reports back by events."""

from __future__ import annotations

from typing import TypeAlias

from ballast_core.model import Endpoint, EndpointId, RejectReason, RequestId, ShedCause
from ballast_core.model.life_signs import Pulse
from ballast_core.model.segments import Segment
from ballast_core.model.traces import PlacementTrace, RoundTrace
from ballast_core.values import value


@value
class Hold:
    """Keep the request waiting; a later effect with the same id dispatches or rejects it."""

    request_id: RequestId


@value
class Reject:
    """Answer the client with an error: `reason` is for machines, `message` is for people."""

    request_id: RequestId
    reason: RejectReason
    message: str
    retry_after_s: float = 1.0
    """When the client should come back: expected, with a jitter of its own."""
    cause: ShedCause | None = None
    """What made it one request too many, if it is rejected as saturated."""


@value
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
    """The segments into which a partition policy cut it, in order; a cut reached is a `SegmentDone`. Empty: not cut."""
    priority: int | None = None
    """For engines that schedule by priority, lower first; None: the request's own priority."""
    fallbacks: tuple[Endpoint, ...] = ()
    """Where it may be decoded instead, best first, should `decode` not take it. As many as the settings ask for at
    most; none of a cut request. Nothing is booked there: `RequestRedirected` tells that it went to one of them."""
    prefill_fallbacks: tuple[Endpoint, ...] = ()
    """The same for `prefill`."""


@value
class Handoff:
    """The prefill, or a segment other than the last, has ended: continue on this endpoint."""

    request_id: RequestId
    decode: Endpoint
    traces: tuple[PlacementTrace, ...] = ()


@value
class Migrate:
    """Migrate a running decode: copy its KV cache while it runs, then continue on `target` at the exact next token.

    Report `Migrated` when it runs there, or `MigrationFailed` when it stays on `source`.
    """

    request_id: RequestId
    source: Endpoint
    target: Endpoint
    trace: RoundTrace | None = None
    """The round that chose this move."""


@value
class Cancel:
    """Stop every leg of the request that still runs."""

    request_id: RequestId


@value
class Leave:
    """Leave the request's leg on this endpoint, which is silent: report `DispatchFailed`, and go on elsewhere.

    A leg whose request could not go on elsewhere may stay: to break it off would help nobody.
    """

    request_id: RequestId
    endpoint_id: EndpointId
    reason: str
    """In words, for the log."""
    alone: bool = False
    """The endpoint serves others, and only this request is late. It stays if nothing is due from its leg: where its
    answer comes whole, which may just be long, and where its client is slow."""


@value
class PulseChanged:
    """Tell people and metrics: the watch thinks otherwise of this endpoint now."""

    endpoint: Endpoint
    pulse: Pulse
    reason: str


@value
class WakeAt:
    """Send `TimerFired` once, at this time or soon after. If it comes too early, the same effect is returned again."""

    at_s: float


Effect: TypeAlias = Hold | Reject | Dispatch | Handoff | Migrate | Cancel | Leave | PulseChanged | WakeAt
