"""The usual ext_proc messages from and to protobuf bytes, by hand: headers, and the parts of bodies.

Only the form in which every serializer writes a message: fields in ascending order, each once. What has any other form
is left to protobuf, which reads all that this reads, and alike; and what this writes, protobuf would write.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from ballast_api import wire_names
from ballast_gateway.picker.messages import NO_HEADERS, HeaderChange, Kind

_HEADERS: Final = {2 << 3 | 2: Kind.REQUEST_HEADERS, 3 << 3 | 2: Kind.RESPONSE_HEADERS}
"""Of `ProcessingRequest`, by tag: the field's number, and that a length follows."""
_BODIES: Final = {4 << 3 | 2: Kind.REQUEST_BODY, 5 << 3 | 2: Kind.RESPONSE_BODY}
_TAGS: Final = {
    Kind.REQUEST_HEADERS: bytes((1 << 3 | 2,)),
    Kind.RESPONSE_HEADERS: bytes((2 << 3 | 2,)),
    Kind.REQUEST_BODY: bytes((3 << 3 | 2,)),
    Kind.RESPONSE_BODY: bytes((4 << 3 | 2,)),
}
"""Of `ProcessingResponse`."""

_FIRST: Final = 1 << 3 | 2
"""Field 1, with a length: `HttpHeaders.headers`, `HeaderMap.headers`, `HeaderValue.key`, `HttpBody.body`."""
_RAW_VALUE: Final = 3 << 3 | 2
_END_OF_HEADERS, _END_OF_BODY = b"\x18\x01", b"\x10\x01"
"""`end_of_stream: true`, field 3 of `HttpHeaders`, and field 2 of `HttpBody` and of `StreamedBodyResponse`."""
_OVERWRITE: Final = b"\x18\x02"
"""`HeaderValueOption.append_action: OVERWRITE_IF_EXISTS_OR_ADD`."""
_CLEAR_ROUTE_CACHE: Final = b"\x28\x01"
_DYNAMIC_METADATA: Final = b"\x42"
_NAMESPACE: Final = wire_names.METADATA_NAMESPACE.encode()
_NAME: Final = wire_names.DESTINATION.encode()
_MOST_SHIFT: Final = 28
"""Lengths of more than five bytes are longer than any message."""


def read(raw: bytes) -> tuple[Kind, Mapping[str, str], bytes, bool, bytes] | None:
    """Kind, headers, body and end of stream of a `ProcessingRequest`, and the bytes of its other fields.

    None for trailers, and for a message in an unusual form.
    """
    headers, body = NO_HEADERS, b""
    try:
        kind, end_sign = _BODIES.get(raw[0]), _END_OF_BODY
        size, at = _length(raw, 1)
        end = at + size
        if kind is not None:
            if size and raw[at] == _FIRST:
                size, at = _length(raw, at + 1)
                body = raw[at : at + size]
                at += size
        else:
            kind, end_sign = _HEADERS[raw[0]], _END_OF_HEADERS
            if size and raw[at] == _FIRST:
                size, at = _length(raw, at + 1)
                headers = _headers(raw, at, at + size)
                at += size
    except (LookupError, UnicodeDecodeError):
        return None
    last = raw[at:end] == end_sign
    if end > len(raw) or not (last or at == end):
        return None
    return kind, headers, body, last, raw[end:]


def write_chunk(kind: Kind, body: bytes, last: bool) -> bytes:
    """A `ProcessingResponse` with a `StreamedBodyResponse`."""
    chunk = _field(b"\x0a", body) if body else b""
    if last:
        chunk += _END_OF_BODY
    return _field(_TAGS[kind], _field(b"\x0a", _field(b"\x1a", _field(b"\x1a", chunk))))


def write_headers(kind: Kind, change: HeaderChange | None, *, clear_route_cache: bool) -> bytes:
    """A `ProcessingResponse` with a `HeadersResponse`."""
    common = b"" if change is None else _field(b"\x12", _mutation(change))
    if clear_route_cache:
        common += _CLEAR_ROUTE_CACHE
    return _field(_TAGS[kind], _field(b"\x0a", common))


@lru_cache(maxsize=4096)
def write_destination(value: str) -> bytes:
    """The field `dynamic_metadata` of a `ProcessingResponse`: a struct of namespace, of name, of this value."""
    fields = _field(b"\x0a", _field(b"\x0a", _NAME) + _field(b"\x12", _field(b"\x1a", value.encode())))
    namespace = _field(b"\x12", _field(b"\x2a", fields))
    return _field(_DYNAMIC_METADATA, _field(b"\x0a", _field(b"\x0a", _NAMESPACE) + namespace))


def _mutation(change: HeaderChange) -> bytes:
    mutation = b""
    for name, value in change.set:
        header = _field(b"\x0a", name.encode())
        if value:
            header += _field(b"\x1a", value.encode("latin-1", "replace"))
        mutation += _field(b"\x0a", _field(b"\x0a", header) + _OVERWRITE)
    for name in change.remove:
        mutation += _field(b"\x12", name.encode())
    return mutation


def _headers(raw: bytes, at: int, end: int) -> dict[str, str]:
    """Raises `LookupError` or `UnicodeDecodeError` if the form is not the usual one."""
    headers: dict[str, str] = {}
    while at < end:
        if raw[at] != _FIRST:
            raise LookupError
        size, at = _length(raw, at + 1)
        stop = at + size
        if stop > end or raw[at] != _FIRST:
            raise LookupError
        size, at = _length(raw, at + 1)
        name = raw[at : at + size].decode().lower()
        at += size
        if at == stop:
            headers[name] = ""
            continue
        if raw[at] != _RAW_VALUE:
            raise LookupError
        size, at = _length(raw, at + 1)
        if at + size != stop:
            raise LookupError
        headers[name] = raw[at:stop].decode("latin-1")
        at = stop
    return headers


def _length(raw: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends. Raises `LookupError` if it does not end."""
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
    raise LookupError


def _field(tag: bytes, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return b"%b%c%b" % (tag, size, content)
    return b"%b%b%b" % (tag, _varint(size), content)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)
