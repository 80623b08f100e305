"""The lines of one connection: bytes in, messages out, in order and without a gap (docs/pod-api.md)."""

from __future__ import annotations

from ballast_gateway.podapi.messages import MOST_LINE_BYTES, BadMessage, Message, Snapshot, decode


class Lines:
    """Reads one connection from its first byte on."""

    __slots__ = ("_rest", "_seq")

    def __init__(self) -> None:
        self._rest = b""
        self._seq: int | None = None

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole now. Raises `BadMessage`: the connection is of no use any more."""
        if b"\n" not in data:
            self._keep(self._rest + data)
            return []
        *lines, rest = (self._rest + data).split(b"\n")
        self._keep(rest)
        return [self._judged(decode(line)) for line in lines]

    def _keep(self, rest: bytes) -> None:
        if len(rest) > MOST_LINE_BYTES:
            raise BadMessage(f"a line of more than {MOST_LINE_BYTES} bytes")
        self._rest = rest

    def _judged(self, message: Message) -> Message:
        if self._seq is None and not isinstance(message, Snapshot):
            raise BadMessage("the first line is no snapshot")
        if self._seq is not None and message.seq != self._seq + 1:
            raise BadMessage(f"line {message.seq} follows line {self._seq}")
        self._seq = message.seq
        return message
