"""What goes over the wire where a request has a fault: one kind of Exchange for each, and the table of them.

The honest server answers into a faulty exchange as into any other. A streamed token is one `write_framed` (with
`--stream-interval` above 1: several), and the last one comes with `finish`.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from ballast_sim.engine_sim.http11 import CHUNKED, EVENT_STREAM, LAST_CHUNK, Exchange, chunk, message_head
from ballast_sim.engine_sim.misbehave import answers
from ballast_sim.engine_sim.misbehave.facts import Facts
from ballast_sim.engine_sim.misbehave.faults import (
    ChunkFraming,
    ContentLength,
    Die,
    End,
    ErrorEvent,
    Garbage,
    Hang,
    RequestFault,
    Reset,
    Slow,
    SmallContext,
    Status,
    Trickle,
    WrongKey,
    WrongModel,
)

F = TypeVar("F", bound=RequestFault)
STREAM_LENGTH = 64
"""What a stream with a wrong content-length says."""


class FaultyExchange(Exchange, Generic[F]):
    """An exchange with a fault."""

    def __init__(self, fault: F, shown: Callable[[], None], honest: Exchange) -> None:
        """In place of the honest exchange; `shown` is called when the fault takes effect."""
        super().__init__(honest.protocol, honest.keep_alive, honest.head_only)
        self.fault = fault
        self.shown = shown
        honest.protocol.replace_exchange(self)

    def begin(self, facts: Facts) -> bool:
        """Before the server sees the request. True: it need not see it."""
        return False


# -- answers in place of the engine's ----------------------------------------------------------------------------------


class _Answering(FaultyExchange[F]):
    def begin(self, facts: Facts) -> bool:
        """See `FaultyExchange.begin`."""
        self.shown()
        self.respond(*self._answer(facts))
        return True

    def _answer(self, facts: Facts) -> tuple[int, bytes]:
        raise NotImplementedError


class _Unauthorized(_Answering[WrongKey]):
    def _answer(self, facts: Facts) -> tuple[int, bytes]:
        return 401, answers.UNAUTHORIZED


class _UnknownModel(_Answering[WrongModel]):
    def _answer(self, facts: Facts) -> tuple[int, bytes]:
        return 404, answers.unknown_model(facts)


class _TooLong(_Answering[SmallContext]):
    def _answer(self, facts: Facts) -> tuple[int, bytes]:
        return 400, answers.too_long(len(facts.tokens), self.fault.tokens)


class _Failed(_Answering[Status]):
    def _answer(self, facts: Facts) -> tuple[int, bytes]:
        return self.fault.status, answers.status_body(self.fault.status)


# -- answers that break ------------------------------------------------------------------------------------------------

P = TypeVar("P", bound=ErrorEvent | Reset | End | Hang | Die | Garbage | ChunkFraming)


class _Striking(FaultyExchange[P]):
    """The fault strikes once, at its point of the answer. Honest errors pass."""

    def __init__(self, fault: P, shown: Callable[[], None], honest: Exchange) -> None:
        super().__init__(fault, shown, honest)
        self._tokens = 0
        self._struck = False
        self._mute = False

    def begin(self, facts: Facts) -> bool:
        """See `FaultyExchange.begin`."""
        return self._struck_at("request")

    def start_stream(self) -> None:
        """See `Exchange`."""
        super().start_stream()
        self._struck_at("head")

    def write_framed(self, data: bytes) -> None:
        """See `Exchange`: one token more."""
        self._struck_at(self._tokens)
        self._tokens += 1
        self._write(data)

    def finish(self, data: bytes = b"") -> None:
        """See `Exchange`: the last token."""
        self._struck_at(self._tokens)
        super().finish(data)

    def respond(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        """See `Exchange`: an answer that is no stream has the fault in its place, or after its head."""
        if status >= 400 or not self.open:
            super().respond(status, body, content_type)
            return
        if self.fault.after == "head":
            length = b"content-length: %d\r\n" % len(body)
            self._write(message_head(status, content_type, length, self.keep_alive))
        self._struck = True
        self.shown()
        self._strike_whole(body, content_type)

    def _struck_at(self, point: str | int) -> bool:
        if self._struck or not self.open or self.fault.after != point:
            return False
        self._struck = True
        self.shown()
        self._strike()
        return True

    def _strike(self) -> None:
        """Where the point is in a stream, or before any answer."""
        raise NotImplementedError

    def _strike_whole(self, body: bytes, content_type: bytes) -> None:
        """Where the answer is no stream."""
        self._strike()

    def _write(self, data: bytes) -> None:
        if not self._mute:
            super()._write(data)

    def _done(self) -> None:
        if not self._mute:
            super()._done()

    def _give_up(self) -> None:
        """The server need not go on with the request."""
        if self.on_disconnect is not None:
            asyncio.get_running_loop().call_soon(self.on_disconnect)


class _WithErrorEvent(_Striking[ErrorEvent]):
    def _strike(self) -> None:
        self._give_up()
        Exchange.finish(self, answers.error_event())

    def _strike_whole(self, body: bytes, content_type: bytes) -> None:
        self.respond(500, answers.error_body())


class _Ending(_Striking[End]):
    def _strike(self) -> None:
        self._give_up()
        Exchange.finish(self)

    def _strike_whole(self, body: bytes, content_type: bytes) -> None:
        length = b"content-length: %d\r\n" % len(body)
        self._write(message_head(200, content_type, length, keep_alive=False) + body[: len(body) // 2])
        self.keep_alive = False
        self._done()


class _Hanging(_Striking[Hang]):
    def _strike(self) -> None:
        self._mute = True


class _Resetting(_Striking[Reset]):
    def _strike(self) -> None:
        """The connection's end tells the server that the client has gone."""
        self._mute = True
        self.protocol.reset()


class _Dying(_Striking[Die]):
    def _strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


# -- answers that are wrong --------------------------------------------------------------------------------------------


class _WithGarbage(_Striking[Garbage]):
    def _strike(self) -> None:
        self._write(chunk(answers.GARBAGE[self.fault.garbage]))

    def _strike_whole(self, body: bytes, content_type: bytes) -> None:
        garbage = answers.GARBAGE[self.fault.garbage].removeprefix(b"data: ").strip()
        Exchange.respond(self, 200, garbage, content_type)


class _BadlyChunked(_Striking[ChunkFraming]):
    def _strike(self) -> None:
        self._write(b"zz\r\n")

    def _strike_whole(self, body: bytes, content_type: bytes) -> None:
        self._write(message_head(200, content_type, CHUNKED, self.keep_alive) + b"zz\r\n" + chunk(body) + LAST_CHUNK)
        self._done()


class _WrongLength(FaultyExchange[ContentLength]):
    def start_stream(self) -> None:
        """See `Exchange`."""
        self.shown()
        self.started = True
        self.keep_alive = False
        self._write(message_head(200, EVENT_STREAM, b"content-length: %d\r\n" % STREAM_LENGTH, keep_alive=False))

    def write_framed(self, data: bytes) -> None:
        """See `Exchange`: without the framing."""
        self._write(data.partition(b"\r\n")[2].removesuffix(b"\r\n"))

    def finish(self, data: bytes = b"") -> None:
        """See `Exchange`."""
        self._write(data)
        self._done()

    def respond(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        """See `Exchange`."""
        self.shown()
        self.started = True
        self.keep_alive = False
        length = b"content-length: %d\r\n" % max(0, len(body) + self.fault.off_by)
        self._write(message_head(status, content_type, length, keep_alive=False) + body)
        self._done()


# -- answers that are slow ---------------------------------------------------------------------------------------------

L = TypeVar("L", bound=Trickle | Slow)


class _Late(FaultyExchange[L]):
    """Bytes leave later than they were written, in their order."""

    def __init__(self, fault: L, shown: Callable[[], None], honest: Exchange) -> None:
        super().__init__(fault, shown, honest)
        self._loop = asyncio.get_running_loop()
        self._begun_s = self._loop.time()
        self._queue: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._begun = self._over = False

    def _plan(self, data: bytes, first: bool) -> None:
        """Queue bytes with the times at which they may leave."""
        raise NotImplementedError

    def write_framed(self, data: bytes) -> None:
        """See `Exchange`."""
        self._write(data)

    def _write(self, data: bytes) -> None:
        if not self.open:
            return
        first, self._begun = not self._begun, True
        if first:
            self.shown()
        self._plan(data, first)
        if self._timer is None and self._queue:
            self._arm()

    def _arm(self) -> None:
        self._timer = self._loop.call_later(max(0.0, self._queue[0][0] - self._loop.time()), self._send)

    def _send(self) -> None:
        self._timer = None
        if not self.open:
            return
        Exchange._write(self, self._queue.popleft()[1])
        if self._queue:
            self._arm()
        elif self._over:
            super()._done()

    def _done(self) -> None:
        self._over = True
        if not self._queue:
            super()._done()


class _Trickling(_Late[Trickle]):
    def _plan(self, data: bytes, first: bool) -> None:
        fault, slowly = self.fault, data
        if fault.part == "head":
            slowly = data[: data.index(b"\r\n\r\n") + 4] if first else b""
        at_s = max(self._queue[-1][0] if self._queue else 0.0, self._loop.time())
        for start in range(0, len(slowly), fault.size):
            at_s += fault.pause_s
            self._queue.append((at_s, slowly[start : start + fault.size]))
        if len(slowly) < len(data):
            self._queue.append((at_s, data[len(slowly) :]))


class _Slowed(_Late[Slow]):
    def _plan(self, data: bytes, first: bool) -> None:
        self._queue.append((self._begun_s + self.fault.factor * (self._loop.time() - self._begun_s), data))


EXCHANGES: Mapping[type[RequestFault], type[FaultyExchange[Any]]] = {
    WrongKey: _Unauthorized,
    WrongModel: _UnknownModel,
    SmallContext: _TooLong,
    Status: _Failed,
    ErrorEvent: _WithErrorEvent,
    Reset: _Resetting,
    End: _Ending,
    Hang: _Hanging,
    Die: _Dying,
    Garbage: _WithGarbage,
    ContentLength: _WrongLength,
    ChunkFraming: _BadlyChunked,
    Trickle: _Trickling,
    Slow: _Slowed,
}
