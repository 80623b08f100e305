"""The legs of a request: what is asked of one engine, and under which id."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ballast_sim.engine import BlockHashes, EngineRequest, TraceContent, UniqueContent
from ballast_sim.simulation.requests.records import Arrival, Record


class LegKind(Enum):
    """What a leg is for."""

    PREFILL = auto()
    """Ends after one token, which the client does not get, and holds its KV."""
    WARM = auto()
    """Brings the KV of a request that decodes on another engine into this one's cache. Its token reaches no client."""
    DECODE = auto()


@dataclass(slots=True, eq=False)
class EngineLeg:
    """One leg, and how far it has come."""

    id: str
    record: Record
    kind: LegKind
    before: int = 0
    """Output tokens that the request had when this leg began."""
    tokens: int = 0
    """Output tokens that it has reported."""
    unseen: bool = False
    """Its tokens reach the gateway only when it ends."""
    over: bool = False
    """Another leg has replaced it: what it still reports is ignored."""


def leg_id(index: int, *, prefill: bool, attempt: int = 1, segment: int = 0) -> str:
    """The id under which an engine knows one leg of a request; later attempts and segments have ids of their own."""
    number = str(index) if attempt == 1 else f"{index}.{attempt}"
    if segment:
        number += f"s{segment}"
    return number + ("p" if prefill else "d")


class _SharedContent(UniqueContent):
    """Tokens of one request that another of its legs will look up."""

    shared = True


def leg_content(arrival: Arrival, index: int, block_size: int, *, shared: bool = False) -> BlockHashes:
    """The content that all legs of a request share, as block hashes of an engine with this block size."""
    if arrival.hash_ids and arrival.block_size:
        return TraceContent(arrival.hash_ids, arrival.block_size, arrival.input_tokens, block_size, index)
    return _SharedContent(index) if shared else UniqueContent(index)


def engine_request(
    arrival: Arrival,
    index: int,
    *,
    prefill: bool,
    pull: bool,
    block_size: int,
    now_s: float,
    attempt: int = 1,
    expected_output_tokens: float | None = None,
) -> EngineRequest:
    """One leg, as it is asked of the engine. A prefill leg ends after one token and holds its KV.

    `expected_output_tokens` is the predicted length of the whole output.
    """
    return EngineRequest(
        request_id=leg_id(index, prefill=prefill, attempt=attempt),
        input_tokens=arrival.input_tokens,
        max_tokens=1 if prefill else arrival.output_tokens,
        content=leg_content(arrival, index, block_size),
        arrival_s=now_s,
        hold=prefill,
        pull=pull,
        expected_output_tokens=1.0 if prefill else expected_output_tokens,
        mark_as=str(index),
    )


def later_request(
    arrival: Arrival,
    leg: EngineLeg,
    *,
    tokens: int,
    pull: bool,
    block_size: int,
    now_s: float,
    expected_output_tokens: float | None = None,
) -> EngineRequest:
    """A leg of a request that decodes already and has `tokens` output tokens: it warms a cache, or goes on there.

    `expected_output_tokens` is the predicted length of the rest.
    """
    warm = leg.kind is LegKind.WARM
    return EngineRequest(
        request_id=leg.id,
        input_tokens=arrival.input_tokens + tokens,
        max_tokens=1 if warm else arrival.output_tokens - tokens,
        content=leg_content(arrival, leg.record.index, block_size, shared=warm),
        arrival_s=now_s,
        pull=pull,
        expected_output_tokens=1.0 if warm else expected_output_tokens,
        mark_as=str(leg.record.index),
        mark_from=tokens,
    )
