"""What the picker face needs of a transport, so that tests can put gRPC's own runtime beside ours.

The session of a stream is plain calls: messages in, replies out, in the same call for all but a request that is held.
A transport needs no task for it, and may pass on the replies as it likes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from ballast_gateway.picker.messages import Inbound, Reply


class Session(Protocol):
    """Serves one ext_proc stream."""

    @property
    def waits(self) -> bool:
        """Whether its request is held. The transport passes no message on until the late replies have come."""

    @property
    def over(self) -> bool:
        """Whether its last reply has been given: send it, then close the stream."""

    def receive(self, message: Inbound) -> list[Reply]:
        """Take in one message; returns what to send now, in this order. Raises `RuntimeError` while it waits."""

    def close(self, *, broken: bool) -> None:
        """The stream has ended, however it came to that: call it once. `broken`: not by the proxy's orderly close."""


LateReplies: TypeAlias = Callable[[list[Reply]], None]
"""Called with the replies to the message after which a session waited."""

OpenSession: TypeAlias = Callable[[LateReplies], Session]
"""Called at the begin of a stream."""


class Transport(Protocol):
    """A server that is listening."""

    @property
    def port(self) -> int:
        """The port that it listens on."""

    async def aclose(self, grace_s: float) -> None:
        """Take no new streams, give the running ones `grace_s` seconds, then break them off."""


class Listen(Protocol):
    """Starts a transport."""

    def __call__(
        self, open_session: OpenSession, *, host: str, port: int, max_message_bytes: int
    ) -> Awaitable[Transport]:
        """Serve ext_proc. Raises `OSError` if the port is taken."""
