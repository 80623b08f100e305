"""One ext_proc stream, from the proxy's side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from ballast_conformance import protocol
from ballast_conformance.grpc_call import Call, End
from ballast_conformance.http2 import Connection
from ballast_conformance.transcript import Condition, Transcript


class Dialogue:
    """Sends messages and writes down what comes back.

    `timeout_s`: how long one reply may take; `quiet_s`: how long to listen when none is due.
    """

    def __init__(self, connection: Connection, authority: str, *, timeout_s: float, quiet_s: float) -> None:
        self._call = Call(connection, protocol.PROCESS, authority)
        self._timeout_s = timeout_s
        self._quiet_s = quiet_s
        self.said = Transcript()

    @property
    def call(self) -> Call:
        """The gRPC call beneath."""
        return self._call

    async def send(
        self, *messages: Any, frame_bytes: int | None = None, joined: bool = False, end: bool = False
    ) -> None:
        """Send `ProcessingRequest`s, as `Call.send` does."""
        raw = [message.SerializeToString() for message in messages]
        await self._call.send(raw, frame_bytes=frame_bytes, joined=joined, end=end)

    async def send_raw(self, messages: Iterable[bytes]) -> None:
        """Send gRPC messages of any content."""
        await self._call.send(messages)

    async def until(self, condition: Condition) -> Transcript:
        """Listen until what was said fulfils this, the stream ends or the picker is silent for too long."""
        while not condition(self.said) and self.said.end is None:
            if not await self._hear(self._timeout_s):
                self.said.silent_s = self._timeout_s
                break
        return self.said

    async def replies(self, count: int) -> Transcript:
        """Listen until so many replies have come."""
        return await self.until(lambda said: len(said.replies) >= count)

    async def quiet(self) -> Transcript:
        """Listen to what comes without being due."""
        while self.said.end is None and await self._hear(self._quiet_s):
            pass
        return self.said

    async def half_close(self) -> None:
        """The proxy sends nothing more."""
        await self._call.half_close()

    def cancel(self) -> None:
        """The client has gone away."""
        self._call.cancel()

    async def finish(self) -> Transcript:
        """Half-close, and listen to the end."""
        await self.half_close()
        return await self.until(lambda said: said.end is not None)

    async def _hear(self, timeout_s: float) -> bool:
        try:
            heard = await self._call.receive(timeout_s)
        except TimeoutError:
            return False
        if isinstance(heard, End):
            self.said.end = heard
            return True
        try:
            self.said.replies.append(pb.ProcessingResponse.FromString(heard))
        except Exception as error:  # protobuf's DecodeError has no common name across its implementations
            self.said.end = End(None, f"a reply that is no ProcessingResponse: {error}")
        return True
