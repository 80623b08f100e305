"""What a gateway's `/ballast/v1/demand` answers: the traffic of the last two minutes, in a few numbers.

A scaling policy goes by it. It is counts and lengths alone, so that of several gateways adds up: `together`. Times are
seconds since 1970 by the gateway's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

DEMAND: Final = "/ballast/v1/demand"
"""Path of the admin API."""
WINDOW_S: Final = 120
"""How far back it goes."""
BIN_S: Final = 5
"""Seconds of one window of arrivals. They begin at multiples of it."""
BINS: Final = WINDOW_S // BIN_S
SKEW_S: Final = 2.0 * BIN_S
"""Gateways are asked within a shorter time than that: reports that are further apart are of clocks that differ."""
LENGTHS: Final = 1000
"""Requests whose lengths one gateway tells, at most: the newest."""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One request that arrived in the window."""

    arrived_unix_s: float
    input_tokens: int
    output_tokens: int
    """Generated so far; 0 where nobody sees its output."""
    ended: bool


class Load(msgspec.Struct, frozen=True, array_like=True):
    """The gateway's own requests on one endpoint."""

    prefilling: int = 0
    decoding: int = 0
    decoding_tokens: int = 0
    """KV tokens of those that decode."""


class DemandReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Fields that a later release adds are ignored."""

    unix_s: float
    since_unix_s: float
    """When it, or the last one of several, began to count: windows before that saw a part of the traffic."""
    arrivals: tuple[int, ...]
    """Requests that arrived in each of the last `BINS` windows; the newest, the last one, is not over."""
    requests: tuple[Seen, ...] = ()
    """In order of arrival."""
    waiting: int = 0
    """Requests whose prompt is not computed yet, those without an endpoint included."""
    waiting_tokens: int = 0
    """Their prompts."""
    oldest_unix_s: float | None = None
    """When the oldest one without a first token arrived; None where all have one."""
    decoding: int = 0
    decoding_tokens: int = 0
    """KV tokens that these hold."""
    idle_since_unix_s: float | None = None
    """Since when no request has been in flight; None while one is."""
    prompt_tokens: int = 0
    """Prompt tokens of the requests in flight that have an endpoint for their prefill..."""
    cached_tokens: int = 0
    """...and how many of them it was believed to hold already."""
    endpoints: dict[str, Load] = {}
    """By name of the endpoint, which is its pod's."""

    @property
    def newest_bin(self) -> int:
        """Number of the last window of `arrivals`: its beginning over `BIN_S`."""
        return int(self.unix_s // BIN_S)


def read_demand(body: bytes) -> DemandReport:
    """Raises `ValueError`, which names what is wrong."""
    try:
        return msgspec.json.decode(body, type=DemandReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{DEMAND}: {error}") from error


def together(reports: Sequence[DemandReport]) -> DemandReport:
    """The traffic of several gateways. At least one.

    Times are those of the clock that is ahead. Where one tells as many lengths as it may, those of all are taken from
    when its first one arrived: each gateway then counts by its share of the requests.
    """
    newest = max(reports, key=lambda each: each.unix_s)
    reports = [each if newest.unix_s - each.unix_s <= SKEW_S else _at(each, newest.unix_s) for each in reports]
    arrivals: Counter[int] = Counter()
    for each in reports:
        first = each.newest_bin - len(each.arrivals) + 1
        arrivals.update({first + k: count for k, count in enumerate(each.arrivals)})
    since_s = max((each.requests[0].arrived_unix_s for each in reports if len(each.requests) >= LENGTHS), default=0.0)
    idle = [each.idle_since_unix_s for each in reports]
    oldest = [each.oldest_unix_s for each in reports if each.oldest_unix_s is not None]
    return DemandReport(
        unix_s=newest.unix_s,
        since_unix_s=max(each.since_unix_s for each in reports),
        arrivals=tuple(arrivals[newest.newest_bin - BINS + 1 + k] for k in range(BINS)),
        requests=tuple(
            sorted(
                (one for each in reports for one in each.requests if one.arrived_unix_s >= since_s),
                key=lambda one: one.arrived_unix_s,
            )
        ),
        waiting=sum(each.waiting for each in reports),
        waiting_tokens=sum(each.waiting_tokens for each in reports),
        oldest_unix_s=min(oldest, default=None),
        decoding=sum(each.decoding for each in reports),
        decoding_tokens=sum(each.decoding_tokens for each in reports),
        idle_since_unix_s=None if None in idle else max(each for each in idle if each is not None),
        prompt_tokens=sum(each.prompt_tokens for each in reports),
        cached_tokens=sum(each.cached_tokens for each in reports),
        endpoints=_loads(reports),
    )


def _at(report: DemandReport, unix_s: float) -> DemandReport:
    """The same by a clock that said `unix_s` when the report was made."""
    ahead_s = unix_s - report.unix_s

    def by_that(time_s: float | None) -> float | None:
        return None if time_s is None else time_s + ahead_s

    return msgspec.structs.replace(
        report,
        unix_s=unix_s,
        since_unix_s=report.since_unix_s + ahead_s,
        requests=tuple(
            msgspec.structs.replace(each, arrived_unix_s=each.arrived_unix_s + ahead_s) for each in report.requests
        ),
        oldest_unix_s=by_that(report.oldest_unix_s),
        idle_since_unix_s=by_that(report.idle_since_unix_s),
    )


def _loads(reports: Sequence[DemandReport]) -> dict[str, Load]:
    found: dict[str, Load] = {}
    for each in reports:
        for name, load in each.endpoints.items():
            had = found.get(name, Load())
            found[name] = Load(
                had.prefilling + load.prefilling,
                had.decoding + load.decoding,
                had.decoding_tokens + load.decoding_tokens,
            )
    return found
