"""The lines of one connection: bytes in, messages out, in order and without a gap (docs/pod-api.md).

Parts of a snapshot are counted by themselves, since they take no number of the others.
"""

from __future__ import annotations

from ballast_gateway.podapi.messages import MOST_LINE_BYTES, BadMessage, Message, Part, Snapshot, decode


class Lines:
    """Reads one connection from its first byte on."""

    __slots__ = ("_part", "_rest", "_seq")

    def __init__(self) -> None:
        self._rest = b""
        self._seq: int | None = None
        self._part: int | None = None
        """Number of the part that comes next; None if the snapshot is whole."""

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
        if isinstance(message, Part):
            return self._judged_part(message)
        if self._seq is None and not isinstance(message, Snapshot):
            raise BadMessage("the first line is no snapshot")
        if self._seq is not None and message.seq != self._seq + 1:
            raise BadMessage(f"line {message.seq} follows line {self._seq}")
        self._seq = message.seq
        if isinstance(message, Snapshot):
            self._part = 1 if message.more else None
        return message

    def _judged_part(self, part: Part) -> Part:
        if part.number != self._part or part.seq != self._seq:
            raise BadMessage(f"part {part.number} of a snapshot, of line {part.seq}, comes after line {self._seq}")
        self._part = part.number + 1 if part.more else None
        return part
