"""Parts of bodies from and to protobuf bytes, by hand: a stream has one message in and one out for each of its chunks.

Only the form in which every serializer writes such a message: fields in ascending order, each once. What has any other
form is left to protobuf, which reads all that this reads, and alike.
"""

from __future__ import annotations

from typing import Final

from ballast_gateway.picker.messages import Kind

_KINDS: Final = {4 << 3 | 2: Kind.REQUEST_BODY, 5 << 3 | 2: Kind.RESPONSE_BODY}
"""`ProcessingRequest`, by tag: its field number and that a length follows."""
_TAGS: Final = {Kind.REQUEST_BODY: bytes((3 << 3 | 2,)), Kind.RESPONSE_BODY: bytes((4 << 3 | 2,))}
"""`ProcessingResponse`."""
_BODY: Final = 1 << 3 | 2
_LAST: Final = b"\x10\x01"
"""`end_of_stream: true`, field 2 of `HttpBody` and of `StreamedBodyResponse`."""
_MOST_SHIFT: Final = 28
"""Lengths of more than five bytes are longer than any message."""


def read(raw: bytes) -> tuple[Kind, bytes, bool, bytes] | None:
    """Kind, body and end of stream of a `ProcessingRequest` with a part of a body, and the bytes of its other fields.

    None for any other message, and for a part of a body in an unusual form.
    """
    try:
        kind = _KINDS.get(raw[0])
        if kind is None:
            return None
        size, at = _length(raw, 1)
        end = at + size
        body = b""
        if size and raw[at] == _BODY:
            size, at = _length(raw, at + 1)
            body = raw[at : at + size]
            at += size
    except IndexError:
        return None
    last = raw[at:end] == _LAST
    if end > len(raw) or not (last or at == end):
        return None
    return kind, body, last, raw[end:]


def write(kind: Kind, body: bytes, last: bool) -> bytes:
    """A `ProcessingResponse` with a `StreamedBodyResponse`."""
    chunk = b"\n%b%b" % (_varint(len(body)), body) if body else b""
    if last:
        chunk += _LAST
    chunk = b"\x1a%b%b" % (_varint(len(chunk)), chunk)  # BodyMutation.streamed_response
    chunk = b"\x1a%b%b" % (_varint(len(chunk)), chunk)  # CommonResponse.body_mutation
    chunk = b"\n%b%b" % (_varint(len(chunk)), chunk)  # BodyResponse.response
    return b"%b%b%b" % (_TAGS[kind], _varint(len(chunk)), chunk)


def _length(raw: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends. Raises IndexError if it does not end."""
    size = raw[at]
    at += 1
    if size < 0x80:
        return size, at
    size &= 0x7F
    for shift in range(7, _MOST_SHIFT + 1, 7):
        byte = raw[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
    raise IndexError(at)


_SHORT: Final = tuple(bytes((number,)) for number in range(0x80))


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SHORT[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)
