"""Frames as server-sent events (WHATWG HTML, 9.2): whole ones, and what has changed between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ballast_gateway.live.rows import EndpointRow, Frame, RequestRow

_Row = TypeVar("_Row", EndpointRow, RequestRow)
_ENCODER = msgspec.json.Encoder()


def delta(before: Frame, after: Frame) -> Frame:
    """What turns `before` into `after`. New rows of `recent` and `placed` alone, as far as `after` still has them."""
    endpoints, endpoints_gone = _changed(
        {row.name: row for row in before.endpoints}, {row.name: row for row in after.endpoints}
    )
    requests, requests_gone = _changed(
        {row.id: row for row in before.requests}, {row.id: row for row in after.requests}
    )
    return msgspec.structs.replace(
        after,
        about=None if after.about == before.about else after.about,
        attainment=None if after.attainment == before.attainment else after.attainment,
        endpoints=endpoints,
        endpoints_gone=endpoints_gone,
        requests=requests,
        requests_gone=requests_gone,
        recent=_last(after.recent, after.ended - before.ended),
        placed=_last(after.placed, after.decided - before.decided),
    )


def _changed(before: Mapping[str, _Row], after: Mapping[str, _Row]) -> tuple[tuple[_Row, ...], tuple[str, ...]]:
    rows = tuple(row for key, row in after.items() if before.get(key) != row)
    return rows, tuple(before.keys() - after.keys())


_T = TypeVar("_T")


def _last(rows: tuple[_T, ...], count: int) -> tuple[_T, ...]:
    return rows[-count:] if count > 0 else ()


def encoded(value: Any) -> bytes:
    """JSON in one line."""
    return _ENCODER.encode(value)


def event(kind: str, frame: Frame) -> bytes:
    """`kind`: `all` or `delta`."""
    return b"event: %s\nid: %d\ndata: %s\n\n" % (kind.encode(), frame.number, encoded(frame))
