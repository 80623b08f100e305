"""Whom a generation answers: the client's connection, or what puts a whole answer together for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ballast_gateway.errors import ApiError
from ballast_gateway.http.server import Flow, Header


class Client(Protocol):
    """`ClientConnection` says more about each of these."""

    @property
    def head_sent(self) -> bool:
        """Whether the answer has begun."""
        ...

    @property
    def answering(self) -> bool:
        """Whether the answer is still due, or under way."""
        ...

    def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Answer with a whole body."""
        ...

    def respond_error(self, error: ApiError, extra: tuple[Header, ...] = ()) -> None:
        """Answer with an error."""
        ...

    def start_stream(self, status: int, headers: Iterable[Header]) -> None:
        """Begin a stream."""
        ...

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Take a part of the stream, the last one at its end. Raises `UpstreamError` where it is of no use, and so its
        leg."""
        ...

    def end(self) -> None:
        """The stream is whole."""
        ...

    def abort(self) -> None:
        """The stream breaks off."""
        ...

    def attach(self, flow: Flow) -> None:
        """Pause this flow while the client is slow."""
        ...

    def detach(self, flow: Flow) -> None:
        """Pause it no more."""
        ...
