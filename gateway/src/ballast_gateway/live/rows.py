"""What a snapshot says, as it goes over the wire: rows are JSON arrays in the order of the fields.

Numbers are as the gateway knows them at `unix_s`; times end in their unit. A field that is not known is null.
"""

from __future__ import annotations

from typing import Final

import msgspec

LIVE: Final = "/ballast/v1/live"
"""Path of the admin API: one snapshot."""
EVENTS: Final = f"{LIVE}/events"
"""The first snapshot and what changes, as server-sent events."""
REQUEST: Final = f"{LIVE}/request"
"""One request, `?id=`: its times, and why it went where it did."""
PAGE: Final = "/ballast/live"
WORKERS: Final = "x-ballast-workers"
"""Header of a stream that one of so many workers gives: `?worker=N` asks for another."""
ONLY: Final = "only"
"""Query parameter: with any value but an empty one, what this gateway has done itself, and nothing of the others."""


class EndpointRow(msgspec.Struct, array_like=True, frozen=True):
    """One endpoint that discovery knows."""

    name: str
    role: str
    pool: str
    state: str
    """ready, draining, unreachable, pending; or ejected, probing, suspected ... by what the gateway saw of it."""
    running: int | None
    """Requests that its engine runs, by its last scrape."""
    waiting: int | None
    kv_ratio: float | None
    """KV cache in use, by its last scrape, from 0 to 1."""
    kv_booked_ratio: float | None
    """What the requests that decode there hold, of the KV cache that its profile states: what this gateway believes."""
    prefills: int
    """Requests of the ledger whose prompts it computes or is to compute."""
    prefill_tokens: int
    """Prompt tokens still to compute there."""
    decodes: int
    """Requests of the ledger that decode there."""
    decode_tokens: int
    """Tokens that those hold."""
    step_ms: float | None
    """Predicted time of its next decode step; null while nothing decodes."""
    prefill_ms: float | None
    """Predicted time until its prompts are computed; null while there are none, and where no policy reads it."""
    age_s: float | None
    """Of the last scrape, in whole seconds."""


class RequestRow(msgspec.Struct, array_like=True, frozen=True):
    """One request in flight."""

    id: str
    model: str
    phase: str
    """waiting, prefill, decode."""
    prefill: str
    """Where its prompt is computed; empty once it decodes, and where the decode endpoint does both."""
    decode: str
    target: str
    """Where it is being moved; empty if it is not."""
    prompt_tokens: int
    arrived_ms: int
    """Milliseconds since 1970."""
    ours: bool
    """False: another gateway has dispatched it."""


class EndedRow(msgspec.Struct, array_like=True, frozen=True):
    """One request that has ended at this gateway. Times are seconds since its arrival."""

    id: str
    model: str
    objective: str
    met: bool | None
    """Whether it met its objective; null without one, and where that is not known."""
    outcome: str
    reason: str
    prefill: str
    decode: str
    prompt_tokens: int
    output_tokens: int
    arrived_ms: int
    prefilled_s: float | None
    first_token_s: float | None
    ended_s: float
    moves: int
    retries: int


class PlacedRow(msgspec.Struct, array_like=True, frozen=True):
    """One decision: dispatch, handoff, migrate or reject."""

    kind: str
    id: str
    source: str
    """Where it goes from: the prefill endpoint of a dispatch, the source of a move; else empty."""
    target: str
    """Where it decodes; empty if it is rejected."""


class Tally(msgspec.Struct, array_like=True, frozen=True):
    """Requests that ended in a window."""

    within: int
    outside: int
    unknown: int


class AttainmentRow(msgspec.Struct, array_like=True, frozen=True):
    """The requests of one class."""

    name: str
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    target: float
    minute: Tally
    """Against all of its thresholds, over the last 60 s."""
    five_minutes: Tally


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Whose snapshot it is, and by what it decides."""

    whose: str
    """Name among several gateways of a process, or `worker N`; empty if it is alone."""
    models: str
    policies: dict[str, str]
    """Kind -> type, of those that are in use."""
    name: str = ""
    """In the view of the fleet's gateways; empty where there is no view."""
    leads: bool = True
    """Whether it runs the rounds of moves."""
    agents: int = 0
    """Agents of pods that it hears."""
    peers: int = 0
    """Other gateways that it hears."""
    view: bool = False
    """Whether it is told what other gateways do."""
    together: int = 0
    """Of how many gateways counts, ended requests and attainment are; 0: of this one."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot, or what has changed since the frame before. Rows have their names or ids for keys."""

    number: int
    unix_s: float
    own: int
    """Requests in flight of the gateways that this is about."""
    others: int
    """Other gateways', on the books of this one."""
    waiting: int
    """Requests without an endpoint, for want of capacity."""
    wait_s: float
    """Expected time until what waits now has been dispatched."""
    ended: int
    """Requests that have ended at these gateways, ever."""
    decided: int
    """Decisions, ever."""
    about: About | None = None
    """None: as before."""
    attainment: tuple[AttainmentRow, ...] | None = None
    endpoints: tuple[EndpointRow, ...] = ()
    endpoints_gone: tuple[str, ...] = ()
    requests: tuple[RequestRow, ...] = ()
    """The newest ones in flight, `MOST_REQUESTS` at most."""
    requests_gone: tuple[str, ...] = ()
    """No longer in flight, or no longer among the newest."""
    recent: tuple[EndedRow, ...] = ()
    """Ended lately, the oldest first."""
    placed: tuple[PlacedRow, ...] = ()
    """Decided lately, the oldest first."""
