"""One snapshot of all gateways: what this one knows of the fleet, and what each of the others says it has done itself.

Endpoints and requests in flight are this gateway's: its books have all of the fleet's requests. What others alone know
(requests that wait there, that ended there, attainment, decisions) comes in their shares. A request of another gateway
has the id `GATEWAY/ID` here, as on the books.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from ballast_gateway.live.rows import About, AttainmentRow, EndedRow, Frame, PlacedRow, RequestRow, Tally

MOST_REQUESTS: Final = 400
MOST_ENDED: Final = 200
MOST_PLACED: Final = 100
"""Rows of a frame, as of one gateway's."""
_Kept = TypeVar("_Kept", EndedRow, PlacedRow)
_Named = TypeVar("_Named", EndedRow, PlacedRow, RequestRow)


class Together:
    """Puts shares together, one round after the other: what is new in each comes last."""

    def __init__(self, unit: str = "gateways") -> None:
        """`unit`: what they are to people, `gateways` or `workers`."""
        self._unit = unit
        self._before: dict[str, tuple[int, int]] = {}
        """By gateway: requests ended and decisions taken, as it said last."""
        self._recent: deque[EndedRow] = deque(maxlen=MOST_ENDED)
        self._placed: deque[PlacedRow] = deque(maxlen=MOST_PLACED)
        self._ended = self._decided = 0

    def __call__(self, own: Frame, shares: Mapping[str, Frame], gateways: int) -> Frame:
        """This gateway's whole frame, the others' shares by their names, and how many gateways there are with this one.

        Counts and attainment are sums over those that have said their share.
        """
        assert own.about is not None
        me = own.about.name
        renamed = {name: _as_seen_here(share, name, me, shares) for name, share in shares.items()}
        fresh = [row for name, each in {"": own, **renamed}.items() for row in self._fresh(name, each)]
        self._recent += sorted(fresh, key=lambda row: row.arrived_ms + 1e3 * row.ended_s)
        all_of_them = (own, *renamed.values())
        in_flight = sum(each.own for each in all_of_them)
        return msgspec.structs.replace(
            own,
            own=in_flight,
            others=max(0, own.own + own.others - in_flight),
            waiting=sum(each.waiting for each in all_of_them),
            wait_s=max(each.wait_s for each in all_of_them),
            ended=self._ended,
            decided=self._decided,
            about=self._about(own.about, len(all_of_them), gateways, [each.about for each in renamed.values()]),
            attainment=tuple(_summed(each.attainment or () for each in all_of_them)),
            requests=_in_flight(all_of_them),
            recent=tuple(self._recent),
            placed=tuple(self._placed),
        )

    def _fresh(self, name: str, frame: Frame) -> tuple[EndedRow, ...]:
        """What ended at one since the round before; its decisions and counts are taken over."""
        before = self._before.get(name, (0, 0))
        ended, decided = more(frame.ended, before[0]), more(frame.decided, before[1])
        self._before[name] = (frame.ended, frame.decided)
        self._ended += ended
        self._decided += decided
        self._placed += last(frame.placed, decided)
        return last(frame.recent, ended)

    def _about(self, own: About, heard: int, gateways: int, others: Iterable[About | None]) -> About:
        of_them = f"all {gateways}" if heard == gateways else f"{heard} of {gateways}"
        return msgspec.structs.replace(
            own,
            whose=f"{of_them} {self._unit}",
            together=heard,
            leads=own.leads or any(each is not None and each.leads for each in others),
        )


def more(count: int, before: int) -> int:
    """By how much a count has grown; that of a gateway that began anew grows from 0."""
    return count if before > count else count - before


def last(rows: tuple[_Kept, ...], count: int) -> tuple[_Kept, ...]:
    """The last so many."""
    return rows[-count:] if count > 0 else ()


def _as_seen_here(share: Frame, name: str, me: str, others: Iterable[str]) -> Frame:
    """With ids as they are on this gateway's books."""
    prefixes = (f"{me}/", *(f"{other}/" for other in others))

    def renamed(rows: tuple[_Named, ...]) -> tuple[_Named, ...]:
        return tuple(msgspec.structs.replace(row, id=here(row.id)) for row in rows)

    def here(request_id: str) -> str:
        if request_id.startswith(prefixes):
            return request_id.removeprefix(prefixes[0])
        return f"{name}/{request_id}"

    return msgspec.structs.replace(
        share, requests=renamed(share.requests), recent=renamed(share.recent), placed=renamed(share.placed)
    )


def _summed(reports: Iterable[tuple[AttainmentRow, ...]]) -> Iterable[AttainmentRow]:
    """By class, in the first one's order."""
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


def _in_flight(frames: tuple[Frame, ...]) -> tuple[RequestRow, ...]:
    """The newest, as this gateway's books have them; of the others those that wait there, which no books tell of."""
    own, *others = frames
    waiting = [row for each in others for row in each.requests]
    if not waiting:
        return own.requests
    rows = {row.id: row for row in (*waiting, *own.requests)}
    return tuple(sorted(rows.values(), key=lambda row: row.arrived_ms)[-MOST_REQUESTS:])
