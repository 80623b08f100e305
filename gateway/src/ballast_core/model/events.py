"""Everything that may happen. A driver passes each event to `Director.on_event` together with its time.

The events of a request: `RequestArrived`, then (proxy face) `PrefillDone`, `FirstToken`, `Progress`..., and exactly one
of `RequestEnded` or `ClientGone`. `DispatchFailed` may come at any point before the end; the
answer is another dispatch or a rejection. A request of another gateway begins with `RequestAdopted`; nothing answers
its events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ballast_core.model import Endpoint, EndpointId, Fault, Observation, Outcome, Request, RequestId, Stage
from ballast_core.model.kv_reports import KvReport
from ballast_core.model.life_signs import LifeSign
from ballast_core.model.observations import Observations
from ballast_core.model.served_models import ServedModels
from ballast_core.values import value


@value
class RequestArrived:
    """A client's request has been read and parsed."""

    request: Request


@value
class RequestAdopted:
    """Another gateway has dispatched this request: it is booked as it runs, whatever admission says.

    It is no arrival here: limits of requests in flight, retry budget and queue count this gateway's own. Nothing is
    decided about it but moves and legs to leave. Endpoints that are not known: nothing changes; of one that decodes,
    who computed its prompt may be gone. A request that was adopted before is booked anew where it is elsewhere by now;
    else only its prompt's blocks are learned.
    """

    request: Request
    decode: EndpointId
    prefill: EndpointId | None = None
    """Where the prompt is computed, if not on the decode endpoint."""
    decoding: bool = False
    """Its prompt has been computed."""
    generated_tokens: int = 0
    """Output tokens so far."""


@value
class PrefillDone:
    """The prefill leg has answered; the KV cache is ready to be pulled."""

    request_id: RequestId
    computed: bool = True
    """False: there was no prefill leg, because the decode endpoint must compute the whole prompt."""
    bound: bool = False
    """Who holds it follows its plan, and has it on its decode endpoint already: no hand-off is asked for."""


@value
class LegFailed:
    """A leg failed of a request whose holder goes on by itself. What becomes of the request is told by other events."""

    request_id: RequestId
    stage: Stage
    endpoint_id: EndpointId
    fault: Fault = Fault.BROKE
    status: int = 0
    """The status of the engine's answer; 0 if it gave none."""


@value
class MoveOrdered:
    """Another gateway has ordered to move this decode: `Migrated` or `MigrationFailed` follows, as for a `Migrate`."""

    request_id: RequestId
    target: EndpointId


@value
class RequestMoved:
    """It decodes on this endpoint now, as another gateway has ordered."""

    request_id: RequestId
    target: EndpointId


@value
class SegmentDone:
    """A segment other than the last has reached its cut; the answer is a `Handoff` to the next segment's endpoint."""

    request_id: RequestId
    generated_tokens: int
    computed: bool = True
    """False: the segment was skipped before it computed anything; the next segment computes its tokens too."""


@value
class Migrated:
    """A `Migrate` is done: the request decodes on its target."""

    request_id: RequestId
    target: EndpointId


@value
class MigrationFailed:
    """A `Migrate` was given up: the request continues on its source."""

    request_id: RequestId
    target: EndpointId


@value
class FirstToken:
    """The decode leg has produced the first token for the client."""

    request_id: RequestId


@value
class Progress:
    """The decode leg has produced this many tokens so far."""

    request_id: RequestId
    generated_tokens: int


@value
class ProgressBatch:
    """`Progress` of many requests, each with its own time, which may lie in the past but not before the last event.

    It dispatches no waiting request: capacity that it frees is used at the next event.
    """

    reports: Sequence[tuple[float, RequestId, int]]
    """(time in seconds, request, output tokens so far), ordered by time."""


@value
class RequestRedirected:
    """A request that is dispatched runs on these endpoints now, by no decision of this Director: its proxy went to a
    fall-back, or whoever holds its stream says so. It prefills or decodes as before. A plan of its cuts, and a move of
    it that was under way, are over.

    If one of the endpoints is not known, the request is on the books of none: where it was is free of it, and it counts
    nowhere until the next such event or its end. It stays in flight, what it had generated is kept, and whatever else
    is reported of it meanwhile changes no book; a `PrefillDone` then gets no `Handoff`. A request that waits stays as
    it is.
    """

    request_id: RequestId
    prefill: EndpointId | None
    """None: `decode` prefills it. Of no meaning once it decodes."""
    decode: EndpointId
    unreachable: tuple[EndpointId, ...] = ()
    """Endpoints that took no connection for it on its way there."""


@value
class LengthPredicted:
    """A predictor, in the engine or beside it, expects this many further output tokens of a request."""

    request_id: RequestId
    remaining_tokens: float


@value
class DispatchFailed:
    """A leg failed, and another endpoint may succeed: with a fresh start, or with the tokens so far replayed.

    Also for an answer of 4xx, which every endpoint may give: the Director decides whether another one is asked.
    """

    request_id: RequestId
    stage: Stage
    endpoint_id: EndpointId
    fault: Fault = Fault.BROKE
    status: int = 0
    """The status of the engine's answer; 0 if it gave none."""


@value
class RequestEnded:
    """The last byte has been sent to the client, or the stream broke after its first token."""

    request_id: RequestId
    outcome: Outcome
    output_tokens: int = 0
    fault: Fault | None = None
    """What its engine did to a request of outcome FAILED, unless a `DispatchFailed` has told it."""


@value
class ClientGone:
    """The client closed its connection before the request ended."""

    request_id: RequestId


@value
class EndpointObserved:
    """An endpoint is ready; with an observation if its metrics have been scraped."""

    endpoint: Endpoint
    observation: Observation | None = None
    draining: bool = False
    """It appears as one that takes no new requests."""


@value
class EndpointsScraped:
    """Metrics of many endpoints, each at most once: the same as one `EndpointObserved` after another."""

    answers: Observations


@value
class EndpointDraining:
    """An endpoint finishes its requests and takes no new ones."""

    endpoint_id: EndpointId


@value
class EndpointRestored:
    """An endpoint that was draining takes new requests again."""

    endpoint_id: EndpointId


@value
class EndpointLost:
    """An endpoint is gone or not ready. Its requests end by events of their own."""

    endpoint_id: EndpointId


@value
class EndpointsHeard:
    """The signs of life of every endpoint that was asked for anything, several times a second, if there is a watch."""

    signs: Sequence[LifeSign]


@value
class CacheReportsBegun:
    """An endpoint's reports of what one data-parallel rank caches begin, or begin anew after a gap or a restart."""

    endpoint_id: EndpointId
    rank: int
    most_blocks: int
    """What a rank may hold; if it reports more, it is not believed."""
    problem: str = ""
    """Why they do not tell all that it holds; empty if they do."""


@value
class CacheReported:
    """KV events of one data-parallel rank, in order and without gaps."""

    endpoint_id: EndpointId
    rank: int
    reports: Sequence[KvReport]


@value
class CacheReportsEnded:
    """An endpoint reports no more what it caches."""

    endpoint_id: EndpointId


@value
class LeadershipChanged:
    """Whether this Director runs the rounds of moves of its fleet from now on. At first it does."""

    leads: bool


@value
class ModelsObserved:
    """An endpoint that is known says what it serves, and which adapters are at work there."""

    endpoint_id: EndpointId
    models: ServedModels


@value
class TimerFired:
    """The time of a `WakeAt` has come; one event for each `WakeAt`."""


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
    | RequestRedirected
    | LengthPredicted
    | LegFailed
    | MoveOrdered
    | RequestMoved
)
"""Events of one request in flight. For a request that is not in flight they change nothing."""

Event: TypeAlias = (
    RequestArrived
    | RequestAdopted
    | RequestEvent
    | ProgressBatch
    | EndpointObserved
    | EndpointsScraped
    | EndpointDraining
    | EndpointRestored
    | EndpointLost
    | EndpointsHeard
    | CacheReportsBegun
    | CacheReported
    | CacheReportsEnded
    | LeadershipChanged
    | ModelsObserved
    | TimerFired
)
