"""A holder's news: each reader gets a snapshot, then every line as it comes (docs/pod-api.md).

Lines of one turn of the event loop leave together, progress once each `FOLD_S`. A line is written once for all readers,
so one sequence number serves them all. A long snapshot leaves in parts, one a turn and only as fast as its reader takes
them. Where nobody listens, only the rows are kept.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, Literal, Protocol

from ballast_gateway.podapi.messages import BEAT_S, FOLD_S, Beat, Message, Part, Snapshot, State, encode
from ballast_gateway.podapi.rows import Rows

MOST_READERS: Final = 64
"""As many as a gateway may have workers, which hear each other."""
MOST_BEHIND_BYTES: Final = 4 * 1024 * 1024
"""Of lines that a reader has not taken; one that is further behind is cut off, and asks for the snapshot again."""

PART_BYTES: Final = 256 * 1024
"""Of a snapshot in one line, for readers that take parts. A part takes a millisecond or so to write."""


class Sink(Protocol):
    """Where a reader's lines go: a client's connection."""

    def write(self, data: bytes) -> None:
        """Send this."""
        ...

    def abort(self) -> None:
        """Cut the reader off."""
        ...


class Reader:
    """One who listens. The connection tells it when to `pause`, and is not written to meanwhile."""

    __slots__ = ("_behind", "_behind_bytes", "_feed", "_paused", "_sink", "left", "parts")

    def __init__(self, feed: Feed, sink: Sink) -> None:
        self._feed = feed
        self._sink = sink
        self._behind: list[bytes] = []
        self._behind_bytes = 0
        self._paused = False
        self.left: list[str] = []
        """What its snapshot is still to list, as `Rows.listing`."""
        self.parts = 0
        """Parts so far."""

    @property
    def paused(self) -> bool:
        """Whether it takes no more for now."""
        return self._paused

    def pause(self) -> None:
        """It takes no more for now."""
        self._paused = True

    def resume(self) -> None:
        """It has caught up with what it was sent."""
        part = self._feed.part_for(self)  # first of all: it may be that more lines come to lie before it
        lines, self._behind, self._behind_bytes = b"".join(self._behind) + part, [], 0
        self._paused = False
        if lines:
            self._sink.write(lines)
        self._feed.go_on(self)

    def take(self, lines: bytes) -> bool:
        """Pass lines on. False if it is too far behind: it is cut off."""
        if not self._paused:
            self._sink.write(lines)
            return True
        self._behind.append(lines)
        self._behind_bytes += len(lines)
        if self._behind_bytes <= MOST_BEHIND_BYTES:
            return True
        self._behind.clear()
        self._sink.abort()
        return False

    def client_gone(self) -> None:
        """The connection is closed."""
        self._behind.clear()
        self._feed.leave(self)

    def shut_down(self) -> None:
        """The holder ends: so does its news."""
        self._feed.leave(self)
        self._sink.abort()


class Feed:
    """Publishes for one holder, on its event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        holder: str,
        incarnation: str,
        holds: Literal["agent", "gateway"],
        endpoint: str = "",
    ) -> None:
        """`holder`: its name; `incarnation`: another one after each start; `endpoint`: as in `Snapshot`."""
        self.rows = Rows()
        self.endpoint = endpoint
        self.cut_off = 0
        """Readers that were too slow, so far."""
        self._loop = loop
        self._holder, self._incarnation = holder, incarnation
        self._holds: Literal["agent", "gateway"] = holds
        self._readers: set[Reader] = set()
        self._seq = 0
        self._lines: list[bytes] = []
        self._flushing: asyncio.Handle | None = None
        self._folding: asyncio.TimerHandle | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._said_s = 0.0

    @property
    def readers(self) -> int:
        """How many listen."""
        return len(self._readers)

    def say(self, message: Message) -> None:
        """Keep the rows by this, and tell it to all who listen. Progress has `progressed`."""
        self.rows.take(message, self._loop.time())
        if self._readers:
            self._tell(message)

    def progressed(self, key: str, tokens: int) -> None:
        """A request has so many output tokens in all: told within `FOLD_S`."""
        if self.rows.progressed(key, tokens) and self._readers and self._folding is None:
            self._folding = self._loop.call_later(FOLD_S, self._fold)

    def state(self) -> State:
        """All that is held now."""
        return State(
            holder=self._holder,
            incarnation=self._incarnation,
            holds=self._holds,
            endpoint=self.endpoint,
            draining=self.rows.draining,
            requests=self.rows.all(self._loop.time()),
        )

    def listen(self, sink: Sink, *, parts: bool = False) -> Reader | None:
        """Begin with the snapshot, in `parts` if it is long and the reader can take them; None if too many listen."""
        if len(self._readers) >= MOST_READERS:
            return None
        if not self._readers:
            self.rows.untold()  # the snapshot has it
        self._flush()
        now_s = self._loop.time()
        reader = Reader(self, sink)
        reader.left = self.rows.listing()
        requests = self.rows.some(reader.left, now_s, PART_BYTES if parts else math.inf)
        snapshot = Snapshot(
            holder=self._holder,
            incarnation=self._incarnation,
            holds=self._holds,
            endpoint=self.endpoint,
            draining=self.rows.draining,
            requests=requests,
            more=bool(reader.left),
        )
        self._readers.add(reader)
        sink.write(encode(snapshot, self._seq))
        self.go_on(reader)
        if self.rows.engine is not None:
            self._tell(self.rows.engine)  # to all: one sequence number serves them
        if self._beating is None:
            self._said_s = now_s
            self._beating = self._loop.call_later(BEAT_S, self._beat)
        return reader

    def part_for(self, reader: Reader) -> bytes:
        """The next part of its snapshot, empty if it has all. What was told goes out, or lies behind, before it."""
        if not reader.left:
            return b""
        self._flush()
        if reader not in self._readers:
            return b""
        reader.parts += 1
        requests = self.rows.some(reader.left, self._loop.time(), PART_BYTES)
        return encode(Part(number=reader.parts, requests=requests, more=bool(reader.left)), self._seq)

    def go_on(self, reader: Reader) -> None:
        """Send it the next part of its snapshot in the next turn. One that is paused gets it once it goes on."""
        if reader.left and not reader.paused and reader in self._readers:
            self._loop.call_soon(self._send_part, reader, reader.parts)

    def _send_part(self, reader: Reader, after: int) -> None:
        if reader.paused or reader.parts != after:
            return
        part = self.part_for(reader)
        if part:
            reader.take(part)
            self.go_on(reader)

    def leave(self, reader: Reader) -> None:
        """It listens no more."""
        self._readers.discard(reader)
        if not self._readers:
            self._stop_timers()

    def close(self) -> None:
        """End every reader."""
        self._flush()
        for reader in list(self._readers):
            reader.shut_down()
        self._stop_timers()

    def _tell(self, message: Message) -> None:
        self._seq += 1
        self._lines.append(encode(message, self._seq))
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if not self._lines:
            return
        lines, self._lines = b"".join(self._lines), []
        self._said_s = self._loop.time()
        for reader in list(self._readers):
            if not reader.take(lines):
                self.cut_off += 1
                self.leave(reader)

    def _fold(self) -> None:
        self._folding = None
        progress = self.rows.untold()
        if progress is not None:
            self._tell(progress)

    def _beat(self) -> None:
        silent_s = self._loop.time() - self._said_s
        if silent_s >= BEAT_S:
            self._tell(Beat())
            silent_s = 0.0
        self._beating = self._loop.call_later(BEAT_S - silent_s, self._beat)

    def _stop_timers(self) -> None:
        for handle in (self._folding, self._beating, self._flushing):
            if handle is not None:
                handle.cancel()
        self._folding = self._beating = self._flushing = None
        self._lines.clear()
