"""A queue order instead of vLLM's policy (UniBoost, sections 3.2 and 3.3).

The waiting queue goes by rank. The best waiting request displaces running ones that rank worse by more than the order's
margin and may be evicted, where it does not fit otherwise and fits then. Where chunks yield, running prefills go by
rank, and the best waiting request goes before the next chunk of those that it overtakes. When KV runs out, the worst
request that may be evicted is preempted, or else the worst of all (a *forced* preemption).
"""

from collections.abc import Iterable

from ballast_sim.engine.ordering import Ordering
from ballast_sim.engine.papers.progress import Progress
from ballast_sim.engine.papers.ranks import Ranks
from ballast_sim.engine.requests import RequestState, Status
from ballast_sim.engine.vllm.batch import Composition
from ballast_sim.engine.vllm.state import SchedulerState


class RankedPolicy:
    """A `SchedulingPolicy` that follows a queue order."""

    def __init__(self, ordering: Ordering, state: SchedulerState, progress: Progress) -> None:
        """`state`: the scheduler's, with queues by key."""
        self.ranks = Ranks(ordering)
        self._chunks_yield = ordering.chunks_yield
        self._swap_s_per_token = ordering.swap_s_per_token
        self._state = state
        self._progress = progress
        self._ranks_hold_until = 0  # no running request's rank changes before so many steps are composed
        self._swapped_tokens = 0  # copied since `take_swap_s`, out or in

    # -- what the scheduler reports ----------------------------------------------------------------------------------

    def arrived(self, request: RequestState) -> None:
        """Rank a new request by what the prefix cache holds of it, or what it will pull."""
        pool = self._state.kv.pool
        hit_tokens = len(pool.longest_hit(request)) * pool.block_size
        request.hit_tokens = max(hit_tokens, request.pull_tokens) if request.spec.pull else hit_tokens
        self.ranks.rank(request, 0)

    def admitted(self, request: RequestState) -> None:
        """Rank a request that begins to run."""
        if request.scheduled_s is None:
            request.hit_tokens = request.cached_tokens
        self.ranks.dispatched(request, self._progress.reach(request))
        self._ranks_hold_until = 0

    def preempted(self, request: RequestState) -> None:
        """Rank a request by all the work it ever attained. Swapped out, it keeps what it has computed."""
        request.forced_preemptions += not request.evictable  # as it was ranked when it was chosen
        request.reach = self._progress.reach(request)
        self.ranks.rank(request, request.reach)
        computed = 0
        if self._swap_s_per_token is not None:
            computed = request.computed
            if self._state.config.hands_over_kv:
                computed = min(computed, request.num_tokens - 1)  # output in flight is dropped
            self._swapped_tokens += computed
        request.computed = computed

    def restored(self, request: RequestState) -> None:
        """Its KV is copied back from the host."""
        self._swapped_tokens += request.computed

    def take_swap_s(self) -> float:
        """See `SchedulingPolicy.take_swap_s`."""
        tokens = self._swapped_tokens
        if not tokens or self._swap_s_per_token is None:
            return 0.0
        self._swapped_tokens = 0
        return tokens * self._swap_s_per_token

    def finished(self, requests: Iterable[RequestState], now_s: float) -> None:
        """Learn from completions, and rank all requests anew where the order has changed."""
        learned = [self.ranks.completed(request, now_s) for request in requests]
        if not any(learned):
            return
        state = self._state
        for queue in (state.waiting, state.skipped_waiting):
            for request in queue:
                self.ranks.rank(request, request.reach)
            queue.reorder()
        for request in state.running:
            self.ranks.rank(request, self._progress.reach(request))

    # -- what the scheduler asks -------------------------------------------------------------------------------------

    def before_step(self, step: Composition) -> list[RequestState]:
        """Sort the running prefills, and make way for the best waiting request."""
        state = self._state
        if self._chunks_yield and len(state.prefills) > 1:
            self._sort_prefills()
        head = self._next_up()
        if head is None or len(state.running) >= state.config.max_num_batched_tokens:
            return []
        rivals = self._rivals(head)
        slower = self._overtaken_prefills(head) if self._chunks_yield else []
        if not rivals and not slower:
            return []
        hit = state.kv.pool.longest_hit(head) if head.computed == 0 else []
        missing, seats = state.missing_blocks(head, hit), state.config.max_num_seqs - len(state.running)
        victims: list[RequestState] = []
        if missing > 0 or seats < 1:
            missing -= sum(len(blocks) for blocks in state.kv.deferred())
            for rival in rivals:
                if missing <= 0 and seats >= 1:
                    break
                victims.append(rival)
                missing -= state.kv.pool.held_alone(rival.blocks)
                seats += 1
            if missing > 0 or seats < 1:
                return []
            self._progress.settle()
        step.yielding = set(slower).difference(victims)
        return victims

    def after_waiting(self, step: Composition) -> None:
        """The rest of the token budget goes to the prefills that yielded, as far as KV allows."""
        if not step.yielding:
            return
        threshold, pool = self._state.prefill_threshold(), self._state.kv.pool
        scheduled = step.num_scheduled_tokens
        for request in self._state.running:
            if request not in step.yielding or step.token_budget <= 0:
                continue
            count = min(request.num_tokens + request.placeholders - request.computed, step.token_budget)
            count = min(count, threshold) if threshold else count
            missing = max(0, pool.blocks_for(request.computed + count) - len(request.blocks))
            if count <= 0 or missing > pool.free_blocks:
                continue
            request.blocks += pool.take(missing)
            pool.cache(request, min(request.num_tokens, request.computed + count))
            scheduled[request] = count
            step.token_budget -= count
        step.num_scheduled_tokens = dict(sorted(scheduled.items(), key=lambda item: item[0].order))

    def victim(self) -> RequestState:
        """The worst running request that may be evicted, or else the worst of all."""
        self._refresh_ranks()
        running = self._state.running
        evictable = [request for request in running if request.evictable]
        return max(evictable or running)

    def steps_without_preemption(self, most: int) -> int:
        """See `SchedulingPolicy.steps_without_preemption`."""
        if self._swapped_tokens:
            return 0
        head = self._next_up()
        if head is None:
            return most
        if self._rivals(head):
            return 0
        return min(most, self._ranks_hold_until - self._state.steps.composed)

    # -- ranks of running requests -----------------------------------------------------------------------------------

    def _sort_prefills(self) -> None:
        """Sort the running prefills by rank, among the positions and admission numbers that they have."""
        running, prefills = self._state.running, self._state.prefills
        positions = [position for position, request in enumerate(running) if request in prefills]
        orders = [running[position].order for position in positions]
        ranked = sorted(running[position] for position in positions)
        for position, order, request in zip(positions, orders, ranked, strict=True):
            running[position], request.order = request, order

    def _next_up(self) -> RequestState | None:
        """The best waiting request, if it holds no blocks yet and can be admitted now."""
        state = self._state
        for request in state.skipped_waiting:
            if request.status is not Status.PULLING or request.pull_reported:
                return None
        if not len(state.waiting):
            return None
        head = state.waiting.peek()
        return None if head.stale and not state.config.hands_over_kv else head

    def _rivals(self, head: RequestState) -> list[RequestState]:
        """Running requests that may be displaced for `head`, the worst first."""
        self._refresh_ranks()
        rivals = [other for other in self._state.running if other.evictable and self.ranks.overtakes(head, other)]
        return sorted((other for other in rivals if not self._progress.is_ending(other)), reverse=True)

    def _overtaken_prefills(self, head: RequestState) -> list[RequestState]:
        return [
            other
            for other in self._state.prefills
            if other.status is Status.RUNNING and self.ranks.overtakes(head, other)
        ]

    def _refresh_ranks(self) -> None:
        """Rank those running requests anew whose work has crossed a threshold."""
        state = self._state
        if state.steps.composed < self._ranks_hold_until:
            return
        steps = state.config.max_model_len
        for request in state.running:
            reach = self._progress.reach(request)
            if reach >= request.crosses_at:
                self.ranks.rank(request, reach)
            steps = min(steps, request.crosses_at - reach)
        self._ranks_hold_until = state.steps.composed + (1 if state.prefills else steps)
