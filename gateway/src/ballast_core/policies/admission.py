"""What an admission policy is: how many requests an endpoint takes at a time, and how long the others may wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.model import Stage
from ballast_core.policies.declaring import check_within, parameter


class Admission(Protocol):
    """Limits the requests in flight per endpoint and stage. Requests without capacity wait in the gateway's queue."""

    type: ClassVar[str]

    @property
    def bounded(self) -> bool:
        """Whether an endpoint can be full at all."""
        ...

    @property
    def max_waiting(self) -> int:
        """How many requests may wait for capacity; further ones are rejected as saturated."""
        ...

    @property
    def max_wait_s(self) -> float:
        """Seconds that a request waits for capacity before it is rejected as saturated."""
        ...

    def free(self, stage: Stage, requests: IntArray, kv_usage_ratio: FloatArray) -> IntArray:
        """How many more requests each endpoint takes; 0 or less if it is full. Shapes: all (endpoints,).

        `requests`: in flight there for the stage, foreign ones included; `kv_usage_ratio`: as last observed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Open:
    """Every request is dispatched at once: engines queue, the gateway does not."""

    type: ClassVar[str] = "open"
    bounded: ClassVar[bool] = False
    max_waiting: ClassVar[int] = 0
    max_wait_s: ClassVar[float] = 0.0

    def free(self, stage: Stage, requests: IntArray, kv_usage_ratio: FloatArray) -> IntArray:
        """The largest integer: no limit."""
        return np.full(len(requests), np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Bounded:
    """A limit of requests in flight per endpoint and stage; further requests wait in the gateway, in the queue's order.

    An endpoint is a candidate only while it has capacity for the stage, or for both stages if it serves both for one
    request. A request counts from its dispatch on, for decode also while it is prefilled on another endpoint; foreign
    requests count too. Low limits leave more to the queue's order; too low ones leave engines idle. Prefill needs about
    twice as many requests as fill one step's token budget.
    """

    type: ClassVar[str] = "bounded"
    bounded: ClassVar[bool] = True
    max_prefill_requests: int = parameter(4, "Requests in flight for prefill on one endpoint, 1 to 1000000.")
    max_decode_requests: int = parameter(256, "Requests in flight for decode on one endpoint, 1 to 1000000.")
    max_kv_ratio: float = parameter(1.0, "Share of KV in use from which an endpoint takes no decode; 1: no limit.")
    max_waiting: int = parameter(10_000, "Requests that may wait; more are rejected as saturated, 0 to 1000000.")
    max_wait_s: float = parameter(60.0, "Longest wait of a request before it is rejected as saturated, in seconds.")

    def __post_init__(self) -> None:
        check_within(
            self,
            max_prefill_requests=(1, 1_000_000),
            max_decode_requests=(1, 1_000_000),
            max_waiting=(0, 1_000_000),
        )
        if not 0 < self.max_kv_ratio <= 1:
            raise ValueError(f"max_kv_ratio: must be above 0 and at most 1, not {self.max_kv_ratio!r}")
        if not 0 < self.max_wait_s < float("inf"):
            raise ValueError(f"max_wait_s: must be finite and above 0, not {self.max_wait_s!r}")

    def free(self, stage: Stage, requests: IntArray, kv_usage_ratio: FloatArray) -> IntArray:
        """The limit minus the requests in flight; for decode 0 if KV usage has reached its limit."""
        if stage is Stage.PREFILL:
            return self.max_prefill_requests - requests
        free: IntArray = self.max_decode_requests - requests
        if self.max_kv_ratio < 1:
            free[kv_usage_ratio >= self.max_kv_ratio] = 0
        return free


_ADMISSIONS: tuple[type[Admission], ...] = (Bounded, Open)

ADMISSIONS: Mapping[str, type[Admission]] = MappingProxyType({one.type: one for one in _ADMISSIONS})
"""Every admission policy, by type name."""
