"""What an admission policy is: which endpoints take another request now, and how long the others wait for it."""

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
    """Gives each endpoint a number of places per stage; who finds none waits in the gateway, in the queue's order."""

    type: ClassVar[str]

    @property
    def bounded(self) -> bool:
        """Whether an endpoint can be full at all."""
        ...

    @property
    def max_waiting(self) -> int:
        """How many requests may wait for a place; one more is rejected as saturated."""
        ...

    @property
    def max_wait_s(self) -> float:
        """How long a request waits for a place before it is rejected as saturated."""
        ...

    def free(self, stage: Stage, requests: IntArray, kv_usage_ratio: FloatArray) -> IntArray:
        """How many more each endpoint takes; a full one 0 or less. Shapes: all (endpoints,).

        `requests` are in flight there for the stage, those of others included; `kv_usage_ratio` as last observed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Open:
    """Every request is sent on at once: engines queue, the gateway does not."""

    type: ClassVar[str] = "open"
    bounded: ClassVar[bool] = False
    max_waiting: ClassVar[int] = 0
    max_wait_s: ClassVar[float] = 0.0

    def free(self, stage: Stage, requests: IntArray, kv_usage_ratio: FloatArray) -> IntArray:
        """Any number."""
        return np.full(len(requests), np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Bounded:
    """So many requests in flight per endpoint and stage; the rest waits in the gateway, in the queue's order.

    An endpoint is a candidate only while it has a place of the stage: of both stages where it does both for one
    request. Requests count from their dispatch, for decode while they are prefilled elsewhere too, and so do those of
    others that it reports. Fewer places leave more to the queue's order, too few leave engines idle: prefill needs
    about as many as fill one step's token budget, twice.
    """

    type: ClassVar[str] = "bounded"
    bounded: ClassVar[bool] = True
    max_prefill_requests: int = parameter(4, "Requests in flight for prefill on one endpoint, 1 to 1000000.")
    max_decode_requests: int = parameter(256, "Requests in flight for decode on one endpoint, 1 to 1000000.")
    max_kv_ratio: float = parameter(1.0, "Share of KV in use from which an endpoint takes no decode; 1: no limit.")
    max_waiting: int = parameter(10_000, "Requests that may wait; one more is rejected as saturated, 0 to 1000000.")
    max_wait_s: float = parameter(60.0, "How long one waits before it is rejected as saturated, in seconds, above 0.")

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
        """Places less requests; none where KV has reached its limit."""
        if stage is Stage.PREFILL:
            return self.max_prefill_requests - requests
        places: IntArray = self.max_decode_requests - requests
        if self.max_kv_ratio < 1:
            places[kv_usage_ratio >= self.max_kv_ratio] = 0
        return places


_ADMISSIONS: tuple[type[Admission], ...] = (Bounded, Open)

ADMISSIONS: Mapping[str, type[Admission]] = MappingProxyType({one.type: one for one in _ADMISSIONS})
"""Every rule of how many requests an endpoint gets at a time."""
