"""Every queue order and admission that Ballast ships, by type name; `policies.registry.build` makes one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ballast_core.policies.admission import Admission, Bounded, Open
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
"""Every order of when a request gets its turn."""

_ADMISSIONS: tuple[type[Admission], ...] = (Bounded, Open)

ADMISSIONS: Mapping[str, type[Admission]] = MappingProxyType({one.type: one for one in _ADMISSIONS})
"""Every rule of how many requests an endpoint gets at a time."""
