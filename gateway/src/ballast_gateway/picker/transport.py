"""What the picker face needs of a transport, so that a leaner one can replace gRPC's own runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from ballast_gateway.picker.messages import Inbound, Reply


class MessageStream(Protocol):
    """One ext_proc stream. A broken stream ends the session's task by cancellation."""

    async def receive(self) -> Inbound | None:
        """The next message; None when the proxy has closed its side."""

    async def send(self, reply: Reply) -> None:
        """Send one reply; returns when the transport has taken it."""


Session: TypeAlias = Callable[[MessageStream], Awaitable[None]]
"""Serves one stream; the transport closes the stream cleanly when it returns."""


class Transport(Protocol):
    """A server that is listening."""

    @property
    def port(self) -> int:
        """The port that it listens on."""

    async def aclose(self, grace_s: float) -> None:
        """Take no new streams, give the running ones `grace_s` seconds, then break them off."""
