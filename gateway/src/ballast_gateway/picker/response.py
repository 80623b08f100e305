"""The response's half of an exchange: answers that change nothing, the first token, and one end."""

from __future__ import annotations

from typing import Final

from ballast_core.model import Outcome
from ballast_gateway.picker.actions import FIRST_TOKEN, Action, Ended, Served
from ballast_gateway.picker.messages import (
    BodyMode,
    BodyReply,
    HeadersReply,
    Inbound,
    TrailersReply,
    streamed_body,
)

_STREAMED: Final = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.GRPC)


class ResponseHalf:
    """Follows the response. Reports nothing unless the request was routed."""

    __slots__ = ("_begun", "_ended", "_failed", "_served", "_status", "body_mode", "routed")

    def __init__(self) -> None:
        self.body_mode = BodyMode.NONE
        self.routed = False
        self._failed = False
        self._status: int | None = None
        self._begun = False
        self._ended = False
        self._served: str | None = None

    def headers(self, message: Inbound) -> list[Action]:
        """Take in the response's headers."""
        status = message.headers.get(":status", "")
        self._status = int(status) if status.isascii() and status.isdigit() else 0
        self._failed = self._status >= 500
        actions: list[Action] = [HeadersReply(message.kind), *self._note(message)]
        if message.end_of_stream:
            return actions + self.end(self._outcome())
        if self.body_mode is BodyMode.NONE:  # no later sign of the first token will come
            return actions + self._begin()
        return actions

    def body(self, message: Inbound) -> list[Action]:
        """Take in a part of the response's body."""
        kind, body, last = message.kind, message.body, message.end_of_stream
        actions = self._note(message)
        if self.body_mode in _STREAMED:
            actions += streamed_body(kind, body, end_of_stream=last)
        else:
            actions.append(BodyReply(kind))
        if body and not self._begun:
            actions += self._begin()
        if last:
            actions += self.end(self._outcome())
        return actions

    def trailers(self, message: Inbound) -> list[Action]:
        """Take in the response's trailers, which end it."""
        return [TrailersReply(message.kind), *self._note(message), *self.end(self._outcome())]

    def end(self, outcome: Outcome, *, shown: bool = True) -> list[Action]:
        """The exchange is over; further calls change nothing."""
        if self._ended or not self.routed:
            return []
        self._ended = True
        return [Ended(outcome, self._status, shown)]

    def closed(self) -> list[Action]:
        """The proxy has closed the stream.

        Envoy closes it in the same way for a response that ended and for one that was broken off. A response whose body
        was shown without its end was broken off. For one whose body is not shown it is the end where trailers would be
        shown; where they would not, Envoy closes the stream as soon as the headers are answered.
        """
        if self.body_mode is not BodyMode.NONE:
            return self.end(Outcome.CANCELLED)
        return self.end(self._outcome(), shown=self._failed)

    def _note(self, message: Inbound) -> list[Action]:
        """Proxies say who serves with the headers, and may repeat it with what follows."""
        if message.served is None or message.served == self._served or not self.routed:
            return []
        self._served = message.served
        return [Served(message.served)]

    def _begin(self) -> list[Action]:
        if self._begun or (self._status or 0) >= 400 or not self.routed:
            return []
        self._begun = True
        return [FIRST_TOKEN]

    def _outcome(self) -> Outcome:
        return Outcome.FAILED if self._failed else Outcome.COMPLETED
