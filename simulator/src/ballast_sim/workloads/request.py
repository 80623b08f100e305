"""One request of a workload, and functions that rescale or cut a list of them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

MOONCAKE_BLOCK_TOKENS = 512
"""Tokens of a prefix block in Mooncake's traces."""

MOONCAKE_STAMP_S = 3.0
"""Their time stamps are multiples of this."""

_STAMP_ERROR_S = 0.01  # some stamps of the published files are a millisecond early


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """When a request arrives and how long it is; `output_tokens` is hidden from every policy.

    `hash_ids` name the prompt's prefix blocks of `block_size` tokens, the last one possibly partial: equal leading
    ids mean equal tokens. `session` and `turn` are its conversation and its turn there. `max_tokens` and
    `traffic_class` are what gateways were told of it, where that was recorded.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int] | None = None
    block_size: int | None = None
    session: int | None = None
    turn: int | None = None
    client: int | None = None
    max_tokens: int | None = None
    traffic_class: str = ""


def scale_arrivals(requests: Sequence[WorkloadRequest], rate_scale: float) -> list[WorkloadRequest]:
    """The same requests at `rate_scale` times the rate; the pattern of bursts stays."""
    if rate_scale == 1:
        return list(requests)
    return [replace(request, arrival_s=request.arrival_s / rate_scale) for request in requests]


def clip(requests: Sequence[WorkloadRequest], duration_s: float, limit: int | None = None) -> list[WorkloadRequest]:
    """Those that arrive within `duration_s`, and not more than `limit` of them."""
    return [request for request in requests if request.arrival_s < duration_s][:limit]


def has_coarse_stamps(requests: Sequence[WorkloadRequest]) -> bool:
    """Whether equal arrivals are an artefact of rounding: of Mooncake's traces, whose stamps come every 3 s.

    They are told by what they hold, since copies of them have other columns: prefix blocks of 512 tokens throughout,
    most stamps shared, several of them, all multiples of 3 s. Anybody else's batches are meant as they stand.
    """
    if any(request.block_size != MOONCAKE_BLOCK_TOKENS for request in requests):
        return False
    stamps = {request.arrival_s for request in requests}
    if not 1 < len(stamps) <= len(requests) / 2:
        return False
    steps = ((stamp, round(stamp / MOONCAKE_STAMP_S) * MOONCAKE_STAMP_S) for stamp in stamps)
    return all(abs(stamp - step) <= _STAMP_ERROR_S for stamp, step in steps)


def spread_equal_arrivals(requests: Sequence[WorkloadRequest], seed: int) -> list[WorkloadRequest]:
    """Spread batches of equal arrivals over the 3 s to the next stamp where `has_coarse_stamps`; else as they are."""
    if not has_coarse_stamps(requests):
        return list(requests)
    rng = random.Random(seed)
    spread = [replace(request, arrival_s=request.arrival_s + rng.random() * MOONCAKE_STAMP_S) for request in requests]
    return sorted(spread, key=lambda request: request.arrival_s)
