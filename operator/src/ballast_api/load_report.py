"""What a gateway's `/ballast/v1/load` answers: what it would take to empty each endpoint, for a scale-down.

Each gateway that sees its fleet books every request of it, others only their own: so both numbers are told, and a
reader takes the larger of the sum of `own` and the largest `requests`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

LOAD = "/ballast/v1/load"
"""Path of the admin API."""


HOLD = "/ballast/v1/hold"
"""Path by which a pod asks what is left of its own requests; it is told to whoever has the address of an endpoint."""


class HoldReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a pod that is about to end."""

    draining: bool
    """Whether this gateway sends it nothing new."""
    requests: int
    """Those that it holds there."""


def held_together(bodies: Iterable[bytes]) -> bytes:
    """The answer of one gateway whose workers gave these."""
    found = [msgspec.json.decode(each, type=HoldReport) for each in bodies]
    whole = HoldReport(draining=all(each.draining for each in found), requests=sum(each.requests for each in found))
    return msgspec.json.encode(whole)


class EndpointLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint, as one gateway sees it."""

    name: str
    draining: bool = False
    """Whether this gateway sends it nothing new."""
    requests: int = 0
    """Prefills and decodes that are booked there, other gateways' and moves on their way to it among them."""
    own: int = 0
    """Those of them that this gateway has dispatched."""
    tied: int = 0
    """Decodes there that cannot move: they end in place."""
    tokens: int = 0
    """Prompt and output of its decodes so far."""
    engine: int = 0
    """Requests that run or wait there by the engine's own last report, other callers' among them."""
    engine_age_s: float = -1.0
    """Seconds since that report; negative without one."""


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Fields that a later release adds are ignored."""

    unix_s: float
    endpoints: tuple[EndpointLoad, ...] = ()
    moved_out: int = 0
    """Requests that this gateway has moved out of draining endpoints since it started."""
    finished: int = 0
    """Those that ended there, whole."""
    lost: int = 0
    """Those that failed there and could not go on elsewhere."""


def read_report(body: bytes) -> LoadReport:
    """Raises `ValueError`, which names what is wrong."""
    try:
        return msgspec.json.decode(body, type=LoadReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{LOAD}: {error}") from error


def merged(loads: Sequence[EndpointLoad]) -> EndpointLoad:
    """One endpoint as several gateways see it together; those that do not know it left out."""
    ages = [each.engine_age_s for each in loads if each.engine_age_s >= 0]
    own = sum(each.own for each in loads)
    return EndpointLoad(
        name=loads[0].name,
        draining=all(each.draining for each in loads),
        requests=max(own, *(each.requests for each in loads)),
        own=own,
        tied=max(each.tied for each in loads),
        tokens=max(each.tokens for each in loads),
        engine=max(each.engine for each in loads),
        engine_age_s=min(ages, default=-1.0),
    )


def by_endpoint(reports: Iterable[LoadReport]) -> dict[str, EndpointLoad]:
    """All endpoints that any of these gateways knows."""
    found: dict[str, list[EndpointLoad]] = {}
    for report in reports:
        for each in report.endpoints:
            found.setdefault(each.name, []).append(each)
    return {name: merged(loads) for name, loads in found.items()}


def together(reports: Sequence[LoadReport]) -> bytes:
    """The report of one gateway whose workers gave these. In JSON."""
    whole = LoadReport(
        unix_s=max(each.unix_s for each in reports),
        endpoints=tuple(by_endpoint(reports).values()),
        moved_out=sum(each.moved_out for each in reports),
        finished=sum(each.finished for each in reports),
        lost=sum(each.lost for each in reports),
    )
    return msgspec.json.encode(whole)
