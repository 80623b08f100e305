"""What may happen. Each event is handed to `Director.on_event` together with the time at which it happened.

The life of a request: `RequestArrived`, then (proxy face) `PrefillDone`, `FirstToken`, `Progress`..., and exactly one
of `RequestEnded` or `ClientGone`. `DispatchFailed` may come at any point before the first token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ballast_core.model import Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Stage


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A client's request has been read and parsed."""

    request: Request


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The prefill leg has answered; its KV cache waits to be pulled."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class SegmentDone:
    """A segment other than the last has reached its cut; the answer is a `Handoff` to the next one's endpoint."""

    request_id: RequestId
    generated_tokens: int
    computed: bool = True
    """False: it was skipped before anything of it was done, and the next one has all of it to do."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """A `Migrate` is done: the request decodes on its target."""

    request_id: RequestId
    target: EndpointId


@dataclass(frozen=True, slots=True)
class MigrationFailed:
    """A `Migrate` was given up: the request goes on where it was."""

    request_id: RequestId
    target: EndpointId


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The decode leg has produced the first token for the client."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Progress:
    """The decode leg has produced this many tokens so far."""

    request_id: RequestId
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class ProgressBatch:
    """`Progress` of many requests, each at its own time, which may lie in the past but never before the last event.

    No waiting request is dispatched by it: the capacity that it may free is seen at the next event.
    """

    reports: Iterable[tuple[float, RequestId, int]]
    """(time in seconds, request, output tokens so far), in order of time."""


@dataclass(frozen=True, slots=True)
class LengthPredicted:
    """A predictor, in the engine or beside it, foresees so many more output tokens of a request than it has by now."""

    request_id: RequestId
    remaining_tokens: float


@dataclass(frozen=True, slots=True)
class DispatchFailed:
    """A leg failed before the client got a token, in a way that another endpoint may mend.

    The connection broke, or the endpoint was too busy or going down. An answer that any endpoint would give (a bad
    request) is no failure of the dispatch: the driver passes it on and reports `RequestEnded`.
    """

    request_id: RequestId
    stage: Stage
    endpoint_id: EndpointId


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """The last byte has gone to the client, or the stream broke after its first token."""

    request_id: RequestId
    outcome: Outcome
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client closed its connection before the request ended."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class EndpointObserved:
    """An endpoint is ready; with an observation if its metrics were scraped."""

    endpoint: Endpoint
    observation: Observation | None = None


@dataclass(frozen=True, slots=True)
class EndpointsScraped:
    """Metrics of many endpoints, each named once: `EndpointObserved` for one after the other."""

    answers: Sequence[tuple[Endpoint, Observation]]


@dataclass(frozen=True, slots=True)
class EndpointDraining:
    """An endpoint finishes what it has and takes nothing new."""

    endpoint_id: EndpointId


@dataclass(frozen=True, slots=True)
class EndpointLost:
    """An endpoint is gone or not ready. What runs there ends by its own events."""

    endpoint_id: EndpointId


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A time that a `WakeAt` asked for has come; one for each `WakeAt`."""


RequestEvent: TypeAlias = (
    PrefillDone
    | SegmentDone
    | FirstToken
    | Progress
    | DispatchFailed
    | RequestEnded
    | ClientGone
    | Migrated
    | MigrationFailed
    | LengthPredicted
)
"""Events of one request that is in flight; of any other request they change nothing."""

Event: TypeAlias = (
    RequestArrived
    | RequestEvent
    | ProgressBatch
    | EndpointObserved
    | EndpointsScraped
    | EndpointDraining
    | EndpointLost
    | TimerFired
)
