"""Block tables of requests: prefix hits, and blocks that are freed late (v1/core/kv_cache_manager.py).

With a pull connector and asynchronous scheduling, a step in flight may still write blocks of a request that has left.
These are freed when that step has been processed.
"""

from collections import deque
from collections.abc import Iterator

from ballast_sim.engine.config import EngineConfig
from ballast_sim.engine.requests import RequestState
from ballast_sim.engine.vllm.batch import Counters, StepCount
from ballast_sim.engine.vllm.block_pool import BlockPool


class KvCacheManager:
    """The block pool, and deferred frees in the order of their steps."""

    __slots__ = ("_caching", "_counters", "_defers_frees", "_steps", "deferred_frees", "pool")

    def __init__(self, config: EngineConfig, steps: StepCount, counters: Counters) -> None:
        """An empty cache. `steps` and `counters` are the scheduler's own; the second is written to."""
        self.pool = BlockPool(config.kv_blocks, config.block_size, config.prefix_caching)
        self._caching = config.prefix_caching
        self._steps = steps
        self._counters = counters
        self._defers_frees = config.pulls_kv and config.async_scheduling
        self.deferred_frees: deque[tuple[int, list[int], int]] = deque()

    def share_hit(self, request: RequestState, hit: list[int]) -> None:
        """Count a prefix cache look-up, and put the blocks it found into the block table."""
        if request.computed or not self._caching:
            return
        self._counters.prefix_queries += request.num_tokens
        self._counters.prefix_hits += len(hit) * self.pool.block_size
        self.pool.touch(hit)
        request.blocks += hit
        request.cached_blocks = len(hit)

    def frees_at_once(self, request: RequestState) -> bool:
        """Whether no step in flight may still write the request's blocks."""
        return not self._defers_frees or request.last_step <= self._steps.processed

    def free(self, request: RequestState) -> None:
        """Empty the block table: the blocks are free now, or when the newest composed step has been processed."""
        blocks, named = request.blocks, request.cached_blocks
        if self.frees_at_once(request):
            self.pool.release(blocks, named, request)
        elif blocks:
            self.pool.unclaim(request)
            self.deferred_frees.append((self._steps.composed, blocks, named))
        request.blocks, request.cached_blocks = [], 0

    def free_deferred(self) -> None:
        """Free the blocks whose steps have been processed."""
        while self.deferred_frees and self.deferred_frees[0][0] <= self._steps.processed:
            _, blocks, named = self.deferred_frees.popleft()
            self.pool.release(blocks, named)

    def deferred(self) -> Iterator[list[int]]:
        """Blocks that will be free without anything else being decided, one list a request."""
        for _, blocks, _ in self.deferred_frees:
            yield blocks
