"""The worker's half of the pull connector: when pulls and leases end, and what it reports with a step's output.

vLLM: nixl/pull_worker.py. The scheduler's half is `vllm.kv_transfers`.
"""

import math
from dataclasses import dataclass

from ballast_sim.engine.config import EngineConfig
from ballast_sim.engine.requests import RequestState


@dataclass(slots=True)
class Held:
    """KV of a finished request that another engine may pull until its lease expires."""

    request: RequestState
    expires_at_s: float
    renewed: bool = False  # by a heartbeat that the worker has not read yet


class WorkerTransfers:
    """Pulls under way and leases. Times are seconds on the engine's clock."""

    __slots__ = ("_lease_s", "_s_per_token", "_setup_s", "expired_leases", "held", "pulling", "read")

    def __init__(self, config: EngineConfig) -> None:
        """None under way."""
        self._setup_s = config.pull_setup_s
        self._s_per_token = config.pull_s_per_token
        self._lease_s = config.lease_s
        self.pulling: dict[RequestState, float] = {}  # by end; infinite while the driver has not reported it
        self.held: dict[str, Held] = {}
        self.read: list[RequestState] = []  # released by their readers; the worker has not reported it yet
        self.expired_leases = 0

    def begin_pull(self, request: RequestState, now_s: float) -> None:
        """The scheduler has allocated the blocks of a pull."""
        setup_s = self._setup_s
        lasts_s = math.inf if setup_s is None else setup_s + request.pulled_tokens * self._s_per_token
        self.pulling[request] = now_s + lasts_s

    def hold(self, request: RequestState, now_s: float) -> float:
        """Hold a finished request's KV for another engine. Returns when the lease expires."""
        expires_at_s = now_s + self._lease_s
        self.held[request.request_id] = Held(request, expires_at_s)
        return expires_at_s

    def renew_leases(self, now_s: float) -> None:
        """Read the heartbeats that have come: each lease lasts two thirds of its length at least, in whole seconds."""
        for held in self.held.values():
            if held.renewed:
                held.renewed = False
                held.expires_at_s = max(held.expires_at_s, now_s + self._lease_s * 2 // 3)

    def first_end_s(self) -> float:
        """When the first pull or lease ends, as far as that is known; infinity if none does."""
        first_s = min(self.pulling.values()) if self.pulling else math.inf
        for held in self.held.values():
            first_s = min(first_s, held.expires_at_s)
        return first_s

    def take_ended_pulls(self, now_s: float) -> list[RequestState]:
        """Pulls that have ended by now."""
        ended = [request for request, end_s in self.pulling.items() if end_s <= now_s]
        for request in ended:
            del self.pulling[request]
        return ended

    def take_ended_sends(self, now_s: float) -> list[RequestState]:
        """Requests whose KV need not be held any longer: first those that were read, then those whose lease expired."""
        self.renew_leases(now_s)
        expired = [request_id for request_id, held in self.held.items() if held.expires_at_s <= now_s]
        self.expired_leases += len(expired)
        ended = self.read + [self.held.pop(request_id).request for request_id in expired]
        self.read = []
        return ended
