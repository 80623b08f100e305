"""The scheduler's half of a pull connector: blocks that KV is pulled into, and blocks that others pull from.

vLLM spreads this over scheduler.py (`_update_waiting_for_remote_kv`, `_update_from_kv_xfer_finished`) and the
connector's scheduler (nixl/pull_scheduler.py).
"""

from collections.abc import Sequence

from ballast_sim.engine.requests import RequestState, Status
from ballast_sim.engine.vllm.state import SchedulerState


class KvTransfers:
    """Starts pulls, and takes in what the worker reports of pulls and sends."""

    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        """`state`: the scheduler's."""
        self._state = state

    def needs_no_pull(self, request: RequestState) -> bool:
        """Whether the prefix cache holds all that a request would pull a part of its prompt for.

        The request then counts as having pulled. A pull of the whole prompt is always made.
        """
        if request.pull_tokens == request.input_tokens:
            return False
        pool = self._state.kv.pool
        request.pull_tried = len(pool.longest_hit(request)) * pool.block_size >= request.pull_tokens
        return request.pull_tried

    def start_pull(self, request: RequestState, now_s: float) -> bool:
        """Allocate all prompt blocks of a request whose KV lies elsewhere; False where they do not fit."""
        state, pool = self._state, self._state.kv.pool
        hit = pool.longest_hit(request)
        if state.missing_blocks(request, hit) > 0:
            return False
        missing = pool.blocks_for(request.input_tokens) - len(hit)
        state.kv.share_hit(request, hit)
        request.blocks += pool.take(missing)
        request.cached_tokens = request.computed = request.pull_tokens
        request.pulled_tokens = request.pull_tokens - len(hit) * pool.block_size
        state.counters.external_queries += request.pulled_tokens
        state.counters.external_hits += request.pulled_tokens
        request.pull_tried = True
        request.status = Status.PULLING
        request.scheduled_s = now_s
        state.prefills[request] = None
        return True

    def is_pulling(self, request: RequestState) -> bool:
        """Whether a request still waits for its KV. Once the pull was reported it is made ready for admission."""
        if request.status is not Status.PULLING:
            return False
        if not request.pull_reported:
            return True
        pool = self._state.kv.pool
        if request.pull_failed:
            pool.release(request.blocks, request.cached_blocks, request)
            request.blocks = []
            request.cached_blocks = request.computed = 0
            request.cached_tokens = request.pulled_tokens = 0
            request.scheduled_s = None
        else:
            pool.cache(request, request.computed)
            if request.computed == request.num_tokens:
                request.computed -= 1  # computed again, to sample from
        request.status = Status.PREEMPTED if request.preemptions else Status.WAITING
        return False

    def finished_receiving(self, ended: Sequence[RequestState]) -> None:
        """The worker reported the end of these pulls, successful or not (`pull_failed`)."""
        for request in ended:
            if request.status is Status.PULLING:
                request.pull_reported = True
            elif self._state.aborted_pulls.pop(request.request_id, None) is not None:
                self._state.kv.free(request)

    def finished_sending(self, ended: Sequence[RequestState]) -> None:
        """The worker reported that the KV of these requests was read, or that its lease has expired."""
        for request in ended:
            del self._state.sending[request]
            self._state.kv.free(request)
