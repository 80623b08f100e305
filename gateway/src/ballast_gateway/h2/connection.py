"""The server's end of one HTTP/2 connection (RFC 9113): its frames, its streams, flow control both ways, its bounds.

All runs in `data_received`: frames are read, receivers called, and what they send leaves in one write at the end. Of a
burst only so much at a time: the rest has its turn when others of the loop have had theirs, and nothing more is read
until then. What is sent at other times leaves in the loop's next turn. A peer that breaks a rule loses its stream, or
the connection where the rule says so; a `Receiver` hears `lost` in either case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, cast

from ballast_gateway.h2 import blocks, frames
from ballast_gateway.h2.frames import DEFAULT_WINDOW, MAX_FRAME_BYTES, MAX_WINDOW, Code, ConnectionBroken, StreamBroken
from ballast_gateway.h2.limits import Limits
from ballast_gateway.h2.requests import Request, wrong_trailers
from ballast_gateway.h2.stream import Receiver, Stream

_log = logging.getLogger(__name__)

_DRAIN_PING: Final = b"drain..."
_ALIVE_PING: Final = b"alive..?"
_LAST_WORD_S: Final = 1.0
"""How long a draining peer may take to answer the PING after which it opens no more streams (6.8)."""
_TURN: Final = 32
"""Requests and parts of bodies that are taken in one turn of the loop: some 16 picks."""
_REMEMBERED: Final = 1024
"""Streams that are over, whose late frames are known for what they are."""


class Owner(Protocol):
    """What a connection needs of its server."""

    limits: Limits

    def accept(self, stream: Stream, request: Request) -> Receiver:
        """A request has come. It may be answered, and finished, at once."""

    def made(self, connection: Connection) -> bool:
        """A connection; whether there is room for it."""

    def lost(self, connection: Connection) -> None:
        """It is gone."""


_Handler: TypeAlias = "Callable[[Connection, int, int, bytes], None]"


class Connection(asyncio.Protocol):
    """One peer. Its server calls `sweep` now and then, and `drain` and `cut` at its end."""

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self.limits = owner.limits
        self.streams: dict[int, Stream] = {}
        """Those that are not over."""
        self.window = DEFAULT_WINDOW
        """Bytes that may be sent, of all streams."""
        self.initial_window = DEFAULT_WINDOW
        """Of each new stream."""
        self._owner = owner
        self.loop = loop
        self._reader = blocks.BlockReader(self.limits.header_bytes)
        self._buffer = b""
        self._out: list[bytes] = []
        self._greeted = False
        self._expects: int | None = frames.SETTINGS
        """Only this type of frame may follow."""
        self._block: list[bytes] = []
        """The parts of a header block that goes on."""
        self._block_stream = self._block_flags = self._block_bytes = 0
        self._block_refused = ""
        self._last_id = 0
        self._most_id = MAX_WINDOW
        """The last stream that may be served, as far as the peer has been told."""
        self._window_in = DEFAULT_WINDOW
        self._over: dict[int, bool] = {}
        """Streams that are over, the latest; whether it was we who ended them before the peer did."""
        self._unsent: dict[int, Stream] = {}
        self._starved: dict[int, Stream] = {}
        """Those of `_unsent` that wait for the connection's window, the longest first."""
        self._wrote_block = False
        self._reading = False
        self._turn = 0
        """How much more may be taken in this turn of the loop."""
        self._has_turn = False
        """Another turn is due for what has come already."""
        self._leaving = False
        """No more streams are taken; closed with the last."""
        self._draining = False
        self._closing = False
        self._calm = float(self.limits.nuisances)
        self._calm_at_s = self._begun_s = self._silent_since_s = self._idle_since_s = loop.time()
        self._heard = False
        self._pinged_s: float | None = None
        self._stalled_s: float | None = None
        self._closed_s = self._drained_s = 0.0

    # --- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._owner.made(self):
            self._closing = True
            transport.close()
            return
        limits = self.limits
        values = {
            frames.MAX_CONCURRENT_STREAMS: limits.streams,
            frames.INITIAL_WINDOW_SIZE: limits.stream_window,
            frames.MAX_HEADER_LIST_SIZE: limits.header_bytes,
        }
        self.put(frames.settings(values))
        self._refill()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._heard = True
        self._take(self._buffer + data if self._buffer else data)

    def _take(self, data: bytes) -> None:
        self._reading, self._turn = True, _TURN
        try:
            at = self._read(data)
            self._buffer = data[at:]
        except ConnectionBroken as broken:
            self._break(broken.code, str(broken))
        except Exception:
            _log.exception("an HTTP/2 connection failed")
            self._break(Code.INTERNAL_ERROR, "the server failed; its log says why")
        self._reading = False
        self._flush()
        if self._turn <= 0 and self._buffer and not (self._has_turn or self._closing):
            self._has_turn = True
            self._transport.pause_reading()
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Take more of a burst."""
        self._has_turn = False
        if not self._closing:
            self._take(self._buffer)
        self._read_on()

    def _read_on(self) -> None:
        """Read again, unless a turn is due or the peer does not read. At the end its own end is waited for."""
        if not self._has_turn and self._stalled_s is None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._owner.lost(self)
        self._lose_streams()

    def pause_writing(self) -> None:
        self._stalled_s = self.loop.time()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._stalled_s = None
        self._read_on()

    # --- sending ----------------------------------------------------------------------------------------------------

    def put(self, data: bytes) -> None:
        """Frames that leave with the others of this turn."""
        self._out.append(data)
        if not self._reading and len(self._out) == 1:
            self.loop.call_soon(self._flush)

    def header_frames(self, stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
        """The frames of a block that `blocks.write` wrote; call it in the order in which they leave."""
        if not self._wrote_block:
            self._wrote_block = True
            block = blocks.NO_TABLE + block
        return frames.header_frames(stream_id, block, end_stream=end_stream)

    def useful(self) -> None:
        """A message has been answered: that much patience comes back."""
        if self._calm < self.limits.nuisances:
            self._calm += 1

    def waits(self, stream: Stream) -> None:
        """A stream could not send all."""
        if stream.id not in self._unsent:
            self._unsent[stream.id] = stream
            stream.unsent_since_s = self.loop.time()
        if stream.window > 0:
            self._starved.setdefault(stream.id, stream)
        else:
            self._starved.pop(stream.id, None)

    def over(self, stream: Stream) -> None:
        """A stream has sent its end."""
        if not stream.remote_ended:  # a whole answer, and the rest of the request is not wanted (8.1)
            self.put(frames.rst_stream(stream.id, Code.NO_ERROR))
        self._forget(stream.id, ours=not stream.remote_ended)

    def _flush(self) -> None:
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            if not self._transport.is_closing():
                self._transport.write(data)
        if self._leaving and not self.streams and not self._closing:
            self._close(lingers=True)

    def _close(self, *, lingers: bool = False) -> None:
        """`lingers`: our side ends, and the peer ends its own: what it has sent already is no reason for a reset, which
        could overtake our last words."""
        self._closing = True
        self._closed_s = self.loop.time()
        self._buffer = b""
        if lingers and self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _break(self, code: Code, reason: str) -> None:
        """End all, and say why."""
        self._out.append(frames.goaway(min(self._last_id, self._most_id), code, reason))
        self._reading = True  # what receivers send now would come after the end
        self._lose_streams()
        self._reading = False
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()
        self._close()

    def _lose_streams(self) -> None:
        streams = list(self.streams.values())
        for waiting in (self.streams, self._unsent, self._starved):
            waiting.clear()
        for stream in streams:
            self._lose(stream)

    def _lose(self, stream: Stream) -> None:
        receiver, stream.receiver = stream.receiver, None
        if receiver is not None:
            receiver.lost()

    def _forget(self, stream_id: int, *, ours: bool) -> Stream | None:
        stream = self.streams.pop(stream_id, None)
        if self._unsent:
            self._unsent.pop(stream_id, None)
            self._starved.pop(stream_id, None)
        over = self._over
        over[stream_id] = ours
        if len(over) > _REMEMBERED:
            del over[next(iter(over))]
        return stream

    def _reset(self, stream_id: int, code: Code) -> None:
        if stream_id not in self.streams and self._over.get(stream_id):
            return  # it has been told
        self.put(frames.rst_stream(stream_id, code))
        stream = self._forget(stream_id, ours=True)
        if stream is not None:
            self._lose(stream)

    def _refill(self) -> None:
        """Open the connection's own window again."""
        missing = self.limits.connection_window - self._window_in
        if missing > 0:
            self._window_in += missing
            self.put(frames.window_update(0, missing))

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> int:
        """Read whole frames; returns where the rest begins."""
        at, size = 0, len(data)
        if not self._greeted:
            if not frames.PREFACE.startswith(data[: len(frames.PREFACE)]):
                raise ConnectionBroken(Code.PROTOCOL_ERROR, "this port speaks HTTP/2 only")
            if size < len(frames.PREFACE):
                return 0
            at, self._greeted = len(frames.PREFACE), True
        unpack = frames.HEAD.unpack_from
        while size - at >= frames.HEAD_BYTES and self._turn > 0:
            upper, lower, kind, flags, stream_id = unpack(data, at)
            length = upper << 8 | lower
            if length > MAX_FRAME_BYTES:
                raise ConnectionBroken(Code.FRAME_SIZE_ERROR, "a frame beyond SETTINGS_MAX_FRAME_SIZE")
            end = at + frames.HEAD_BYTES + length
            if end > size:
                break
            if self._expects is not None and kind != self._expects:
                raise ConnectionBroken(Code.PROTOCOL_ERROR, "another frame had to come here")
            payload = data[at + frames.HEAD_BYTES : end]
            at = end
            try:
                handle = _HANDLERS.get(kind)
                if handle is None:
                    self._bear(1)  # types unknown are ignored (5.5)
                else:
                    handle(self, flags, stream_id & MAX_WINDOW, payload)
            except StreamBroken as broken:
                self._bear(1)
                if broken.stream_id > self._last_id:  # idle: there is nothing to reset
                    raise ConnectionBroken(broken.code, str(broken)) from broken
                self._reset(broken.stream_id, broken.code)
            if self._leaving and not self.streams:
                break  # nothing more is wanted, whatever lies in the same packet
        return at

    def _bear(self, nuisance: float) -> None:
        """Count what brings no call forward. Raises `ConnectionBroken` when it is too much."""
        self._calm -= nuisance
        if self._calm < 0:
            now_s, limits = self.loop.time(), self.limits
            back = (now_s - self._calm_at_s) * limits.nuisances_per_s
            self._calm, self._calm_at_s = min(limits.nuisances, self._calm + back), now_s
            if self._calm < 0:
                raise ConnectionBroken(Code.ENHANCE_YOUR_CALM, "too many frames that bring no call forward")

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._window_in -= size
        if self._window_in < 0:
            raise ConnectionBroken(Code.FLOW_CONTROL_ERROR, "more than the connection's window")
        if self._window_in * 2 < self.limits.connection_window:
            self._refill()
        stream = self.streams.get(stream_id)
        if stream is None or stream.remote_ended:
            self._astray(stream_id, stream)
            return
        if size > stream.window_in:
            raise StreamBroken(stream_id, Code.FLOW_CONTROL_ERROR, "more than the stream's window")
        stream.window_in -= size
        if flags & frames.PADDED:
            payload = _unpadded(payload)
            stream.credit(size - len(payload))
        ended = flags & frames.END_STREAM != 0
        if not payload and not ended:
            self._bear(1)
        if stream.length_left is not None:
            stream.length_left -= len(payload)
        self._deliver(stream, payload, ended=ended)

    def _deliver(self, stream: Stream, data: bytes, *, ended: bool) -> None:
        left = stream.length_left
        if left is not None and (left < 0 or (ended and left)):
            raise StreamBroken(stream.id, Code.PROTOCOL_ERROR, "the body is not as long as content-length says")
        stream.remote_ended = ended
        self._turn -= 1
        if stream.receiver is not None:
            stream.receiver.data(data, ended=ended)

    def _astray(self, stream_id: int, stream: Stream | None) -> None:
        """DATA on a stream that is not open."""
        self._must_have_begun(stream_id)
        if stream is None and self._over.get(stream_id):
            self._bear(0.1)  # was on its way when we ended the stream
            return
        raise StreamBroken(stream_id, Code.STREAM_CLOSED, "DATA on a closed stream")

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionBroken(Code.PROTOCOL_ERROR, "HEADERS without a stream")
        if flags & frames.PADDED:
            payload = _unpadded(payload)
        self._block_refused = ""
        if flags & frames.WITH_PRIORITY:
            if len(payload) < 5:
                raise ConnectionBroken(Code.FRAME_SIZE_ERROR, "a priority that is cut off")
            if frames.read_word(payload) == stream_id:
                self._block_refused = "a stream that depends on itself"
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._whole_block(flags, stream_id, payload)
            return
        self._block, self._block_bytes = [payload], len(payload)
        self._block_stream, self._block_flags = stream_id, flags
        self._expects = frames.CONTINUATION
        self._begun_s = self.loop.time()

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._expects is None or stream_id != self._block_stream:
            raise ConnectionBroken(Code.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._bear(1)
        self._block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > self.limits.header_bytes:
            raise ConnectionBroken(Code.ENHANCE_YOUR_CALM, "too many header bytes")
        if flags & frames.END_HEADERS:
            block = b"".join(self._block)
            self._block, self._expects = [], None
            self._whole_block(self._block_flags, stream_id, block)

    def _whole_block(self, flags: int, stream_id: int, block: bytes) -> None:
        ended = flags & frames.END_STREAM != 0
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._trailers(stream, self._reader.fields(block), ended=ended)
            return
        request = self._reader.request(block)
        if stream_id <= self._last_id:
            self._late_headers(stream_id)
            return
        if stream_id % 2 == 0:
            raise ConnectionBroken(Code.PROTOCOL_ERROR, "a client's streams are odd")
        self._last_id = stream_id
        if self._leaving or len(self.streams) >= self.limits.streams:
            raise StreamBroken(stream_id, Code.REFUSED_STREAM, "no room, or the server ends")
        wrong = self._block_refused or request.wrong
        if wrong:
            raise StreamBroken(stream_id, Code.PROTOCOL_ERROR, wrong)
        stream = Stream(self, stream_id, request.length)
        self.streams[stream_id] = stream
        self._turn -= 1
        receiver = self._owner.accept(stream, request)
        if stream_id in self.streams:
            stream.receiver = receiver
        if ended:
            self._deliver(stream, b"", ended=True)

    def _trailers(self, stream: Stream, fields: list[tuple[bytes, bytes]], *, ended: bool) -> None:
        if stream.remote_ended:
            raise StreamBroken(stream.id, Code.STREAM_CLOSED, "HEADERS after the end")
        wrong = self._block_refused or ("" if ended else "a second head") or wrong_trailers(fields)
        if wrong:
            raise StreamBroken(stream.id, Code.PROTOCOL_ERROR, wrong)
        self._deliver(stream, b"", ended=True)

    def _late_headers(self, stream_id: int) -> None:
        ours = self._over.get(stream_id)
        if ours is None:
            raise ConnectionBroken(Code.PROTOCOL_ERROR, "streams are opened in order")
        if not ours:
            raise ConnectionBroken(Code.STREAM_CLOSED, "HEADERS on a closed stream")
        self._bear(1)

    def _priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionBroken(Code.PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != 5:
            raise StreamBroken(stream_id, Code.FRAME_SIZE_ERROR, "PRIORITY has 5 bytes")
        if frames.read_word(payload) == stream_id:
            raise StreamBroken(stream_id, Code.PROTOCOL_ERROR, "a stream that depends on itself")
        self._bear(1)

    def _rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionBroken(Code.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        self._must_have_begun(stream_id)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._bear(1)
            return
        self._forget(stream_id, ours=False)
        self._lose(stream)
        if not stream.answered:
            self._bear(1)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionBroken(Code.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionBroken(Code.FRAME_SIZE_ERROR, "an acknowledgement with content")
            if self._expects is not None:
                raise ConnectionBroken(Code.PROTOCOL_ERROR, "an acknowledgement before SETTINGS")
            self._bear(1)
            return
        if len(payload) % 6:
            raise ConnectionBroken(Code.FRAME_SIZE_ERROR, "SETTINGS has 6 bytes for each")
        self._expects = None
        self._bear(1 + len(payload) // 48)
        before = self.initial_window
        for name, value in frames.read_settings(payload):
            self._set(name, value)
        self.put(frames.frame(frames.SETTINGS, frames.ACK, 0, b""))
        if self.initial_window != before:
            for stream in list(self._unsent.values()):
                self._resume(stream)

    def _set(self, name: int, value: int) -> None:
        match name:
            case frames.ENABLE_PUSH if value > 1:
                raise ConnectionBroken(Code.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is 0 or 1")
            case frames.MAX_FRAME_SIZE if not MAX_FRAME_BYTES <= value < 1 << 24:
                raise ConnectionBroken(Code.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE out of its range")
            case frames.INITIAL_WINDOW_SIZE if value > MAX_WINDOW:
                raise ConnectionBroken(Code.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE beyond its limit")
            case frames.INITIAL_WINDOW_SIZE:
                self._resize(value)
            case _:  # none of the others limits what this server sends: no push, no table, few headers
                pass

    def _resize(self, value: int) -> None:
        change, self.initial_window = value - self.initial_window, value
        if not change:
            return
        self._bear(len(self.streams) / 16)
        for stream in self.streams.values():
            stream.window += change
            if stream.window > MAX_WINDOW:
                raise ConnectionBroken(Code.FLOW_CONTROL_ERROR, "a stream's window beyond its limit")

    def _push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionBroken(Code.PROTOCOL_ERROR, "clients push nothing")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionBroken(Code.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionBroken(Code.FRAME_SIZE_ERROR, "PING has 8 bytes")
        self._bear(1)
        if not flags & frames.ACK:
            self.put(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _DRAIN_PING:
            self._last_word()

    def _goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionBroken(Code.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionBroken(Code.FRAME_SIZE_ERROR, "a GOAWAY that is cut off")
        self._bear(1)
        self._leaving = True

    def _window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionBroken(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        self._bear(1)
        increment = frames.read_word(payload)
        if stream_id == 0:
            self.window += increment
            if not increment:
                raise ConnectionBroken(Code.PROTOCOL_ERROR, "a window that grows by nothing")
            if self.window > MAX_WINDOW:
                raise ConnectionBroken(Code.FLOW_CONTROL_ERROR, "the connection's window beyond its limit")
            self._feed_starved()
            return
        self._must_have_begun(stream_id)
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        stream.window += increment
        if not increment:
            raise StreamBroken(stream_id, Code.PROTOCOL_ERROR, "a window that grows by nothing")
        if stream.window > MAX_WINDOW:
            raise StreamBroken(stream_id, Code.FLOW_CONTROL_ERROR, "a stream's window beyond its limit")
        self._resume(stream)

    def _must_have_begun(self, stream_id: int) -> None:
        if stream_id == 0 or stream_id > self._last_id:
            raise ConnectionBroken(Code.PROTOCOL_ERROR, "a frame for a stream that has not begun")

    def _feed_starved(self) -> None:
        while self._starved and self.window > 0:
            stream_id = next(iter(self._starved))
            self._resume(self._starved.pop(stream_id))

    def _resume(self, stream: Stream) -> None:
        if stream.id not in self._unsent:
            return
        before = stream.unsent_bytes
        stream.pump()
        if stream.unsent_bytes < before:
            stream.unsent_since_s = self.loop.time()
        if not stream.unsent_bytes:
            self._unsent.pop(stream.id, None)
            self._starved.pop(stream.id, None)
            if stream.receiver is not None:
                stream.receiver.room()

    # --- time and the end -------------------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Called periodically: end what has been silent, idle or stuck for too long."""
        limits = self.limits
        if self._closing:
            if now_s - self._closed_s > _LAST_WORD_S:
                self._transport.abort()
        elif self._stalled_s is not None:
            if now_s - self._stalled_s > limits.stall_s:
                self._transport.abort()
        elif self._expects is not None and now_s - self._begun_s > limits.handshake_s:
            self._break(Code.SETTINGS_TIMEOUT, "too slow")
        elif self._draining and not self._leaving and now_s - self._drained_s > _LAST_WORD_S:
            self._last_word()
        else:
            self._sweep_streams(now_s)
            self._sweep_peer(now_s)

    def _sweep_streams(self, now_s: float) -> None:
        for stream in list(self._unsent.values()):
            if stream.receiver is None and now_s - stream.unsent_since_s > self.limits.stall_s:
                self._reset(stream.id, Code.CANCEL)
        if self.streams:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s > self.limits.idle_s:
            self.drain()

    def _sweep_peer(self, now_s: float) -> None:
        if self._heard:
            self._heard, self._silent_since_s, self._pinged_s = False, now_s, None
        elif self._pinged_s is not None:
            if now_s - self._pinged_s > self.limits.ping_timeout_s:
                self._transport.abort()
        elif now_s - self._silent_since_s > self.limits.ping_after_s:
            self._pinged_s = now_s
            self.put(frames.frame(frames.PING, 0, 0, _ALIVE_PING))

    def drain(self) -> None:
        """Ask the peer to open no more streams; close after the last. Streams on their way are still taken (6.8)."""
        if self._draining or self._closing:
            return
        self._draining, self._drained_s = True, self.loop.time()
        if self._expects is frames.SETTINGS:
            self._last_word()
            return
        self.put(frames.goaway(MAX_WINDOW, Code.NO_ERROR) + frames.frame(frames.PING, 0, 0, _DRAIN_PING))

    def _last_word(self) -> None:
        if self._draining and not self._leaving:
            self._leaving = True
            self._most_id = self._last_id
            self.put(frames.goaway(self._last_id, Code.NO_ERROR))

    def cut(self) -> None:
        """Close now. Streams say their last words, or are lost."""
        if self._closing:
            return
        for stream in list(self.streams.values()):
            if stream.receiver is not None:
                stream.receiver.cut()
        self._break(Code.NO_ERROR, "the server ends")

    def abort(self) -> None:
        """Close without waiting for the peer to read."""
        self._transport.abort()


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionBroken(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


_HANDLERS: Final[dict[int, _Handler]] = {
    frames.DATA: Connection._data,
    frames.HEADERS: Connection._headers,
    frames.PRIORITY: Connection._priority,
    frames.RST_STREAM: Connection._rst_stream,
    frames.SETTINGS: Connection._settings,
    frames.PUSH_PROMISE: Connection._push_promise,
    frames.PING: Connection._ping,
    frames.GOAWAY: Connection._goaway,
    frames.WINDOW_UPDATE: Connection._window_update,
    frames.CONTINUATION: Connection._continuation,
}
