"""One connection to one source's events: kept up, judged line by line, begun anew when anything is wrong with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from zlib import crc32

from ballast_api.signatures import Signed
from ballast_gateway.http.client import Exchange, UpstreamError
from ballast_gateway.http.responses import Headers
from ballast_gateway.podapi.messages import BEAT_S, EVENTS, PARTS, BadMessage, Message, Part, Snapshot
from ballast_gateway.view.calls import Calls, proven
from ballast_gateway.view.lines import Lines

_log = logging.getLogger(__name__)

SILENT_S: Final = 3 * BEAT_S
"""A source that says nothing for so long, no beat either, is left and asked anew."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


class _Listening(Exchange):
    """The answer to `GET /ballast/v1/events`, which has no end."""

    __slots__ = ("_lines", "_signed", "_subscription")

    def __init__(self, subscription: Subscription, signed: Signed) -> None:
        super().__init__()
        self._subscription = subscription
        self._signed = signed
        self._lines = Lines()

    def on_head(self, status: int, headers: Headers) -> None:
        self.status = status
        if self._subscription.learns(status, headers, self._signed):
            raise UpstreamError(f"answered {status} and for whom to sign")
        if not proven(self._signed, headers):
            raise UpstreamError(f"answered {status} without proof that it has the fleet's token")
        if status != 200:
            raise UpstreamError(f"answered {status}")

    def on_data(self, data: bytes) -> None:
        try:
            for message in self._lines.feed(data):
                self._subscription.take(message)
        except BadMessage as error:
            raise UpstreamError(f"said what is no line: {error}") from error


class Subscription:
    """Follows one source until it is closed. Times are seconds on the loop's clock."""

    def __init__(
        self,
        name: str,
        address: str,
        *,
        loop: asyncio.AbstractEventLoop,
        calls: Calls,
        on_message: Callable[[str, Message], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_message` may raise `BadMessage`; `on_lost` is called when a connection that has spoken ends."""
        self.name = name
        self.address = address
        self.since_s = loop.time()
        """Since when it is followed."""
        self.heard_s: float | None = None
        """When it last said anything; None if it has not since the connection was begun."""
        self.problem = ""
        """Why the last connection ended."""
        self.connections = 0
        """How often it was asked."""
        self._loop = loop
        self._calls = calls
        self._on_message = on_message
        self._on_lost = on_lost
        self._pause_s = _FIRST_PAUSE_S
        self._exchange: _Listening | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begun_s = 0.0
        self._learned = self._at_once = False
        """Whether it has said for whom to sign, and whether it was asked anew at once for that."""
        self._whole = False
        self._ask()

    @property
    def connected(self) -> bool:
        """Whether all of its snapshot has come over the connection that is there."""
        return self.heard_s is not None and self._whole

    def take(self, message: Message) -> None:
        """A line has come. Called by the connection."""
        self.heard_s = self._loop.time()
        self._at_once = False
        if isinstance(message, Snapshot | Part):
            self._whole = not message.more
        self._on_message(self.name, message)
        if self._whole:
            self._pause_s = _FIRST_PAUSE_S

    def learns(self, status: int, headers: Headers, signed: Signed) -> bool:
        """Whether an answer says for whom to sign. Called by the connection."""
        self._learned = self._calls.learns(self.address, status, headers, signed)
        return self._learned

    def close(self) -> None:
        """Follow it no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._hang_up()

    def _ask(self) -> None:
        payload, signed = self._calls.signed(self.address, "GET", EVENTS, header=PARTS)
        self._exchange = _Listening(self, signed)
        self._begun_s = self._loop.time()
        self._learned = False
        self.connections += 1
        self._calls.pool.start(self.address, payload, self._exchange, self._over)
        self._timer = self._loop.call_later(SILENT_S, self._look)

    def _look(self) -> None:
        """Leave a source that is silent."""
        last_s = self._begun_s if self.heard_s is None else self.heard_s
        left_s = last_s + SILENT_S - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
            return
        self._hang_up()
        self._ended(f"it was silent for {SILENT_S:g} s")

    def _hang_up(self) -> None:
        if self._exchange is not None:
            self._calls.pool.cancel(self._exchange)
            self._exchange = None

    def _over(self, error: UpstreamError | None) -> None:
        self._exchange = None
        if self._timer is not None:
            self._timer.cancel()
        if self._learned and not self._at_once:
            self._at_once = True
            self.connections -= 1
            self._ask()
            return
        self._ended("it ended its events" if error is None else str(error))

    def _ended(self, problem: str) -> None:
        if problem != self.problem:
            _log.info("a source of events is asked anew", extra={"source": self.name, "problem": problem})
        self.problem = problem
        self._whole = False
        if self.heard_s is not None:
            self.heard_s = None
            self._on_lost(self.name)
        jitter = 1.0 + crc32(f"{self.name}/{self.connections}".encode()) / 2**33
        self._timer = self._loop.call_later(self._pause_s * jitter, self._ask)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
