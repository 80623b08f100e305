"""The rank of a waiting request: its own priority first, then an order's key, then arrival, then id."""

from __future__ import annotations

from typing import TypeAlias

from ballast_core.policies.queue.protocol import QueueOrder, Service, Work

Rank: TypeAlias = tuple[int, float, float, str]
"""(the request's own priority, key, arrival, id); the smallest goes first."""


def rank(order: QueueOrder, request_id: str, work: Work, service: Service) -> Rank:
    """The rank of a request."""
    return work.priority, order.key(work, service), work.arrived_s, request_id
