"""The asyncio driver of the Director: passes events to it with the loop's time, and its effects to tickets and movers.

Both faces use it alike: `open` a request, await or poll its dispatch, report what happens, and `end` it exactly once.
A queue order or an admission policy asks no more of them: a waiting request is one whose dispatch has not come.
`Driver.abilities` lists what the policies in use ask beyond that. A face provides it in this way:

- `sets_priority`: send `Dispatch.priority` to the engines where it is not None.
- `cuts`: run `Dispatch.segments` in order. `segment_done` ends each but the last and returns the endpoint of the next;
  pass `computed=False` for a skipped segment. Open a request that cannot be cut with `Request.divisible` false.
- `moves`: pass a `Mover` to `open`. Every order to move a request without one is reported as failed at once.
- Legs: pass `open` what leaves a leg, and keep `life_signs` as `ballast_gateway.life_signs` says, if there is a watch.
- `beliefs`: fill in the prefix blocks and the traffic class of a `Request` as far as these beliefs read them.

Progress goes to the Director in batches: each report is kept with its own time for `GATHER_S` at most, and passed on
before any other event, so no decision misses what had happened. Where no policy follows progress, it is left out.

Everything runs on one event loop, so the Director needs no lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import Self, TypeAlias

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings, SettingsChanged
from ballast_core.model import Endpoint, EndpointId, Fault, Outcome, RejectReason, Request, RequestId, ShedCause, Stage
from ballast_core.model.effects import (
    Cancel,
    Dispatch,
    Effect,
    Handoff,
    Hold,
    Leave,
    Migrate,
    PulseChanged,
    Reject,
    WakeAt,
)
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointsHeard,
    Event,
    FirstToken,
    Migrated,
    MigrationFailed,
    PrefillDone,
    Progress,
    ProgressBatch,
    RequestArrived,
    RequestEnded,
    RequestRedirected,
    SegmentDone,
    TimerFired,
)
from ballast_gateway.life_signs import LifeSigns
from ballast_gateway.tickets import Canceller, Leaver, Mover, Rejected

_log = logging.getLogger(__name__)

_TICK_S = 1e-3
"""The shortest timer: uvloop counts whole milliseconds, so a shorter one would fire at once, again and again."""

GATHER_S = 4e-3
"""Reports of progress wait for further ones for at most this long, as exactly as the loop's timers are."""

WATCH_S = 0.2
"""How often the Director is told the signs of life."""

SAY_EVERY_S = 10.0
"""A listener that fails again and again is logged this often."""

EffectListener: TypeAlias = Callable[[Effect, float], None]
"""Called with every effect and its time: decision log, metrics. What it raises is logged."""


class Ticket:
    """One request in flight, as its face sees it (`tickets.Ticket`).

    Use it as a context manager: leaving the block ends the request. A request that `end` has not ended by then counts
    as failed, or as cancelled if the task was cancelled.
    """

    def __init__(self, driver: Driver, request: Request, mover: Mover | None = None) -> None:
        self.request = request
        self.mover = mover
        self.leaver: Leaver | None = None
        self.canceller: Canceller | None = None
        self.on_end: Callable[[int], None] | None = None
        """Called once with its output tokens, when it has ended or was rejected."""
        self._driver = driver
        self._effects: deque[Dispatch | Handoff | Reject] = deque()
        self._waiter: Callable[[], object] | None = None
        self._open = True

    def now_s(self) -> float:
        """The time on the driver's clock."""
        return self._driver.now_s()

    async def dispatched(self) -> Dispatch:
        """Wait for the (next) dispatch. Raises `Rejected`."""
        while (dispatch := self.poll()) is None:
            arrived = asyncio.Event()
            self.when_arrived(arrived.set)
            await arrived.wait()
        return dispatch

    def when_arrived(self, call: Callable[[], object]) -> None:
        """Call this once, soon, when the next dispatch or rejection is there to be polled."""
        self._waiter = call

    def poll(self) -> Dispatch | None:
        """The (next) dispatch, if it is there. Raises `Rejected`."""
        if not self._effects:
            return None
        match self._effects.popleft():
            case Dispatch() as dispatch:
                return dispatch
            case Reject() as reject:
                self._close()
                raise Rejected(reject)
            case Handoff():
                raise RuntimeError("a hand-off came before prefill was done")

    def prefill_done(self, *, computed: bool = True) -> Handoff:
        """Report the end of prefill; returns the hand-off, with the decode endpoint to use.

        `computed`: False if there was no prefill leg.
        """
        self._driver.feed(PrefillDone(self.request.id, computed))
        return self._handoff("prefill")

    def segment_done(self, generated_tokens: int, *, computed: bool = True) -> Handoff:
        """Report that a segment other than the last has reached its cut; returns the endpoint of the next one.

        `computed`: False if the segment was skipped.
        """
        self._driver.feed(SegmentDone(self.request.id, generated_tokens, computed))
        return self._handoff("a segment")

    def _handoff(self, after: str) -> Handoff:
        effect = self._effects.popleft() if self._effects else None
        if isinstance(effect, Handoff):
            return effect
        raise RuntimeError(f"no hand-off after {after}, but {effect!r}")

    def migrated(self, target: EndpointId) -> None:
        """Report that the decode runs on `target` now."""
        self._driver.feed(Migrated(self.request.id, target))

    def migration_failed(self, target: EndpointId) -> None:
        """Report that the decode stays on its endpoint."""
        self._driver.feed(MigrationFailed(self.request.id, target))

    def redirected(self, prefill: EndpointId | None, decode: EndpointId, unreachable: tuple[EndpointId, ...]) -> None:
        """Report that it runs elsewhere than it was dispatched, and which endpoints took no connection on its way."""
        self._driver.feed(RequestRedirected(self.request.id, prefill, decode, unreachable))

    def failed(self, stage: Stage, endpoint_id: EndpointId, fault: Fault, status: int = 0) -> None:
        """Report a failed leg, with the status of its answer if it gave one; then await the next dispatch."""
        self._driver.feed(DispatchFailed(self.request.id, stage, endpoint_id, fault, status))

    def first_token(self) -> None:
        """Report the first token."""
        self._driver.feed(FirstToken(self.request.id))

    def began(self) -> None:
        """Report that the prefill is over, at a time too coarse to learn from."""
        self._driver.feed(Progress(self.request.id, 1))

    def progress(self, generated_tokens: int) -> None:
        """Report the tokens generated so far."""
        self._driver.progressed(self.request.id, generated_tokens)

    def end(self, outcome: Outcome, output_tokens: int = 0, fault: Fault | None = None) -> None:
        """Report the end; further calls change nothing. `fault`: of its engine, unless `failed` has reported it."""
        if self._open:
            self._close(output_tokens)
            if outcome is Outcome.CANCELLED:
                self._driver.feed(ClientGone(self.request.id))
            else:
                self._driver.feed(RequestEnded(self.request.id, outcome, output_tokens, fault))

    def give_up(self, message: str) -> Rejected:
        """End it, as its face may keep it waiting no longer: listeners hear of it as of the Director's rejections."""
        reject = Reject(self.request.id, RejectReason.SATURATED, message, cause=ShedCause.WAITED)
        self.end(Outcome.CANCELLED)
        self._driver.tell_listeners(reject)
        return Rejected(reject)

    def take(self, effect: Dispatch | Handoff | Reject) -> None:
        """Deliver an effect. Called by the driver."""
        self._effects.append(effect)
        if self._waiter is not None:
            asyncio.get_running_loop().call_soon(self._waiter)  # the Director is at work: what follows may not feed it
            self._waiter = None

    def _close(self, output_tokens: int = 0) -> None:
        self._open = False
        self._driver.forget(self.request.id)
        told, self.on_end = self.on_end, None  # which knows who has this ticket
        if told is not None:
            told(output_tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        self.end(Outcome.CANCELLED if cancelled else Outcome.FAILED)


class Driver:
    """Feeds one Director. `clock` returns seconds; the default is the running loop's clock, so virtual time works.

    `on_decision_s` receives the Director's wall time, in seconds, for each event that had effects.
    """

    def __init__(
        self,
        director: Director,
        *,
        clock: Callable[[], float] | None = None,
        listeners: tuple[EffectListener, ...] = (),
        on_decision_s: Callable[[float], None] | None = None,
    ) -> None:
        self.director = director
        self.abilities = director.settings.abilities
        """What the policies in use ask of a face."""
        self._clock = clock
        self._listeners = listeners
        self._on_decision_s = on_decision_s
        self._tickets: dict[RequestId, Ticket] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._events: deque[Event | SettingsChanged] = deque()
        self._feeding = False
        self._follows_progress = director.settings.follows_progress
        self._reports: list[tuple[float, RequestId, int]] = []
        """Progress that the Director has not been told yet."""
        self._gathering: asyncio.TimerHandle | None = None
        self.life_signs = LifeSigns()
        """What legs and scrapes keep for the watch."""
        self._watching: asyncio.TimerHandle | None = None
        self.on_event: Callable[[Event | SettingsChanged], None] | None = None
        """Hears what the Director is about to be told of requests."""
        self.on_order: Callable[[Migrate | Leave], None] | None = None
        """Takes orders about requests of other gateways."""
        self._said_s = float("-inf")
        """When the log was last told that a listener failed."""

    def use(self, settings: DirectorSettings) -> None:
        """Let the Director decide by these from now on. Call it from no effect of its own. `abilities` follow."""
        self.feed(SettingsChanged(settings))
        self.abilities = settings.abilities
        self._follows_progress = settings.follows_progress

    def now_s(self) -> float:
        """The time of the next event."""
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()

    def open(self, request: Request, *, mover: Mover | None = None) -> Ticket:
        """Take a request in. Raises `ValueError` if its id is in flight already."""
        if self.in_flight(request.id):
            raise ValueError(f"request id {request.id!r} is in flight already: ids must be unique")
        ticket = self._tickets[request.id] = Ticket(self, request, mover)
        self.feed(RequestArrived(request))
        return ticket

    def addresses(self) -> set[str]:
        """Addresses of the endpoints that take new requests, of any role."""
        ready = [self.director.inventory.ready(stage) for stage in Stage]
        return {endpoint.address for each in ready for endpoint in each.endpoints}

    def endpoints(self) -> list[Endpoint]:
        """Those that are ready or draining, and those that are lost with requests."""
        inventory = self.director.inventory
        return [inventory.endpoint(slot) for slot in inventory.known_slots().tolist()]

    def in_flight(self, request_id: RequestId) -> bool:
        """Whether a request is known by this id: one that is open, or another gateway's."""
        return request_id in self._tickets or request_id in self.director.ledger.entries

    def ticket(self, request_id: RequestId) -> Ticket | None:
        """The ticket of an open request."""
        return self._tickets.get(request_id)

    def listen(self, listener: EffectListener) -> None:
        """Call this with every effect, too."""
        self._listeners = (*self._listeners, listener)

    def forget(self, request_id: RequestId) -> None:
        """Deliver no more effects to a request. Called by its ticket when it closes."""
        self._tickets.pop(request_id, None)

    def progressed(self, request_id: RequestId, generated_tokens: int) -> None:
        """Tell the Director of a request's progress: within `GATHER_S`, and before any later event."""
        if self._follows_progress:
            self._reports.append((self.now_s(), request_id, generated_tokens))
            if self._gathering is None:
                self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self._gathered)

    def feed(self, event: Event | SettingsChanged) -> None:
        """Pass an event to the Director and carry out its effects, then the events that these caused, in order."""
        if self._feeding:
            self._events.append(event)
            return
        self._feeding = True
        try:
            self._feed(event)
            while self._events:
                self._feed(self._events.popleft())
        finally:
            self._feeding = False

    def _feed(self, event: Event | SettingsChanged) -> None:
        if self._reports:
            self.tell()
        if self.on_event is not None:
            self.on_event(event)
        now_s = self.now_s()
        began_s = perf_counter()
        effects = self.director.on_event(event, now_s)
        if not effects:
            return
        if self._on_decision_s is not None:
            self._on_decision_s(perf_counter() - began_s)
        for effect in effects:
            self.tell_listeners(effect, now_s)
            self._carry_out(effect, now_s)

    def tell_listeners(self, effect: Effect, now_s: float | None = None) -> None:
        """They hear of an effect. Called by tickets, too."""
        at_s = self.now_s() if now_s is None else now_s
        for listen in self._listeners:
            try:
                listen(effect, at_s)
            except Exception:
                self._listener_failed(at_s)

    def _listener_failed(self, now_s: float) -> None:
        """What only listens keeps no effect from being carried out."""
        if now_s >= self._said_s + SAY_EVERY_S:
            self._said_s = now_s
            _log.exception("a listener of the Director's effects failed")

    def tell(self) -> None:
        """Pass on what has been gathered of progress. It has no effects."""
        if self._reports:
            batch, self._reports = ProgressBatch(self._reports), []
            if self.on_event is not None:
                self.on_event(batch)
            self.director.on_event(batch, self.now_s())

    def _gathered(self) -> None:
        self._gathering = None
        self.tell()

    def watch(self) -> None:
        """Tell the Director the signs of life from now on, if its settings want it to watch."""
        if self.director.watch is not None:
            loop = asyncio.get_running_loop()
            self._watch_next(loop, self.now_s() - loop.time())

    def _watch_next(self, loop: asyncio.AbstractEventLoop, ahead_s: float) -> None:
        """`ahead_s`: the Director's clock less the loop's, always the same lest a sign of life seem new."""
        due_s = loop.time() + WATCH_S
        self._watching = loop.call_at(due_s, self._watched, loop, due_s, ahead_s)

    def _watched(self, loop: asyncio.AbstractEventLoop, due_s: float, ahead_s: float) -> None:
        now_s = loop.time()
        if now_s - due_s > WATCH_S / 2:
            self.life_signs.forgive(now_s - due_s)
        self.feed(EndpointsHeard(self.life_signs.told(ahead_s, self.director.inventory.known(), now_s)))
        self._watch_next(loop, ahead_s)

    def close(self) -> None:
        """Pass on what has been gathered, and drop pending timers."""
        if self._watching is not None:
            self._watching.cancel()
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathered()
        for handle in self._timers:
            handle.cancel()
        self._timers.clear()

    def _carry_out(self, effect: Effect, now_s: float) -> None:
        match effect:
            case Dispatch() | Handoff() | Reject():
                ticket = self._tickets.get(effect.request_id)
                if ticket is not None:
                    ticket.take(effect)
            case Migrate():
                self._migrate(effect)
            case WakeAt():
                self._wake_in(max(_TICK_S, effect.at_s - now_s))
            case Leave():
                ticket = self._tickets.get(effect.request_id)
                if ticket is None:
                    self._order(effect)
                elif ticket.leaver is not None:
                    ticket.leaver(effect)
            case Hold() | Cancel() | PulseChanged():
                pass  # `dispatched()` waits anyway, and the face closes the legs when the client goes

    def _migrate(self, effect: Migrate) -> None:
        ticket = self._tickets.get(effect.request_id)
        if ticket is None:
            self._order(effect)  # or it has ended, and its end has been reported
        elif ticket.mover is None:
            self.feed(MigrationFailed(effect.request_id, effect.target.id))
        else:
            ticket.mover(effect)

    def _order(self, effect: Migrate | Leave) -> None:
        entry = self.director.ledger.get(effect.request_id)
        if self.on_order is not None and entry is not None and entry.adopted:
            self.on_order(effect)

    def _wake_in(self, delay_s: float) -> None:
        def fire() -> None:
            self._timers.discard(handle)
            self.feed(TimerFired())

        handle = asyncio.get_running_loop().call_later(delay_s, fire)
        self._timers.add(handle)
