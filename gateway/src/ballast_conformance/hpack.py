"""HPACK (RFC 7541) without a dynamic table: the client asks for none, so that each header block stands by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

_ENTRIES: Final = (
    ":authority",
    ":method=GET",
    ":method=POST",
    ":path=/",
    ":path=/index.html",
    ":scheme=http",
    ":scheme=https",
    ":status=200",
    ":status=204",
    ":status=206",
    ":status=304",
    ":status=400",
    ":status=404",
    ":status=500",
    "accept-charset",
    "accept-encoding=gzip, deflate",
    "accept-language",
    "accept-ranges",
    "accept",
    "access-control-allow-origin",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "link",
    "location",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "refresh",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "transfer-encoding",
    "user-agent",
    "vary",
    "via",
    "www-authenticate",
)
_STATIC: Final = tuple((name, value) for name, _, value in (entry.partition("=") for entry in _ENTRIES))
"""Appendix A: name and value of the indices from 1."""

_CODE_LENGTHS: Final = (
    "isxxxxxxxtzxxzxxxxxxxxzxxxxxxxxxbffhibdgffdgdbbbaaabbbbbbbcdkbhfibccccccccccccccccccccccdcdioijbkaba"
    "babbbaccbbbabcbaabccccckgjixprpprrrsrssssststtrstssssqrsrsstrqprrssqsrrtqrssqqrqsrssprrrsrrsvvporsru"
    "vvvwwvtuoqvwwvwtqqvvxwwwptpqrqqsrruuttvsvwvvwwwwwxwwwwwvz"
)
"""Appendix B: the bits of the code of each byte, and of the end of a string; a letter each, "a" for 5."""


def _codes() -> dict[tuple[int, int], int]:
    """By length and code: codes follow each other in the order of their lengths, then of the bytes."""
    lengths = sorted((ord(letter) - ord("a") + 5, byte) for byte, letter in enumerate(_CODE_LENGTHS))
    code, found = 0, {(lengths[0][0], 0): lengths[0][1]}
    for (before, _), (length, byte) in pairwise(lengths):
        code = (code + 1) << (length - before)
        found[length, code] = byte
    return found


_CODES: Final = _codes()


def encode(headers: Iterable[tuple[str, str]]) -> bytes:
    """A header block of literals without indexing."""
    block = bytearray()
    for name, value in headers:
        block.append(0)
        for text in (name.encode(), value.encode()):
            block += _number(len(text), 7) + text
    return bytes(block)


def decode(block: bytes) -> list[tuple[str, str]]:
    """The headers of a block. Raises `ValueError` if it is none, or uses a dynamic table."""
    headers: list[tuple[str, str]] = []
    reader = _Reader(block)
    while reader.left:
        first = reader.peek()
        if first & 0x80:
            headers.append(_entry(reader.number(7)))
        elif first & 0xE0 == 0x20:
            reader.number(5)  # the size of a dynamic table: 0
        else:
            index = reader.number(6 if first & 0x40 else 4)
            name = _entry(index)[0] if index else reader.text()
            headers.append((name, reader.text()))
    return headers


def _entry(index: int) -> tuple[str, str]:
    if not 0 < index <= len(_STATIC):
        raise ValueError(f"index {index} is not in HPACK's static table")
    return _STATIC[index - 1]


class _Reader:
    def __init__(self, block: bytes) -> None:
        self._block = block
        self._at = 0

    @property
    def left(self) -> bool:
        return self._at < len(self._block)

    def peek(self) -> int:
        if not self.left:
            raise ValueError("an HPACK block breaks off")
        return self._block[self._at]

    def number(self, bits: int) -> int:
        most = (1 << bits) - 1
        value = self.peek() & most
        self._at += 1
        if value < most:
            return value
        for shift in range(0, 28, 7):
            byte = self.peek()
            self._at += 1
            value += (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("an HPACK number of more than four bytes")

    def text(self) -> str:
        packed = bool(self.peek() & 0x80)
        size = self.number(7)
        raw = self._block[self._at : self._at + size]
        if len(raw) < size:
            raise ValueError("an HPACK block breaks off")
        self._at += size
        return (bytes(_unpacked(raw)) if packed else raw).decode("latin-1")


def _unpacked(raw: bytes) -> Iterator[int]:
    """Huffman's code undone; the ones that fill up the last byte are no code."""
    length = code = 0
    for byte in raw:
        for bit in range(7, -1, -1):
            length, code = length + 1, code << 1 | byte >> bit & 1
            symbol = _CODES.get((length, code))
            if symbol is not None:
                yield symbol
                length = code = 0


def _number(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    rest, out = value - most, bytearray((most,))
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
