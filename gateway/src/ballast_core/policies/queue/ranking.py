"""In which order requests go: their own priority first, then an order's key, then arrival, then id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ballast_core.policies.queue.protocol import QueueOrder, Service, Work
from ballast_core.policies.queue.uniboost import UniBoost

Rank: TypeAlias = tuple[int, float, float, str]
"""(the request's own priority, key, arrival, id); the smallest goes first."""


def rank(order: QueueOrder, request_id: str, work: Work, service: Service) -> Rank:
    """Where the request stands."""
    return work.priority, order.key(work, service), work.arrived_s, request_id


def keys_of(order: QueueOrder, works: Sequence[Work], service: Service) -> list[float]:
    """`order.key` of each."""
    if isinstance(order, UniBoost):
        keys: list[float] = order.keys(works, service).tolist()
        return keys
    return [order.key(work, service) for work in works]
