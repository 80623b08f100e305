"""What this gateway tells the others: the requests that it has dispatched, until a holder has them or they end.

It hears what the Director is told and what it answers, so that both faces publish alike. A proxy-face gateway holds its
streams; a picker speaks for what no holder has confirmed, and for pods without an agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ballast_core.directing.director import Director
from ballast_core.directing.settings import SettingsChanged
from ballast_core.model import Endpoint, Outcome, Request, RequestId
from ballast_core.model import events as ev
from ballast_core.model.effects import Dispatch, Effect, Handoff, Reject
from ballast_core.state.ledger import Phase
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.messages import MOST_BLOCKS, Row, counted, ranked
from ballast_gateway.podapi.plan import key_of


class Publisher:
    """Publishes one Director's own requests."""

    def __init__(self, me: str, director: Director, feed: Feed) -> None:
        """`me`: this gateway's name."""
        self._me = me
        self._director = director
        self._feed = feed
        self._keys: dict[RequestId, str] = {}
        """What is published now."""
        self._of_event: dict[type, Callable[[str, Any], None]] = {
            ev.FirstToken: self._began,
            ev.Progress: self._progressed,
            ev.Migrated: self._migrated,
            ev.MigrationFailed: self._migration_failed,
            ev.DispatchFailed: self._leg_failed,
            ev.RequestRedirected: self._redirected,
            ev.RequestEnded: self._ended,
            ev.ClientGone: self._client_gone,
        }

    def __len__(self) -> int:
        return len(self._keys)

    def effect(self, effect: Effect, now_s: float) -> None:
        """An effect listener of the driver."""
        if isinstance(effect, Dispatch):
            self._dispatched(effect)
        elif isinstance(effect, Reject):
            self._end(effect.request_id, Outcome.FAILED)
        elif isinstance(effect, Handoff) and (key := self._keys.get(effect.request_id)) is not None:
            entry = self._director.ledger.get(effect.request_id)
            if entry is None:
                return
            self._feed.say(said.Redirected(key=key, decode=effect.decode.id))
            if entry.phase is Phase.DECODING:
                self._feed.say(said.Prefilled(key=key))

    def event(self, event: ev.Event | SettingsChanged) -> None:
        """What the Director is told. Called before it is."""
        if type(event) is ev.ProgressBatch:
            keys, tell = self._keys, self._feed.progressed
            for _, request_id, tokens in event.reports:
                if (key := keys.get(request_id)) is not None:
                    tell(key, tokens)
            return
        tell_of = self._of_event.get(type(event))
        if tell_of is not None and (key := self._keys.get(event.request_id)) is not None:  # type: ignore[union-attr]
            tell_of(key, event)

    def release(self, request_id: RequestId) -> None:
        """Others have it from its holder from now on, or count it by scrapes."""
        key = self._keys.pop(request_id, None)
        if key is not None:
            self._feed.say(said.Released(key=key))

    def _dispatched(self, dispatch: Dispatch) -> None:
        entry = self._director.ledger.get(dispatch.request_id)
        if entry is None:
            return
        prefill = "" if dispatch.prefill is None else dispatch.prefill.id
        key = self._keys.get(dispatch.request_id)
        if key is not None:
            self._feed.say(said.Redirected(key=key, decode=dispatch.decode.id, prefill=prefill))
            return
        key = self._keys[dispatch.request_id] = key_of(self._me, dispatch.request_id)
        self._feed.say(said.Opened(request=row_of(entry.request, self._me, dispatch.decode, prefill)))

    def _began(self, key: str, event: ev.FirstToken) -> None:
        self._feed.say(said.Began(key=key))

    def _progressed(self, key: str, event: ev.Progress) -> None:
        if event.generated_tokens == 1:
            self._feed.say(said.Began(key=key))
        else:
            self._feed.progressed(key, event.generated_tokens)

    def _migrated(self, key: str, event: ev.Migrated) -> None:
        self._feed.say(said.Moved(key=key, target=event.target))

    def _migration_failed(self, key: str, event: ev.MigrationFailed) -> None:
        self._feed.say(said.MoveFailed(key=key, target=event.target))

    def _leg_failed(self, key: str, event: ev.DispatchFailed) -> None:
        failed = said.LegFailed(
            key=key, stage=event.stage.value, endpoint=event.endpoint_id, fault=str(event.fault), status=event.status
        )
        self._feed.say(failed)

    def _redirected(self, key: str, event: ev.RequestRedirected) -> None:
        entry = self._director.ledger.get(event.request_id)
        if entry is None:
            return
        decodes = entry.decodes
        prefill = "" if decodes or event.prefill is None else event.prefill
        self._feed.say(said.Redirected(key=key, decode=event.decode, prefill=prefill))
        if decodes:
            self._feed.say(said.Prefilled(key=key))

    def _ended(self, key: str, event: ev.RequestEnded) -> None:
        fault = "" if event.fault is None else str(event.fault)
        self._end(event.request_id, event.outcome, event.output_tokens, fault)

    def _client_gone(self, key: str, event: ev.ClientGone) -> None:
        self._end(event.request_id, Outcome.CANCELLED)

    def _end(self, request_id: RequestId, outcome: Outcome, output_tokens: int = 0, fault: str = "") -> None:
        key = self._keys.pop(request_id, None)
        if key is not None:
            self._feed.say(
                said.Ended(key=key, outcome=outcome.value, output_tokens=counted(output_tokens), fault=fault)
            )


def row_of(request: Request, by: str, decode: Endpoint, prefill: str) -> Row:
    """The row of a request that has just been dispatched."""
    return Row(
        id=request.id,
        by=by,
        phase="prefilling",
        decode=decode.id,
        prefill=prefill,
        prompt_tokens=counted(request.prompt_tokens),
        max_output_tokens=request.max_output_tokens,
        model=request.model,
        traffic_class=request.traffic_class,
        tenant=request.tenant,
        priority=ranked(request.priority),
        movable=request.movable,
        blocks=request.block_hashes[:MOST_BLOCKS],
        block_size=request.block_size,
    )
