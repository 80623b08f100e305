"""The account of the fleet's requests: every source's lines in, events of the Director out.

A *source* is a connection to an agent or to another gateway. A request may be claimed by several: by the gateway that
dispatched it, until that one releases it, and by the agent that holds it. It is booked once, under its key, from the
first claim on, and leaves with its end, or when nobody claims it any more. Once an agent holds it, that one's word
counts alone: of two agents (Envoy tries a request again elsewhere) the one to which it came last. A request of this
gateway is booked under its own id already: for those the holder's word goes to the ticket (`OwnRequest`), too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, Fault, Outcome, Request, RequestId, Stage
from ballast_core.model.events import (
    Event,
    FirstToken,
    LegFailed,
    Migrated,
    MigrationFailed,
    PrefillDone,
    Progress,
    ProgressBatch,
    RequestAdopted,
    RequestEnded,
    RequestMoved,
    RequestRedirected,
)
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.messages import BadMessage, Message, Row
from ballast_gateway.records import HOLDER_LOST

GONE_S: Final = 5.0
"""A source that is away for so long: nothing that it claimed is believed any more."""
HANDING_OVER_S: Final = 1.0
"""A gateway releases what a holder has. The holder's own word may take another way, and so much longer."""
PAID_S: Final = 60.0
"""A tenant's tokens are of a minute: the prompt of a request that began before that counts no more."""
MOST_ROWS: Final = 100_000
"""Of one source; one that claims more is not believed."""
_FAULTS: Final = frozenset(map(str, Fault))


class Share(Protocol):
    """What a tenant of other gateways' requests has, with this one's (`tenants.Tenant`)."""

    def began_elsewhere(self, prompt_tokens: int) -> None:
        """A request is known that another gateway let in, with so many tokens that are not paid yet."""
        ...

    def ended_elsewhere(self, output_tokens: int) -> None:
        """It is over."""
        ...


class OwnRequest(Protocol):
    """A request of this gateway that a holder has, or is to have."""

    def confirmed(self, source: str) -> None:
        """A holder has it."""
        ...

    def prefilled(self) -> None:
        """Its prompt has been computed on its prefill endpoint."""
        ...

    def began(self) -> None:
        """Its first token has come."""
        ...

    def leg_failed(self, fault: Fault) -> None:
        """A leg of it has failed."""
        ...

    def redirected(self) -> None:
        """After that it was sent out again; `placed` says where to."""
        ...

    def placed(self, decode: EndpointId, prefill: EndpointId | None) -> None:
        """It is elsewhere than it was."""
        ...

    def moved(self, target: EndpointId) -> None:
        """It decodes there now, as it was ordered."""
        ...

    def move_failed(self) -> None:
        """It stays, though it was ordered elsewhere."""
        ...

    def ended(self, end: said.Ended, fault: Fault | None) -> None:
        """It is over. `fault`: of its engine, unless that was told before."""
        ...


@dataclass(slots=True, eq=False)
class _Known:
    """A request as the sources describe it."""

    row: Row
    id: RequestId
    """Under which it is booked."""
    own: bool
    decode: str
    prefill: str
    decoding: bool
    tokens: int
    claims: set[str] = field(default_factory=set)
    holder: str = ""
    """The agent among them to which it came last."""
    held_since_s: float = -math.inf
    """When it came there."""
    booked: bool = False
    failed: bool = False
    """Its last leg has failed, and was counted."""
    unclaimed_s: float = math.inf
    """Since when nobody claims it."""
    share: Share | None = None
    """Its tenant's, if it counts there."""


@dataclass(slots=True, eq=False)
class Source:
    """What is known of one source."""

    name: str
    holder: str = ""
    """Its own name."""
    incarnation: str = ""
    agent: bool = False
    endpoint: str = ""
    draining: bool = False
    heard: bool = False
    """Its snapshot has come."""
    lost_s: float = math.inf
    """Since when it is away; inf while it is there."""
    keys: set[str] = field(default_factory=set)
    """What it claims."""
    unlisted: set[str] = field(default_factory=set)
    """While its snapshot comes in parts: what it claimed before, and what has not been in it so far."""

    @property
    def is_there(self) -> bool:
        """Whether its connection holds."""
        return self.lost_s == math.inf

    @property
    def connected(self) -> bool:
        """Whether it speaks now."""
        return self.heard and self.is_there


class Book:
    """The account of one gateway. Times are seconds on the Director's clock."""

    def __init__(
        self,
        me: str,
        director: Director,
        feed: Callable[[Event], None],
        *,
        on_engine: Callable[[said.Engine], None] = lambda engine: None,
        on_signs: Callable[[str, said.Signs], None] = lambda source, signs: None,
        share_of: Callable[[str], Share | None] = lambda tenant: None,
    ) -> None:
        """`me`: this gateway's name. `feed` passes an event to the Director at once. `share_of` finds tenants by name,
        where their shares are bounded."""
        self.me = me
        self.sources: dict[str, Source] = {}
        self.own: dict[RequestId, OwnRequest] = {}
        """Requests of this gateway that holders may speak of, by their ids."""
        self._director = director
        self._feed = feed
        self._on_engine = on_engine
        self._on_signs = on_signs
        self._share_of = share_of
        self._known: dict[str, _Known] = {}
        self._unclaimed: set[str] = set()
        self._at_s = -math.inf
        """When the last line came."""
        self._over: dict[str, tuple[float, str]] = {}
        """Keys of which a source has lately said that they have ended, when, and which one: another one's word about
        them may come after that. What the same one opens is a further request with the same id."""

    def __len__(self) -> int:
        """How many requests are claimed by someone."""
        return len(self._known)

    def holder_of(self, request_id: RequestId) -> tuple[Source, Row] | None:
        """Who holds a request that is booked under this id, and its row as it came; None if no source does."""
        known = self._known.get(f"{self.me}/{request_id}") or self._known.get(request_id)
        if known is None or known.id != request_id:
            return None
        names = [known.holder] if known.holder else sorted(known.claims)
        sources = [self.sources[name] for name in names if name in self.sources]
        return next(((source, known.row) for source in sources if source.connected), None)

    # --- sources ------------------------------------------------------------------------------------------------

    def lost(self, name: str, now_s: float) -> None:
        """The connection to a source has ended; what it claimed is believed for a while."""
        source = self.sources.get(name)
        if source is not None and source.lost_s == math.inf:
            source.lost_s = now_s

    def forget(self, name: str) -> None:
        """A source is not followed any more."""
        source = self.sources.pop(name, None)
        if source is not None:
            self._disclaim(source, source.keys)

    def passes(self, now_s: float) -> None:
        """Time passes: drop what sources claimed that are gone, and what nobody claims. Call it each second or so."""
        for source in self.sources.values():
            if now_s - source.lost_s >= GONE_S and source.keys:
                self._disclaim(source, source.keys)
        for key in [key for key in self._unclaimed if now_s - self._known[key].unclaimed_s >= HANDING_OVER_S]:
            self._end(self._known[key], said.Ended(key=key, outcome="cancelled", fault=HOLDER_LOST))
        for key, (over_s, _) in list(self._over.items()):
            if now_s - over_s < HANDING_OVER_S:
                break
            del self._over[key]

    def endpoints_changed(self) -> None:
        """Endpoints are known that were not: book what runs there."""
        for known in self._known.values():
            if not self._stands(known):
                self._found(known)

    # --- lines --------------------------------------------------------------------------------------------------

    def take(self, name: str, message: Message, now_s: float) -> None:
        """One line of a source, in order. Raises `BadMessage` if nothing of it is to be believed any more."""
        source = self.sources.get(name)
        if source is None:
            source = self.sources[name] = Source(name)
        self._at_s = now_s
        match message:
            case said.Progressed(tokens=tokens):
                told = ((self._believed(source, key), count) for key, count in tokens.items())
                self._advance([(known, count) for known, count in told if known is not None])
            case said.Opened(request=row):
                self._opened(source, row, now_s)
            case said.Ended(key=key):
                if (known := self._believed(source, key)) is not None:
                    self._end(known, message)
                    self._told(key, source, now_s)
                else:
                    self._released(source, key, now_s)
            case said.Released(key=key):
                self._released(source, key, now_s)
            case said.Snapshot():
                self._snapshot(source, message, now_s)
            case said.Part(requests=rows, more=more):
                self._listed(source, rows, now_s, more=more)
            case said.Engine() | said.Signs() | said.Draining() | said.Beat():
                self._of_source(source, message)
            case _:
                if (known := self._believed(source, message.key)) is not None:
                    self._changed(known, message)

    def _of_source(self, source: Source, message: Message) -> None:
        match message:
            case said.Engine():
                self._on_engine(message)
            case said.Signs():
                self._on_signs(source.name, message)
            case said.Draining(on=on):
                source.draining = on
            case _:
                pass

    def _claimed(self, source: Source, key: str) -> _Known | None:
        return self._known.get(key) if key in source.keys else None

    def _believed(self, source: Source, key: str) -> _Known | None:
        """What it claims, if its word about that counts. An agent that speaks of what no other one holds holds it."""
        known = self._claimed(source, key)
        if known is None or known.holder not in ("", source.name):
            return None
        if source.agent and not known.holder:
            self._hold(known, source, known.held_since_s)
        return known

    def _snapshot(self, source: Source, snapshot: said.Snapshot, now_s: float) -> None:
        source.holder, source.incarnation = snapshot.holder, snapshot.incarnation
        source.agent, source.endpoint = snapshot.holds == "agent", snapshot.endpoint
        source.draining, source.lost_s = snapshot.draining, math.inf
        source.unlisted = set(source.keys)
        self._listed(source, snapshot.requests, now_s, more=snapshot.more)

    def _listed(self, source: Source, rows: Iterable[Row], now_s: float, *, more: bool) -> None:
        """These are in its snapshot; `more`: others may be. What is not, once it is whole, has ended."""
        source.unlisted.difference_update(row.key for row in rows)
        source.heard = not more
        if not more:
            self._disclaim(source, source.unlisted & source.keys)
            source.unlisted.clear()
        for row in rows:
            self._opened(source, row, now_s)

    def _opened(self, source: Source, row: Row, now_s: float) -> None:
        key = row.key
        known = self._known.get(key)
        if known is None:
            if not source.agent and self._over.get(key, (0.0, source.name))[1] != source.name:
                return
            if len(source.keys) - len(source.unlisted) >= MOST_ROWS:
                raise BadMessage(f"{source.name} claims more than {MOST_ROWS} requests")
            own = row.by == self.me and RequestId(row.id) in self.own
            known = self._known[key] = _Known(
                row,
                RequestId(row.id) if own else RequestId(key),
                own,
                row.decode,
                row.prefill,
                row.phase == "decoding",
                row.generated_tokens,
            )
            self._claim(known, source, row, now_s)
            if own:
                self._director_follows(known)
                return
            if row.tenant and not self._is_ours(row) and (share := self._share_of(row.tenant)) is not None:
                known.share = share
                share.began_elsewhere(row.prompt_tokens if row.age_s < PAID_S else 0)
            self._adopt(known)
            return
        before = known.holder
        self._claim(known, source, row, now_s)
        if row.blocks and not known.row.blocks:
            known.row = row
            self._adopt(known)
        if known.holder in ("", source.name):
            self._corrected(known, row, anew=before not in ("", known.holder))

    def _claim(self, known: _Known, source: Source, row: Row, now_s: float) -> None:
        key, since_s = row.key, now_s - row.age_s
        source.keys.add(key)
        source.unlisted.discard(key)
        known.claims.add(source.name)
        known.unclaimed_s = math.inf
        self._unclaimed.discard(key)
        if source.agent and known.holder != source.name and (not known.holder or since_s >= known.held_since_s):
            self._hold(known, source, since_s)

    def _hold(self, known: _Known, source: Source, since_s: float) -> None:
        known.holder, known.held_since_s = source.name, since_s
        if (own := self._own(known)) is not None:
            own.confirmed(source.name)

    def _director_follows(self, known: _Known) -> None:
        """What the row of a request of this gateway says beyond its dispatch."""
        entry = self._director.ledger.get(known.id)
        slot = None if entry is None else entry.decode_slot
        if slot is not None and self._director.inventory.endpoint(slot).id != known.decode:
            self._redirected(known)
        if known.tokens or known.decoding:
            tokens, known.tokens = known.tokens, 0
            known.decoding = False
            self._decodes(known)
            self._advance([(known, tokens)])

    def _corrected(self, known: _Known, row: Row, *, anew: bool) -> None:
        """A holder describes again what is known: it may have gone elsewhere, or on; `anew`: or begun again there."""
        if row.decode and (anew or row.decode != known.decode):
            known.decode, known.prefill = row.decode, row.prefill
            known.decoding, known.tokens = row.phase == "decoding", row.generated_tokens
            self._redirected(known)
            return
        if row.phase == "decoding":
            self._decodes(known)
        self._advance([(known, row.generated_tokens)])
        self._stayed(known)

    def _stayed(self, known: _Known) -> None:
        """It is where it was, by a snapshot. How a move of it ended may have been said while nobody listened; one that
        is still under way is booked once it is done."""
        entry = self._director.ledger.get(known.id) if self._follows(known) else None
        coming = None if entry is None else entry.reservation
        if coming is not None and coming.decode_slot is not None:
            target = self._director.inventory.endpoint(coming.decode_slot)
            self._feed(MigrationFailed(known.id, target.id))

    def _released(self, source: Source, key: str, now_s: float) -> None:
        known = self._claimed(source, key)
        if known is None:
            return
        source.keys.discard(key)
        known.claims.discard(source.name)
        if not known.claims:
            known.unclaimed_s = now_s
            self._unclaimed.add(key)

    def _disclaim(self, source: Source, keys: Iterable[str]) -> None:
        """The source does not claim these any more, and has not said how they ended."""
        for key in list(keys):
            source.keys.discard(key)
            known = self._known[key]
            known.claims.discard(source.name)
            if known.holder == source.name:
                known.holder, known.held_since_s = "", -math.inf
            if not known.claims:
                self._end(known, said.Ended(key=key, outcome="cancelled", fault=HOLDER_LOST))

    # --- requests -----------------------------------------------------------------------------------------------

    def _changed(self, known: _Known, message: Message) -> None:
        if (own := self._own(known)) is not None:
            _pass_on(message, own, prefills=bool(known.prefill))
        match message:
            case said.Prefilled():
                self._decodes(known)
            case said.Began():
                self._begun(known)
            case said.Redirected(decode=decode, prefill=prefill):
                known.decode, known.prefill = decode, prefill
                known.decoding, known.tokens, known.failed = False, 0, False
                self._redirected(known)
            case said.LegFailed(stage=stage, endpoint=endpoint, fault=fault, status=status):
                known.failed = True
                if self._follows(known):
                    self._feed(LegFailed(known.id, Stage(stage), EndpointId(endpoint), _kind_of(fault), status))
            case said.Moved(target=target):
                self._decodes(known)
                known.decode = target
                self._moved(known)
            case said.MoveFailed(target=target):
                if self._follows(known):
                    self._feed(MigrationFailed(known.id, EndpointId(target)))
            case _:
                pass

    def _own(self, known: _Known) -> OwnRequest | None:
        """Who is to hear of it here; None if it is another gateway's, or forgotten."""
        return self.own.get(known.id) if known.own else None

    def _follows(self, known: _Known) -> bool:
        """Whether the Director has it on its books."""
        return known.booked or self._own(known) is not None

    def _adopt(self, known: _Known) -> None:
        row = known.row
        if known.own or not known.decode or self._is_ours(row):
            return
        request = Request(
            known.id,
            row.prompt_tokens,
            max_output_tokens=row.max_output_tokens,
            model=row.model,
            priority=row.priority,
            block_hashes=row.blocks,
            block_size=row.block_size,
            traffic_class=row.traffic_class,
            tenant=row.tenant,
            movable=row.movable,
            divisible=False,
        )
        decode, prefill = _places(known)
        self._feed(RequestAdopted(request, decode, prefill, known.decoding, known.tokens))
        entry = self._director.ledger.get(known.id)
        known.booked = entry is not None and entry.adopted
        if known.booked and (missing := self._missing(known)) is not None:
            self._feed(RequestRedirected(known.id, None, missing))

    def _missing(self, known: _Known) -> EndpointId | None:
        """An endpoint that it needs and the Director does not know."""
        decode, prefill = _places(known)
        needed = (decode,) if known.decoding or prefill is None else (decode, prefill)
        return next((one for one in needed if self._director.inventory.slot_of(one) is None), None)

    def _stands(self, known: _Known) -> bool:
        """Whether the Director has it booked on endpoints."""
        entry = self._director.ledger.get(known.id) if self._follows(known) else None
        return entry is not None and entry.astray is None

    def _found(self, known: _Known) -> None:
        """It does not stand on endpoints: those where it runs may be known now, or matter no more."""
        if self._own(known) is None:
            self._adopt(known)
            return
        decode, prefill = _places(known)
        self._feed(RequestRedirected(known.id, None if known.decoding else prefill, decode))
        if known.decoding:
            self._feed(PrefillDone(known.id, computed=False, bound=True))
        if known.tokens:
            self._feed(Progress(known.id, known.tokens))

    def _is_ours(self, row: Row) -> bool:
        """Whether it is booked under an id of ours, and accounted for without its holder."""
        entry = self._director.ledger.get(RequestId(row.id)) if row.by == self.me else None
        return entry is not None and not entry.adopted

    def _begun(self, known: _Known) -> None:
        self._decodes(known)
        if not known.tokens:
            known.tokens = 1
            if self._follows(known):
                self._feed(FirstToken(known.id))
            if (own := self._own(known)) is not None:
                own.began()

    def _decodes(self, known: _Known) -> None:
        if not known.decoding:
            known.decoding = True
            if self._stands(known):
                self._feed(PrefillDone(known.id, computed=bool(known.prefill), bound=True))
            else:
                self._found(known)

    def _redirected(self, known: _Known) -> None:
        if (own := self._own(known)) is not None:
            decode, prefill = _places(known)
            own.placed(decode, prefill)
            self._feed(RequestRedirected(known.id, prefill, decode))
        else:
            self._adopt(known)

    def _moved(self, known: _Known) -> None:
        if not self._follows(known):
            return
        director, target = self._director, EndpointId(known.decode)
        entry = director.ledger.get(known.id)
        coming = None if entry is None else entry.reservation
        if self._missing(known) is not None:
            self._feed(RequestRedirected(known.id, None, target))
        elif not self._stands(known):
            self._found(known)
        elif coming is not None and coming.decode_slot == director.inventory.slot_of(target):
            self._feed(Migrated(known.id, target))
        else:
            self._feed(RequestMoved(known.id, target))

    def _advance(self, counts: list[tuple[_Known, int]]) -> None:
        """These have so many output tokens now, if that is more than is known."""
        reports: list[tuple[float, RequestId, int]] = []
        now_s = self._at_s
        for known, tokens in counts:
            if tokens <= known.tokens:
                continue
            if not known.tokens:
                self._changed(known, said.Began(key=known.row.key))
            known.tokens = tokens
            if tokens > 1 and self._follows(known):
                reports.append((now_s, known.id, tokens))
        if reports and self._director.settings.follows_progress:
            self._feed(ProgressBatch(reports))

    def _told(self, key: str, source: Source, now_s: float) -> None:
        """The source has said that it is over."""
        self._over.pop(key, None)
        self._over[key] = now_s, source.name
        if len(self._over) > MOST_ROWS:
            del self._over[next(iter(self._over))]

    def _end(self, known: _Known, end: said.Ended) -> None:
        key = end.key
        del self._known[key]
        self._unclaimed.discard(key)
        for name in known.claims:
            if name in self.sources:
                self.sources[name].keys.discard(key)
        if known.share is not None:
            known.share.ended_elsewhere(max(known.tokens, end.output_tokens))
        fault = Fault(end.fault) if end.fault in _FAULTS and not known.failed else None
        if known.own:
            if (own := self._own(known)) is not None:
                own.ended(end, fault)
        elif known.booked:
            self._feed(RequestEnded(known.id, Outcome(end.outcome), end.output_tokens, fault))


def _places(known: _Known) -> tuple[EndpointId, EndpointId | None]:
    """Where it decodes, and where its prompt is computed, if elsewhere."""
    return EndpointId(known.decode), EndpointId(known.prefill) if known.prefill else None


def _pass_on(message: Message, own: OwnRequest, *, prefills: bool) -> None:
    """What a holder says of legs and moves. `prefills`: whether the request has a prefill endpoint."""
    match message:
        case said.Prefilled() if prefills:
            own.prefilled()
        case said.LegFailed(fault=fault):
            own.leg_failed(_kind_of(fault))
        case said.Redirected():
            own.redirected()
        case said.Moved(target=target):
            own.moved(EndpointId(target))
        case said.MoveFailed():
            own.move_failed()
        case _:
            pass


def _kind_of(fault: str) -> Fault:
    return Fault(fault) if fault in _FAULTS else Fault.BROKE
