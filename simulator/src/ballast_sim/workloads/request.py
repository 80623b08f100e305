"""One request of a workload, and functions that rescale or cut a list of them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

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


def spread_equal_arrivals(requests: Sequence[WorkloadRequest], seed: int, step_s: float = 3.0) -> list[WorkloadRequest]:
    """Spread batches of equal arrival stamps over the time to the next stamp, where stamps come in coarse steps.

    Mooncake's traces have stamps every 3 s, whole batches sharing one. Other traces are returned as they are: it
    takes most stamps shared, and all of them multiples of `step_s`.
    """
    stamps = [request.arrival_s for request in requests]
    if len(stamps) - len(set(stamps)) < len(stamps) / 2:
        return list(requests)
    if any(abs(stamp - round(stamp / step_s) * step_s) > _STAMP_ERROR_S for stamp in stamps):
        return list(requests)
    rng = random.Random(seed)
    spread = [replace(request, arrival_s=request.arrival_s + rng.random() * step_s) for request in requests]
    return sorted(spread, key=lambda request: request.arrival_s)
