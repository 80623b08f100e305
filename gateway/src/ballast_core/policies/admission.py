"""What an admission policy is: when an endpoint is full, and which requests wait for how long or are shed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Stage
from ballast_core.policies.declaring import check_within, parameter


class Gauges(NamedTuple):
    """What endpoints last reported. Shapes: all (endpoints,)."""

    running: IntArray
    waiting: IntArray
    foreign: IntArray
    """Those of them that are not ours: of other gateways and direct clients."""
    kv_usage_ratio: FloatArray


class Limits(NamedTuple):
    """An endpoint is full for a stage while it has reached both. Shapes: (endpoints,)."""

    requests: IntArray
    """Requests in flight there for the stage, foreign ones included."""
    prefill_s: FloatArray
    """Expected seconds until it has prefilled what is queued there; 0 where requests alone count. Prefill only."""


class Admission(Protocol):
    """Decides when endpoints are full. Requests wait in the gateway's queue meanwhile, within limits of their own."""

    type: ClassVar[str]
    needs: ClassVar[Belief]
    """The beliefs that it reads."""

    @property
    def bounded(self) -> bool:
        """Whether an endpoint can be full at all."""
        ...

    @property
    def max_waiting(self) -> int:
        """How many requests may wait for capacity; beyond that, requests are rejected as saturated."""
        ...

    @property
    def max_wait_s(self) -> float:
        """Seconds that a request waits for capacity before it is rejected as saturated."""
        ...

    @property
    def retries_wait(self) -> bool:
        """Whether a request whose leg has failed waits for capacity, or goes to a full endpoint at once."""
        ...

    def max_backlog_s(self, ttft_objective_s: float | None, stood_s: float = 0.0) -> float:
        """Seconds of work that may wait before a request with this objective; infinite without such a limit.

        `stood_s`: how long work has waited without a break.
        """
        ...

    def limits(self, stage: Stage, gauges: Gauges) -> Limits:
        """When each endpoint is full, by its last observation."""
        ...


@dataclass(frozen=True, slots=True)
class Open:
    """Every request is dispatched at once: engines queue, the gateway does not."""

    type: ClassVar[str] = "open"
    needs: ClassVar[Belief] = Belief.NONE
    bounded: ClassVar[bool] = False
    retries_wait: ClassVar[bool] = True
    max_waiting: ClassVar[int] = 0
    max_wait_s: ClassVar[float] = 0.0

    def max_backlog_s(self, ttft_objective_s: float | None, stood_s: float = 0.0) -> float:
        """Nothing waits."""
        return np.inf

    def limits(self, stage: Stage, gauges: Gauges) -> Limits:
        """The largest integer: no limit."""
        return Limits(np.full(len(gauges.running), np.iinfo(np.int64).max), np.zeros(len(gauges.running)))


@dataclass(frozen=True, slots=True)
class Bounded:
    """A limit of requests in flight per endpoint and stage; further requests wait in the gateway, in the queue's order.

    An endpoint is a candidate only while it has capacity for the stage, or for both stages if it serves both for one
    request. A request counts from its dispatch on, for decode also while it is prefilled on another endpoint; foreign
    requests count too. Low limits leave more to the queue's order; too low ones leave engines idle. Prefill needs about
    twice as many requests as fill one step's token budget.
    """

    type: ClassVar[str] = "bounded"
    needs: ClassVar[Belief] = Belief.NONE
    bounded: ClassVar[bool] = True
    retries_wait: ClassVar[bool] = True
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

    def max_backlog_s(self, ttft_objective_s: float | None, stood_s: float = 0.0) -> float:
        """No limit by time: requests are counted."""
        return np.inf

    def limits(self, stage: Stage, gauges: Gauges) -> Limits:
        """The parameters; for decode 0 where KV usage has reached its limit."""
        prefill = stage is Stage.PREFILL
        limit = np.full(len(gauges.running), self.max_prefill_requests if prefill else self.max_decode_requests)
        if not prefill and self.max_kv_ratio < 1:
            limit[gauges.kv_usage_ratio >= self.max_kv_ratio] = 0
        return Limits(limit, np.zeros(len(limit)))


@dataclass(frozen=True, slots=True)
class ExpectedTtft:
    """Engines get what keeps them busy, the gateway keeps what may still start in time, and the rest is shed at once.

    An endpoint is full for prefill while 2 requests and 0.05 max_ttft_s of work by its recalibrated profile are queued
    there; and for decode while it reports max(8, running / 8) waiting requests or 0.95 of its KV in use, or while more
    than max(64, running) are on their way to it or wait there. That half needs no profile.

    While every endpoint is full requests wait in the gateway. The work before a request may take at most 0.2
    max_ttft_s at the rate at which waiting work was dispatched lately (at first: at which endpoints prefill). That
    falls to 0.1 max_ttft_s while work waits without a break for 0.5 max_ttft_s: a queue that stands evens nothing out
    and makes everybody wait. Beyond that the newest request of the tenant with the most waiting work is rejected. The
    rest of max_ttft_s is for the prefill itself and for errors of the estimate; a request that has waited that long is
    rejected, too. A request's own TTFT objective takes the place of max_ttft_s if it is shorter. A request whose leg
    has failed waits no second time: the retry budget bounds what that adds to full endpoints.
    Example: max_ttft_s 10, 30,000 tokens wait, 10,000 tokens/s are dispatched -> 3 s, which is more than 2 s: shed.
    """

    type: ClassVar[str] = "expected-ttft"
    needs: ClassVar[Belief] = Belief.PREFILL_TIMES
    bounded: ClassVar[bool] = True
    retries_wait: ClassVar[bool] = False
    max_waiting: ClassVar[int] = 1_000_000
    max_ttft_s: float = parameter(10.0, "Seconds within which every admitted request should get its first token.")

    def __post_init__(self) -> None:
        if not 0 < self.max_ttft_s < float("inf"):
            raise ValueError(f"max_ttft_s: must be finite and above 0, not {self.max_ttft_s!r}")

    @property
    def max_wait_s(self) -> float:
        """The bound itself: what has not started by then is late."""
        return self.max_ttft_s

    def max_backlog_s(self, ttft_objective_s: float | None, stood_s: float = 0.0) -> float:
        """A fifth of the bound, and a tenth once work has waited for half of it: a burst's backlog is gone soon."""
        bound_s = self.max_ttft_s if ttft_objective_s is None else min(self.max_ttft_s, ttft_objective_s)
        standing = min(stood_s / (_STANDING_SHARE * self.max_ttft_s), 1.0)
        return (_GATEWAY_SHARE + standing * (_GATEWAY_SHARE_STANDING - _GATEWAY_SHARE)) * bound_s

    def limits(self, stage: Stage, gauges: Gauges) -> Limits:
        """See the class."""
        if stage is Stage.PREFILL:
            crowded = np.minimum(gauges.foreign, gauges.waiting) >= _LEAST_WAITING
            requests = np.where(crowded, 0, _LEAST_PREFILLS)
            return Limits(requests, np.where(crowded, 0.0, _ENGINE_SHARE * self.max_ttft_s))
        running = gauges.running
        requests = running + np.maximum(running, _LEAST_ON_THE_WAY)
        late = gauges.waiting >= np.maximum(running // 8, _LEAST_WAITING)
        requests[late | (gauges.kv_usage_ratio >= _MOST_KV_RATIO)] = 0
        return Limits(requests, np.zeros(len(running)))


_LEAST_PREFILLS = 2
_LEAST_ON_THE_WAY = 64
_LEAST_WAITING = 8
_MOST_KV_RATIO = 0.95
_ENGINE_SHARE = 0.05
_GATEWAY_SHARE = 0.2
_GATEWAY_SHARE_STANDING = 0.1
_STANDING_SHARE = 0.5

_ADMISSIONS: tuple[type[Admission], ...] = (Bounded, ExpectedTtft, Open)

ADMISSIONS: Mapping[str, type[Admission]] = MappingProxyType({one.type: one for one in _ADMISSIONS})
"""Every admission policy, by type name."""
