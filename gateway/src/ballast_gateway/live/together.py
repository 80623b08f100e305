"""One snapshot of several workers' snapshots: each knows the whole fleet, and what it has done itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from ballast_gateway.live.rows import About, AttainmentRow, EndedRow, Frame, PlacedRow, RequestRow, Tally

MOST_REQUESTS: Final = 400
MOST_ENDED: Final = 200
MOST_PLACED: Final = 100
"""Rows of a frame, as of one worker's."""
_Row = TypeVar("_Row", EndedRow, PlacedRow)


class Together:
    """Puts the frames of workers together, one round after the other: what is new in each comes last."""

    def __init__(self) -> None:
        self._before: dict[str, Frame] = {}
        self._recent: deque[EndedRow] = deque(maxlen=MOST_ENDED)
        self._placed: deque[PlacedRow] = deque(maxlen=MOST_PLACED)
        self._ended = self._decided = 0

    def __call__(self, number: int, frames: Mapping[str, Frame], workers: int) -> Frame:
        """The frames of workers by their number, at least one, of so many. Endpoints are as the first one sees them,
        counts and attainment are sums, requests each worker's own."""
        fresh_rows: list[EndedRow] = []
        for name, frame in frames.items():
            before = self._before.get(name)
            ended = _more(frame.ended, 0 if before is None else before.ended)
            decided = _more(frame.decided, 0 if before is None else before.decided)
            fresh_rows += _last(frame.recent, ended)
            self._placed += _last(frame.placed, decided)
            self._ended += ended
            self._decided += decided
            self._before[name] = frame
        self._recent += sorted(fresh_rows, key=lambda row: row.arrived_ms + 1e3 * row.ended_s)
        all_of_them = tuple(frames.values())
        first, own = all_of_them[0], sum(each.own for each in all_of_them)
        return Frame(
            number=number,
            unix_s=max(each.unix_s for each in all_of_them),
            own=own,
            others=max(0, first.own + first.others - own),
            waiting=sum(each.waiting for each in all_of_them),
            wait_s=max(each.wait_s for each in all_of_them),
            ended=self._ended,
            decided=self._decided,
            about=_about([each.about for each in all_of_them if each.about is not None], workers),
            attainment=tuple(_summed(each.attainment or () for each in all_of_them)),
            endpoints=first.endpoints,
            requests=_requests(all_of_them),
            recent=tuple(self._recent),
            placed=tuple(self._placed),
        )


def _more(count: int, before: int) -> int:
    """By how much a count has grown; that of a worker that began anew grows from 0."""
    return count if before > count else count - before


def _last(rows: tuple[_Row, ...], count: int) -> tuple[_Row, ...]:
    return rows[-count:] if count > 0 else ()


def _about(of: list[About], workers: int) -> About | None:
    if not of:
        return None
    of_them = f"all {workers}" if len(of) == workers else f"{len(of)} of {workers}"
    return msgspec.structs.replace(
        of[0],
        whose=f"this gateway with {of_them} workers",
        name="",
        peers=max(0, of[0].peers - (workers - 1)),
        leads=any(each.leads for each in of),
    )


def _summed(reports: Iterable[tuple[AttainmentRow, ...]]) -> Iterable[AttainmentRow]:
    """By class, in the first worker's order."""
    found: dict[tuple[object, ...], AttainmentRow] = {}
    for rows in reports:
        for row in rows:
            key = (row.name, row.ttft_s, row.tpot_s, row.e2e_s)
            known = found.get(key)
            found[key] = row if known is None else _both(known, row)
    return found.values()


def _both(one: AttainmentRow, other: AttainmentRow) -> AttainmentRow:
    return msgspec.structs.replace(
        one,
        minute=_sum(one.minute, other.minute),
        five_minutes=_sum(one.five_minutes, other.five_minutes),
    )


def _sum(one: Tally, other: Tally) -> Tally:
    return Tally(one.within + other.within, one.outside + other.outside, one.unknown + other.unknown)


def _requests(frames: tuple[Frame, ...]) -> tuple[RequestRow, ...]:
    """Each worker's own; and those of other gateways, as the first one knows them: a worker's name begins the ids that
    the others give its requests."""
    names = tuple(f"{each.about.name}/" for each in frames if each.about is not None and each.about.name)
    foreign = [row for row in frames[0].requests if not row.ours and not row.id.startswith(names or ("/",))]
    own = [row for each in frames for row in each.requests if row.ours]
    newest = sorted(own + foreign, key=lambda row: row.arrived_ms)[-MOST_REQUESTS:]
    return tuple({row.id: row for row in newest}.values())
