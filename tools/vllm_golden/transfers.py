"""KV transfers: NIXL's own scheduler half, and a worker half that only keeps the time.

What vLLM's scheduler sees of a pull connector comes from vLLM's `NixlPullConnectorScheduler` itself, on the run's
clock. The worker half follows nixl/pull_worker.py (start_load_kv, _get_new_notifs) and nixl/base_worker.py
(get_transfer_results, _reap_expired_send_leases, _handle_heartbeat): what has happened until a step is dispatched is
reported with that step's output.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_scheduler, pull_scheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.outputs import KVConnectorOutput

from vllm_golden.clock import Clock

PEER: dict[str, Any] = {
    "remote_engine_id": "peer",
    "remote_host": "127.0.0.1",
    "remote_port": 1,
    "tp_size": 1,
    "remote_block_ids": [[1]],
}


class TimedNixlConnector(NixlBaseConnector):
    """vLLM's NIXL pull connector without a worker; it remembers how many tokens each pull brings."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """As vLLM calls it; only the scheduler's role is ever asked for."""
        super().__init__(vllm_config, role, kv_cache_config)
        self.connector_scheduler = NixlPullConnectorScheduler(vllm_config, self.engine_id, kv_cache_config)
        self.pulled_tokens: dict[str, int] = {}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Also notes the size of the pull."""
        if num_external_tokens:
            self.pulled_tokens[request.request_id] = num_external_tokens
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """There is no worker."""


def use_clock(clock: Clock) -> None:
    """Let the scheduler halves of NIXL read the run's clock."""
    base_scheduler.time = clock  # type: ignore[assignment]
    pull_scheduler.time = clock  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class News:
    """What another engine says of KV held here."""

    at_s: float
    request_id: str
    pulled: bool  # else: a heartbeat


@dataclass(slots=True)
class TransferWorker:
    """The worker half of one engine."""

    clock: Clock
    setup_s: float
    s_per_token: float
    lease_s: int
    connector: TimedNixlConnector | None = None
    started_s: dict[str, float] = field(default_factory=dict)
    expired: list[str] = field(default_factory=list)
    late_notifications: int = 0
    _pulls: dict[str, float] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _leases: dict[str, float] = field(default_factory=dict)
    _news: list[News] = field(default_factory=list)

    def tell(self, news: News) -> None:
        """Another engine's message, to be read when its time has come."""
        self._news.append(news)
        self._news.sort(key=lambda item: (item.at_s, int(item.request_id), item.pulled))

    def next_event_s(self) -> Iterator[float]:
        """Times at which something will be there to report."""
        yield from self._pulls.values()
        yield from self._leases.values()
        yield from (news.at_s for news in self._news)

    def dispatched(self, metadata: Any) -> KVConnectorOutput | None:
        """A step reaches the worker: begin what it says, report what is over."""
        if self.connector is None or metadata is None:
            return None
        now_s = self.clock.now_s
        for request_id, request in metadata.reqs_to_recv.items():
            if request.awaiting_kvs:
                self.started_s[request_id] = now_s
                tokens = self.connector.pulled_tokens[request_id]
                self._pulls[request_id] = now_s + (self.setup_s + tokens * self.s_per_token)
        self._known |= metadata.reqs_in_batch
        self._known -= metadata.reqs_not_processed
        for request_id, deadline_s in metadata.reqs_to_send.items():
            if request_id in self._known:
                self._leases[request_id] = now_s + (deadline_s - metadata.scheduler_clock)
        sent = self._read_news() + self._reap()
        received = [request_id for request_id, ends_s in self._pulls.items() if ends_s <= now_s]
        for request_id in received:
            del self._pulls[request_id]
        # Lists, for vLLM only iterates: a set's order would be that of string hashes.
        return KVConnectorOutput(finished_sending=sent, finished_recving=received)  # type: ignore[arg-type]

    def _read_news(self) -> list[str]:
        sent = []
        while self._news and self._news[0].at_s <= self.clock.now_s:
            news = self._news.pop(0)
            if news.pulled and news.request_id in self._known:
                self._known.remove(news.request_id)
                self._leases.pop(news.request_id, None)
                sent.append(news.request_id)
            elif news.pulled:
                self.late_notifications += 1
            elif news.request_id in self._leases:
                renewed_s = self.clock.now_s + self.lease_s * 2 // 3
                self._leases[news.request_id] = max(self._leases[news.request_id], renewed_s)
        return sent

    def _reap(self) -> list[str]:
        over = [request_id for request_id, ends_s in self._leases.items() if self.clock.now_s >= ends_s]
        for request_id in over:
            del self._leases[request_id]
            self._known.remove(request_id)
        self.expired += over
        return over
