"""Frames of HTTP/2 (RFC 9113, sections 4, 6 and 7) as bytes, and the errors that end a stream or a connection."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
MAX_FRAME_BYTES: Final = 1 << 14
"""The least that every peer takes, and the most that we do (SETTINGS_MAX_FRAME_SIZE as it is by default)."""
MAX_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = (1 << 16) - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

HEAD: Final = Struct(">HBBBL")
"""The upper 16 bits of the length, the lower 8, type, flags, stream (with a reserved bit)."""
_WORD: Final = Struct(">L")
_TWO_WORDS: Final = Struct(">LL")
_SETTING: Final = Struct(">HL")


class Code(IntEnum):
    """Error codes, section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class ConnectionBroken(Exception):
    """The peer broke a rule that ends the connection."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamBroken(Exception):
    """The peer broke a rule that ends one stream."""

    def __init__(self, stream_id: int, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """One frame."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """SETTINGS."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The parameters of a SETTINGS frame, in order."""
    return list(_SETTING.iter_unpack(payload))


def window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))


def rst_stream(stream_id: int, code: Code) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, _WORD.pack(code))


def goaway(last_stream_id: int, code: Code, reason: str = "") -> bytes:
    """GOAWAY; `reason` for whoever debugs the peer."""
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last_stream_id, code) + reason.encode())


def read_word(payload: bytes) -> int:
    """31 bits; the first bit is reserved."""
    word: int = _WORD.unpack_from(payload)[0]
    return word & MAX_WINDOW


def header_frames(stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
    """HEADERS, and CONTINUATION where the block is long."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= MAX_FRAME_BYTES:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [block[at : at + MAX_FRAME_BYTES] for at in range(0, len(block), MAX_FRAME_BYTES)]
    out = [frame(HEADERS, flags, stream_id, parts[0])]
    out += [frame(CONTINUATION, 0, stream_id, part) for part in parts[1:-1]]
    out.append(frame(CONTINUATION, END_HEADERS, stream_id, parts[-1]))
    return b"".join(out)
