"""What the scheduler keeps from step to step: queues, the running list, block tables, counters."""

from collections.abc import Iterator

from ballast_sim.engine.config import EngineConfig
from ballast_sim.engine.requests import RequestState, Status
from ballast_sim.engine.vllm.batch import Counters, StepCount
from ballast_sim.engine.vllm.kv_manager import KvCacheManager
from ballast_sim.engine.vllm.queues import WaitingQueue


class SchedulerState:
    """An engine's requests and KV cache as the scheduler, its policy and coarse stepping see them.

    `skipped_waiting` holds requests that wait with blocks: KV is being pulled, or was pulled and they are not admitted
    yet. `prefills` are prefills and pulls in flight, by age. Requests in `aborted_pulls` and `sending` keep their
    blocks until the worker reports the transfer's end. `finished_unflushed`: a request has ended, and one more step
    must be composed to flush its end.
    """

    __slots__ = (
        "aborted_pulls",
        "config",
        "counters",
        "finished_unflushed",
        "kv",
        "prefills",
        "running",
        "sending",
        "skipped_waiting",
        "steps",
        "waiting",
    )

    def __init__(self, config: EngineConfig, waiting: WaitingQueue, skipped_waiting: WaitingQueue) -> None:
        """An idle engine with an empty cache; both queues are empty."""
        self.config = config
        self.counters = Counters()
        self.steps = StepCount()
        self.kv = KvCacheManager(config, self.steps, self.counters)
        self.waiting = waiting
        self.skipped_waiting = skipped_waiting
        self.running: list[RequestState] = []
        self.prefills: dict[RequestState, None] = {}
        self.aborted_pulls: dict[str, RequestState] = {}
        self.sending: dict[RequestState, None] = {}
        self.finished_unflushed = False

    def may_admit(self) -> bool:
        """Whether a request waits, and not only for the end of its pull."""
        if self.waiting:
            return True
        if self.skipped_waiting:
            for request in self.skipped_waiting:
                if request.status is not Status.PULLING or request.pull_reported:
                    return True
        return False

    def has_unfinished(self) -> bool:
        """Whether a request runs or waits."""
        return bool(self.running or self.waiting or self.skipped_waiting)

    def has_requests(self) -> bool:
        """Whether the loop must go on composing (an end is flushed by one more step, open transfers poll)."""
        return bool(self.finished_unflushed or self.sending or self.aborted_pulls) or self.has_unfinished()

    def prefill_threshold(self) -> int:
        """Most tokens of one request in a step (vLLM's long_prefill_token_threshold); 0 is no limit."""
        threshold = self.config.long_prefill_token_threshold
        if threshold <= 0:
            return 0
        count = len(self.running) + len(self.waiting) + len(self.skipped_waiting)
        if count <= 1:
            return 0
        share = self.config.max_num_batched_tokens // count
        return max(threshold, share) if self.config.long_prefill_token_threshold_adaptive else threshold

    def missing_blocks(self, request: RequestState, hit: list[int]) -> int:
        """Blocks that the pool lacks to admit a waiting request, or to start its pull; 0 or less where it fits.

        `hit`: what the prefix cache holds of it. The whole sequence must fit, even if only a chunk is computed. A pull
        holds its blocks without progress, so it must fit beside what prefills and pulls in flight still need.
        """
        pool, pulls = self.kv.pool, not request.pull_tried
        tokens = request.input_tokens if pulls else request.num_tokens
        watermark = self.config.watermark_blocks if self.running else 0
        room = pool.free_blocks - pool.free_among(hit) - watermark
        if pulls:
            room -= sum(max(0, pool.blocks_for(other.num_tokens) - len(other.blocks)) for other in self.prefills)
        return pool.blocks_for(tokens) - len(hit) - len(request.blocks) - room

    def held_blocks(self) -> Iterator[list[int]]:
        """Blocks by holder, for the pool's invariant."""
        for group in (self.running, self.waiting, self.skipped_waiting, self.aborted_pulls.values(), self.sending):
            for request in group:
                yield request.blocks
        yield from self.kv.deferred()
