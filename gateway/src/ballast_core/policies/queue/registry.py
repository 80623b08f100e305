"""Every queue order that Ballast ships, by type name; `policies.registry.build` makes one of plain values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ballast_core.policies.queue.orders import (
    EarliestDeadline,
    Fcfs,
    LeastAttained,
    ShortestJob,
    ShortestPrompt,
    ShortestRemaining,
)
from ballast_core.policies.queue.protocol import QueueOrder
from ballast_core.policies.queue.uniboost import UniBoost

_ORDERS: tuple[type[QueueOrder], ...] = (
    EarliestDeadline,
    Fcfs,
    LeastAttained,
    ShortestJob,
    ShortestPrompt,
    ShortestRemaining,
    UniBoost,
)

QUEUE_ORDERS: Mapping[str, type[QueueOrder]] = MappingProxyType({order.type: order for order in _ORDERS})
"""Every queue order, by type name."""
