"""The answer of a decode leg on its way to the client."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from ballast_gateway.http.client import Collect, UpstreamError
from ballast_gateway.http.responses import Headers
from ballast_gateway.life_signs import Signs
from ballast_gateway.proxy.clients import Client
from ballast_gateway.proxy.events import are_comments
from ballast_gateway.proxy.held_stream import HeldStream, Leg
from ballast_gateway.proxy.hidden_usage import HiddenUsage
from ballast_gateway.proxy.life import Event
from ballast_gateway.proxy.sse import TokenMeter

PROGRESS_TOKENS: Final = 16
"""Output is reported to the Director in steps of this many tokens."""


_MOST_FIRST_BYTES: Final = 64 * 1024
"""What is longer without a token is no stream that we know, and goes to the client."""


_CLOSING_S: Final = 2.0
"""Between a stream's last event and the end of its HTTP answer; then the engine is left."""


class Holder(Protocol):
    """What follows a leg."""

    def on(self, event: Event) -> None:
        """Something happened that may change where the request is."""
        ...

    def progress(self, tokens: int) -> None:
        """So many output tokens have passed, in all legs."""
        ...

    def done(self) -> None:
        """The stream's last event has passed: the client has all of it."""
        ...

    def between_events(self) -> None:
        """The client has been sent whole events. Raises `StoppedReading` if this leg is to be left here."""
        ...


class Relay(Collect):
    """A stream of events goes to the client as it comes; anything else is collected.

    The client's answer begins with the first bytes of the body, so that until then another endpoint may be tried.
    """

    __slots__ = (
        "_client",
        "_first",
        "_hidden",
        "_holder",
        "_idle_timeout_s",
        "_loop",
        "_meter",
        "_owes",
        "_reported",
        "_signs",
        "_told_token",
        "_wrote_whole",
        "continues",
        "ended",
        "relays",
        "shows",
    )

    def __init__(
        self,
        holder: Holder,
        client: Client,
        loop: asyncio.AbstractEventLoop,
        signs: Signs,
        *,
        streams: bool,
        continues: bool,
        due_s: float,
        idle_timeout_s: float,
        meter: TokenMeter | None = None,
        hidden: HiddenUsage | None = None,
    ) -> None:
        """`due_s`: when a stream must have begun, on the loop's clock; `idle_timeout_s`: its longest silence after.

        `signs`: its endpoint's signs of life. `meter`: for other events than those of completions. `hidden`: what the
        client is not to see.
        """
        super().__init__(due_s if streams else float("inf"))
        self._holder = holder
        self._client = client
        self._loop = loop
        self._idle_timeout_s = idle_timeout_s
        self._signs = signs
        self._owes = False
        if streams:
            self._owe()
        self._meter = TokenMeter() if meter is None else meter
        self._hidden = hidden
        self._reported = 0
        self._told_token = False
        self._wrote_whole = True
        """What was written so far ends with a whole event."""
        self._first: list[bytes] = []
        """What came before the first token: if an error follows, another endpoint is tried."""
        self.relays = streams
        """The answer is a stream of events."""
        self.continues = continues
        """An earlier leg has begun the client's stream."""
        self.shows = False
        """The client has been sent some of this leg."""
        self.ended = False
        """The stream's last event has come, and the holder knows."""

    @property
    def tokens(self) -> int:
        """Output tokens that have passed, in all legs."""
        return self._meter.tokens

    @property
    def owes(self) -> bool:
        """Whether its engine's next byte is due."""
        return self._owes

    @property
    def between_events(self) -> bool:
        """Whether what was sent so far ends with a whole event."""
        return self._wrote_whole

    def on_head(self, status: int, headers: Headers) -> None:
        super().on_head(status, headers)
        kind = next((value for name, value in headers if name == b"content-type"), b"")
        self.relays = self.relays and status == 200 and kind.startswith(b"text/event-stream")

    def on_data(self, data: bytes) -> None:
        if not self.relays:
            super().on_data(data)
            return
        if self.ended:
            return
        meter = self._meter
        if meter.between_events and are_comments(data):
            self._keep_alive(data)
            return
        self._signs.heard_s = now_s = self._loop.time()
        self.deadline_s = now_s + self._idle_timeout_s
        meter.feed(data)
        if meter.failed:
            raise UpstreamError("the engine sent an error event, or aborted the request")
        if self._hidden is not None and not (data := self._hidden.feed(data)):
            return
        if not self.shows:
            self._first.append(data)
            if not meter.started and sum(map(len, self._first)) <= _MOST_FIRST_BYTES:
                return
            data = self._show()
        self._client.write(data, last=meter.is_over)
        self._wrote_whole = meter.between_events or (self._hidden is not None and self._hidden.gives_whole)
        if meter.started:
            first, self._told_token = not self._told_token, True
            self._report(meter.tokens, first=first)
        if meter.is_over:
            self._end()

    def _keep_alive(self, comments: bytes) -> None:
        """For the client, once its stream has begun. No sign of life of the engine, and no output."""
        if self.shows:
            self._client.write(comments)

    def _end(self) -> None:
        """The client has the whole answer, however long HTTP's end takes: an engine may hang or break before it."""
        self.ended = True
        if self.connection is not None:
            self.connection.resume()  # a slow client no longer holds it up
        self.deadline_s = self._loop.time() + _CLOSING_S
        self._holder.done()

    def on_end(self) -> None:
        if not self.relays or self.ended:
            return
        if self._hidden is not None and (rest := self._hidden.close()):
            if self.shows:
                self._client.write(rest)
            else:
                self._first.append(rest)
        if not self.shows and any(b"data: {" in part for part in self._first):
            self._client.write(self._show())
            self._wrote_whole = self._meter.between_events
        if self.shows and (self._meter.is_whole or self._meter.failed):
            self._holder.on(Event.END)

    def _show(self) -> bytes:
        """Begin the client's stream. Returns what it is to be sent first."""
        self._begin(Event.BEGUN_UNHELD)
        first, self._first = b"".join(self._first), []
        return first

    def _begin(self, begun: Event) -> None:
        self.shows = True
        if not self.continues:
            self._holder.on(begun)
        self._client.attach(self)

    def _report(self, tokens: int, *, first: bool) -> None:
        if first:
            self._holder.on(Event.TOKEN)
        if (first and self.continues) or tokens - self._reported >= PROGRESS_TOKENS:
            self._reported = tokens
            self._holder.progress(tokens)

    def over(self) -> None:
        """No more comes. The holder keeps its last leg, so the leg lets go of the holder: no circle is left."""
        self._client.detach(self)
        self._settle()
        del self._holder

    def _owe(self) -> None:
        """The engine's next byte is due. Not of a whole answer, which may take as long as all of its tokens."""
        if not self._owes:
            self._owes = True
            self._signs.owe(self._loop.time())

    def _settle(self) -> None:
        if self._owes:
            self._owes = False
            self._signs.settle()

    def pause(self) -> None:
        """The client is slow. The engine's silence is then no fault of the engine."""
        self.deadline_s = float("inf")
        self._settle()
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self.deadline_s = self._loop.time() + self._idle_timeout_s
        self._owe()
        if self.connection is not None:
            self.connection.resume()


class HeldRelay(Relay):
    """A leg of a stream whose tokens are kept: whole events go to the client."""

    __slots__ = ("_held", "_unheld", "_until_token")

    def __init__(
        self,
        holder: Holder,
        client: Client,
        loop: asyncio.AbstractEventLoop,
        signs: Signs,
        held: HeldStream,
        *,
        continues: bool,
        due_s: float,
        idle_timeout_s: float,
        until_token: bool,
    ) -> None:
        """`until_token`: `due_s` holds until the leg's first token, whatever comes before it."""
        super().__init__(
            holder, client, loop, signs, streams=True, continues=continues, due_s=due_s, idle_timeout_s=idle_timeout_s
        )
        self._held = held
        self._unheld = held.lost
        """The engine gives no token ids: this is a plain relay from now on."""
        self._until_token = until_token

    @property
    def tokens(self) -> int:
        """Output tokens that have passed, in all legs."""
        return super().tokens if self._unheld else self._held.tokens

    @property
    def between_events(self) -> bool:
        """Whether what was sent so far ends with a whole event."""
        return not self._unheld or super().between_events

    def on_data(self, data: bytes) -> None:
        if not self.relays or self._unheld or self.ended:
            super().on_data(data)
            return
        leg = self._held.leg
        if not leg.partial and are_comments(data):
            self._keep_alive(data)
            return
        self._pass_on(leg, leg.tokens, self._held.feed(data))
        if leg.broken:
            raise UpstreamError(leg.broken, said=leg.said)
        if self._held.done and self.shows and not self._unheld:
            self._end()
        elif self._held.moves and not self._unheld:
            self._holder.between_events()

    def _pass_on(self, leg: Leg, had_tokens: int, shown: bytes) -> None:
        """What has just been fed: to the client what it is to see of it, to the holder how far that is."""
        self._unheld = self._held.lost
        if self._unheld:
            if self.shows:
                self._holder.on(Event.TIED)
            super().on_data(shown)
            return
        self._signs.heard_s = now_s = self._loop.time()
        if leg.tokens or not self._until_token:
            self.deadline_s = now_s + self._idle_timeout_s
        if shown and not self.shows:
            self._first.append(shown)
            shown = b""
            if self._held.begun:  # no comment alone
                shown, self._first = b"".join(self._first), []
                self._begin(Event.BEGUN)
        if shown:
            self._client.write(shown, last=self._held.done)
        if leg.tokens and self.shows:  # of an event that breaks the leg nothing is to be seen
            tokens = leg.earlier_tokens + leg.tokens
            if not had_tokens or tokens - self._reported >= PROGRESS_TOKENS:
                self._report(tokens, first=not had_tokens)

    def on_end(self) -> None:
        held = self._held
        if self.ended:
            return
        if self.relays and not self._unheld and not held.leg.broken:
            leg, had_tokens, shown = held.leg, held.leg.tokens, held.close()
            try:
                self._pass_on(leg, had_tokens, shown)
            except UpstreamError as error:
                leg.broken = str(error)
        if not self.relays or self._unheld:
            super().on_end()
        elif held.is_whole and not held.leg.broken:
            self._holder.on(Event.END)
