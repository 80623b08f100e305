"""Header blocks (HPACK, RFC 7541), read by the library `hpack` and written by hand.

A library in Python takes a hundred microseconds for a request's headers. But a proxy sends the same for each of its
calls, so that after its first ones a block has the same bytes each time. As long as the peer's dynamic table does not
change, the same bytes mean the same: what has been read once is remembered.

We use no table ourselves and no Huffman code: few and short headers go out, most of them constant.
"""

from __future__ import annotations

from typing import Final

import hpack

from ballast_gateway.h2.frames import Code, ConnectionBroken
from ballast_gateway.h2.requests import Request, read_request

NO_TABLE: Final = b"\x20"
"""Begins our first block: our table has no entries from here on, whatever the peer would allow."""
_USUAL_BYTES: Final = 512
"""Longer blocks are not remembered."""
_MOST_KNOWN: Final = 64


class BlockReader:
    """Reads the header blocks of one connection, which must be all of them, and in order."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of a block when read, each field with 32 bytes more (RFC 9113, 6.5.2)."""
        self._decoder = hpack.Decoder(max_bytes)
        self._known: dict[bytes, Request] = {}
        """Blocks that changed nothing, read with the table as it is now."""

    def request(self, block: bytes) -> Request:
        """The head of a request. Raises `ConnectionBroken`."""
        known = self._known.get(block)
        if known is not None:
            return known
        fields, changed = self._read(block)
        request = read_request(fields)
        if not changed and len(block) <= _USUAL_BYTES:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[block] = request
        return request

    def fields(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Names and values. Raises `ConnectionBroken`."""
        return self._read(block)[0]

    def _read(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Also whether the table is another one now."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        size, count, newest = table.maxsize, len(entries), entries[0] if entries else None
        try:
            read = [(bytes(field[0]), bytes(field[1])) for field in self._decoder.decode(block, raw=True)]
        except hpack.HPACKError as error:
            raise _broken(error) from error
        entries = table.dynamic_entries
        same = size == table.maxsize and count == len(entries) and (not entries or newest is entries[0])
        if not same:
            self._known.clear()
        return read, not same


def _broken(error: hpack.HPACKError) -> ConnectionBroken:
    if isinstance(error, hpack.OversizedHeaderListError):
        return ConnectionBroken(Code.ENHANCE_YOUR_CALM, "too many header bytes")
    return ConnectionBroken(Code.COMPRESSION_ERROR, "a header block that cannot be read")


def write(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """A block of literal fields without indexing (6.2.2)."""
    return b"".join(b"\x00%b%b%b%b" % (_length(name), name, _length(value), value) for name, value in headers)


def _length(text: bytes) -> bytes:
    """An integer with a prefix of 7 bits (5.1), no Huffman code."""
    size = len(text)
    if size < 0x7F:
        return bytes((size,))
    out, size = bytearray((0x7F,)), size - 0x7F
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)
