"""Which request computes how many tokens in the next step, and what a finished step changes.

The rules of vLLM 0.32 (v1/core/sched/scheduler.py and async_scheduler.py), without speculative decoding, LoRA,
multi-modal input and pipeline parallelism. Asynchronous scheduling composes step k+1 when step k starts: a
*placeholder* stands for each output token that is not known yet.

With an `ordering` in the place of vLLM's policies (UniBoost, sections 3.2 and 3.3): the waiting queue goes by rank; the
best that waits takes the places of running ones that rank worse by more than the order's margin and may be evicted,
where it fits no other way and fits then; where chunks yield, running prefills go by rank, and it goes before the next
chunk of those that it overtakes; and when KV runs out, the worst that may be evicted goes, or else the worst (a
*forced* preemption).
"""

import math
from collections import deque
from collections.abc import Callable, Iterator

from ballast_core.policies.partition.batch_budget import StepTimeTable
from ballast_core.profiles import HardwareProfile
from ballast_sim.engine.batch import Batch, Counters, Output
from ballast_sim.engine.batching import PullsFirst
from ballast_sim.engine.config import EngineConfig
from ballast_sim.engine.events import FinishReason
from ballast_sim.engine.kv import BlockPool
from ballast_sim.engine.ordering import Ranks
from ballast_sim.engine.queues import FcfsQueue, PriorityQueue, WaitingQueue
from ballast_sim.engine.requests import RequestState, Status

_NO_LIMIT = 1 << 62


class Scheduler:
    """The scheduler's state: queues, blocks, frees that wait for steps in flight."""

    def __init__(self, config: EngineConfig) -> None:
        """An idle engine with an empty cache."""
        self.config = config
        self.pool = BlockPool(config.kv_blocks, config.block_size, config.prefix_caching)
        self._ranks = Ranks(config.ordering) if config.ordering is not None else None
        self._by_rank = self._ranks is not None or config.policy == "priority"
        make_queue: Callable[[], WaitingQueue] = PriorityQueue if self._by_rank else FcfsQueue
        self.waiting = make_queue()
        self._step_times: StepTimeTable | None = None
        self._prefill_left = _NO_LIMIT  # prompt tokens that the step being composed may still take
        if config.tbt_slo_s is not None and isinstance(config.timer, HardwareProfile):
            self._step_times = StepTimeTable(config.timer)
            self.waiting = PullsFirst(self.waiting, make_queue())
        self.holding = make_queue()  # waits with blocks in hand: pulling, or pulled and not admitted yet
        self.running: list[RequestState] = []
        self.counters = Counters()
        self.finished_unflushed = False
        self.aborted_pulls: dict[str, RequestState] = {}
        self.sending: dict[RequestState, None] = {}  # finished; their blocks stay until read or expired
        self._prefills: dict[RequestState, None] = {}  # prefills and loads in flight, by age
        self._defers_frees = config.pulls_kv and config.async_scheduling
        self._deferred: deque[tuple[int, list[int]]] = deque()
        self._composed_steps = 0
        self._processed_steps = 0
        self._admissions = 0
        self._preempted_now = 0
        self._yielding: set[RequestState] = set()  # prefills that let one who waits go first in this step
        self._ranks_hold_until = 0  # no running request's rank changes before so many steps are composed
        self._swapped_tokens = 0  # by steps composed since `take_swap_s`

    # -- what the loop asks ------------------------------------------------------------------------------------------

    def has_requests(self) -> bool:
        """Whether the loop must go on composing (an end is flushed by one more step, open transfers poll)."""
        unfinished = self.running or len(self.waiting) or len(self.holding)
        return bool(unfinished or self.finished_unflushed or self.aborted_pulls or self.sending)

    def held_blocks(self) -> Iterator[list[int]]:
        """Blocks by holder, for the pool's invariant."""
        for group in (self.running, self.waiting, self.holding, self.aborted_pulls.values(), self.sending):
            for state in group:
                yield state.blocks
        for _, blocks in self._deferred:
            yield blocks

    def add(self, state: RequestState) -> None:
        """A new request waits."""
        if self._ranks is not None:
            hit = len(self.pool.longest_hit(state)) * self.config.block_size
            state.hit_tokens = max(hit, state.pull_tokens) if state.request.pull else hit
            self._ranks.rank(state, 0)
        self.waiting.add(state)

    def take_swap_s(self) -> float:
        """How much longer the step just composed lasts, as KV is copied to the host and back."""
        ordering, tokens = self.config.ordering, self._swapped_tokens
        if not tokens or ordering is None or ordering.swap_s_per_token is None:
            return 0.0
        self._swapped_tokens = 0
        return tokens * ordering.swap_s_per_token

    # -- composing ---------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> Batch:
        """Compose the next step. Running requests come first, then, if none was preempted, waiting ones."""
        batch = Batch()
        self._preempted_now = displaced = 0
        chosen: dict[RequestState, int] = {}
        if self._ranks is not None:
            displaced = self._follow_order(self._ranks)
        budget = self._schedule_running(chosen)
        if not self._preempted_now:
            budget = self._schedule_waiting(chosen, budget, batch, now_s)
        if self._yielding:
            self._schedule_yielding(chosen, budget)
            chosen = dict(sorted(chosen.items(), key=lambda item: item[0].order))
        self._fill(batch, chosen)
        batch.preempted = self._preempted_now + displaced
        self.finished_unflushed = False
        return batch

    def _prefill_threshold(self) -> int:
        """Cap on the tokens of one request in a step; 0 is none."""
        threshold = self.config.long_prefill_token_threshold
        count = len(self.running) + len(self.waiting) + len(self.holding)
        if threshold <= 0 or count <= 1:
            return 0
        share = self.config.max_num_batched_tokens // count
        return max(threshold, share) if self.config.long_prefill_token_threshold_adaptive else threshold

    def _schedule_running(self, chosen: dict[RequestState, int], index: int = 0, used_tokens: int = 0) -> int:
        """Fill `chosen` with running requests in order of admission, from `index`. Returns the token budget left."""
        config, pool, running = self.config, self.pool, self.running
        budget, threshold = config.max_num_batched_tokens - used_tokens, self._prefill_threshold()
        block_size, longest = config.block_size, config.max_model_len
        by_slo = self._step_times is not None
        if by_slo:
            self._prefill_left = self._prefill_allowed(index)
        yielding = self._yielding
        while index < len(running) and budget > 0:
            state = running[index]
            if yielding and state in yielding:
                index += 1
                continue
            held_back = state.placeholders
            if held_back and state.computed + 2 - held_back >= state.length_limit:
                index += 1  # its last token is in flight already
                continue
            count = state.num_tokens + held_back - state.computed
            if 0 < threshold < count:
                count = threshold
            prefills = by_slo and count > 1
            if prefills:
                count = min(count, self._prefill_left)
            computed = state.computed
            count = min(count, budget)
            count = min(count, longest - computed - 1)
            if count <= 0:
                index += 1
                continue
            reach = computed + count
            missing = -(-reach // block_size) - len(state.blocks)
            if missing > 0:
                if missing > pool.free_blocks:
                    outcome = self._make_room(state, missing, index, chosen)
                    if outcome is None:
                        break
                    index, restored = outcome
                    budget += restored
                state.blocks += pool.take(missing)
            cacheable = min(state.num_tokens, reach)
            if cacheable // block_size > state.cached_blocks:
                pool.cache(state, cacheable)
            chosen[state] = count
            budget -= count
            self._prefill_left -= count if prefills else 0
            index += 1
        return budget

    def _prefill_allowed(self, index: int) -> int:
        """Prompt tokens that the next step may compute beside all its decodes: Algorithm 2, line 3."""
        slo_s, table = self.config.tbt_slo_s, self._step_times
        if slo_s is None or table is None:
            return _NO_LIMIT
        decodes, context, least_s = self._members_work()
        prompts = len(self.waiting) + len(self.holding) > 0
        for state in self.running[index:]:
            held_back = state.placeholders
            if held_back and state.computed + 2 - held_back >= state.length_limit:
                continue
            if state.num_tokens + held_back - state.computed > 1:
                prompts = True
                continue
            decodes += 1
            context += state.computed
            least_s = min(least_s, state.request.tbt_slo_s or slo_s)
        if not prompts:
            return 0
        room = self.config.max_num_batched_tokens - decodes
        mean = context / decodes if decodes else 0.0
        return table.max_prefill_tokens(mean, decodes, least_s if decodes else slo_s, room)

    def _members_work(self) -> tuple[int, int, float]:
        """Of requests whose decodes are booked together: how many, their contexts, the least time between tokens."""
        return 0, 0, math.inf

    def measured(self, batch: Batch) -> None:
        """A step has ended: what it took corrects the table (Algorithm 2, line 1)."""
        if self._step_times is not None and batch.tokens > batch.decodes:
            mean = batch.decode_context_tokens / batch.decodes if batch.decodes else 0.0
            self._step_times.observe(batch.tokens - batch.decodes, mean, batch.decodes, batch.ends_s - batch.starts_s)

    def _make_room(
        self, state: RequestState, missing: int, index: int, chosen: dict[RequestState, int]
    ) -> tuple[int, int] | None:
        """Preempt until `missing` blocks are free: the request's new index and the budget given back, or None."""
        running, restored = self.running, 0
        while missing > self.pool.free_blocks:
            if self._ranks is not None:
                victim = self._worst(self._ranks)
            elif self._by_rank:
                victim = max(running, key=lambda candidate: candidate.key[:2])
            else:
                victim = running[-1]
            if not self._freeable(victim):
                return None
            position = running.index(victim) if self._by_rank else len(running) - 1
            del running[position]
            if position < index:
                index -= 1
            restored += chosen.pop(victim, 0)
            self._preempt(victim)
            if victim is state:
                return None
        return index, restored

    def _preempt(self, victim: RequestState) -> None:
        """Back to the waiting queue, to be computed anew.

        Tokens in flight are stale: they still count when they come, but for an engine that hands over KV.
        """
        self._free(victim)
        self._prefills.pop(victim, None)
        victim.status = Status.PREEMPTED
        if self._ranks is None:
            victim.computed = 0
        else:
            self._step_back(victim, self._ranks)
        victim.stale = victim.in_flight
        victim.placeholders = 0
        victim.preemptions += 1
        if victim.prefill_steps:
            victim.prefill_steps.clear()
        self.waiting.prepend(victim)
        self._preempted_now += 1
        self.counters.preemptions += 1

    def _schedule_waiting(self, chosen: dict[RequestState, int], budget: int, batch: Batch, now_s: float) -> int:
        """Admit in order; the first that does not fit ends the scan. Those that cannot go yet are passed over.

        Returns the token budget left.
        """
        threshold = self._prefill_threshold()
        skipped: list[RequestState] = []
        skipped_holding: list[RequestState] = []
        while budget > 0 and len(self.running) < self.config.max_num_seqs:
            queue = self.holding if len(self.holding) else self.waiting
            if not len(queue):
                break
            state = queue.peek()
            if queue is self.holding and not self._may_go(state):
                skipped_holding.append(queue.pop())
                continue
            if state.stale and not self.config.hands_over_kv:
                skipped.append(queue.pop())
                continue
            if not state.pull_tried:
                if self._needs_no_pull(state):
                    batch.needless_pulls.append(state)
                elif not self._start_pull(state, now_s):
                    break
                else:
                    batch.pulls.append(state)
                    skipped_holding.append(queue.pop())
                    continue
            ready = state.num_tokens - state.computed == 1
            room = budget if ready else min(budget, self._prefill_left)
            count = self._admit(state, room, threshold) if room > 0 else 0
            if not count:
                break
            self._prefill_left -= 0 if ready else count
            queue.pop()
            self._begin(state, count, batch, now_s)
            chosen[state] = count
            budget -= count
        self.holding.put_back(skipped_holding)
        self.waiting.put_back(skipped)
        return budget

    def _begin(self, state: RequestState, count: int, batch: Batch, now_s: float) -> None:
        """A request was admitted with its first `count` tokens."""
        self.running.append(state)
        self._admissions += 1
        state.order = self._admissions
        if state.status is Status.PREEMPTED:
            batch.resumed += 1
        state.status = Status.RUNNING
        if self._ranks is not None:
            self._dispatched(state, self._ranks)
        if state.scheduled_s is None:
            state.scheduled_s = now_s
        if state.computed + count < state.num_tokens:
            self._prefills[state] = None

    def _admit(self, state: RequestState, budget: int, threshold: int) -> int:
        """Take the blocks of a waiting request's first chunk: its tokens, or 0 where it does not fit."""
        pool = self.pool
        hit = pool.longest_hit(state) if state.computed == 0 else []
        computed = state.computed or len(hit) * self.config.block_size
        count = state.num_tokens - computed
        if 0 < threshold < count:
            count = threshold
        count = min(count, budget)
        have = len(state.blocks) + len(hit)
        watermark = self.config.watermark_blocks if self.running else 0
        room = pool.free_blocks - pool.free_among(hit) - watermark
        # The whole sequence must fit, though only the chunk's blocks are taken.
        if pool.blocks_for(state.num_tokens) - have > room:
            return 0
        if state.computed and not state.blocks:
            self._swapped_tokens += state.computed
        self._take_hit(state, hit)
        if state.scheduled_s is None:
            state.cached_tokens = computed
        state.computed = computed
        state.blocks += pool.take(max(0, pool.blocks_for(computed + count) - have))
        pool.cache(state, min(computed + count, state.num_tokens))
        return count

    def _take_hit(self, state: RequestState, hit: list[int]) -> None:
        """Count a prefix cache look-up and share what was found."""
        if state.computed or not self.config.prefix_caching:
            return
        self.counters.prefix_queries += state.num_tokens
        self.counters.prefix_hits += len(hit) * self.config.block_size
        self.pool.touch(hit)
        state.blocks += hit
        state.cached_blocks = len(hit)

    def _lacking(self, state: RequestState, hit: list[int]) -> int:
        """Blocks that are missing to admit a waiting request, or to start its pull; 0 or less where it fits."""
        pool, pulls = self.pool, not state.pull_tried
        tokens = state.input_tokens if pulls else state.num_tokens
        watermark = self.config.watermark_blocks if self.running else 0
        room = pool.free_blocks - pool.free_among(hit) - watermark
        if pulls:
            room -= sum(max(0, pool.blocks_for(other.num_tokens) - len(other.blocks)) for other in self._prefills)
        return pool.blocks_for(tokens) - len(hit) - len(state.blocks) - room

    # -- an order ----------------------------------------------------------------------------------------------------

    def _follow_order(self, ranks: Ranks) -> int:
        """Sort the running prefills, and make way for the best that waits. Returns how many it displaced."""
        self._yielding.clear()
        if ranks.chunks_yield and len(self._prefills) > 1:
            self._sort_prefills()
        head = self._next_up()
        if head is None or len(self.running) >= self.config.max_num_batched_tokens:
            return 0
        rivals = self._rivals(head, ranks)
        prefills = [other for other in self._prefills if other.status is Status.RUNNING] if ranks.chunks_yield else []
        slower = [other for other in prefills if ranks.overtakes(head, other)]
        if not rivals and not slower:
            return 0
        hit = self.pool.longest_hit(head) if head.computed == 0 else []
        lacking, seats = self._lacking(head, hit), self.config.max_num_seqs - len(self.running)
        victims: list[RequestState] = []
        if lacking > 0 or seats < 1:
            lacking -= sum(len(blocks) for _, blocks in self._deferred)
            for rival in rivals:
                if lacking <= 0 and seats >= 1:
                    break
                victims.append(rival)
                lacking -= self.pool.held_alone(rival.blocks)
                seats += 1
            if lacking > 0 or seats < 1:
                return 0
            self._settle_all()
            for victim in victims:
                self.running.remove(victim)
                self._preempt(victim)
            self._preempted_now = 0
        self._yielding.update(other for other in slower if other.status is Status.RUNNING)
        return len(victims)

    def _sort_prefills(self) -> None:
        """Better ones first, in the places (and with the numbers) that prefills have among the running."""
        places = [place for place, state in enumerate(self.running) if state in self._prefills]
        orders = [self.running[place].order for place in places]
        ranked = sorted(self.running[place] for place in places)
        for place, order, state in zip(places, orders, ranked, strict=True):
            self.running[place], state.order = state, order

    def _next_up(self) -> RequestState | None:
        """The best that waits, if it holds no blocks yet and could go now."""
        for state in self.holding:
            if state.status is not Status.PULLING or state.pull_reported:
                return None
        if not len(self.waiting):
            return None
        head = self.waiting.peek()
        return None if head.stale and not self.config.hands_over_kv else head

    def _rivals(self, head: RequestState, ranks: Ranks) -> list[RequestState]:
        """Running requests that may have to make way, the worst first."""
        self._refresh_ranks(ranks)
        rivals = [other for other in self.running if other.evictable and ranks.overtakes(head, other)]
        return sorted((other for other in rivals if not self._is_ending(other)), reverse=True)

    def _schedule_yielding(self, chosen: dict[RequestState, int], budget: int) -> None:
        """What is left of the budget goes to the prefills that let another one go first, as far as KV allows."""
        threshold, pool = self._prefill_threshold(), self.pool
        for state in self.running:
            if state not in self._yielding or budget <= 0:
                continue
            count = min(state.num_tokens + state.placeholders - state.computed, budget)
            count = min(count, threshold) if threshold else count
            missing = max(0, pool.blocks_for(state.computed + count) - len(state.blocks))
            if count <= 0 or missing > pool.free_blocks:
                continue
            state.blocks += pool.take(missing)
            pool.cache(state, min(state.num_tokens, state.computed + count))
            chosen[state] = count
            budget -= count

    def _worst(self, ranks: Ranks) -> RequestState:
        """Who goes when KV runs out."""
        self._refresh_ranks(ranks)
        allowed = [state for state in self.running if state.evictable]
        victim = max(allowed or self.running)
        if not allowed:
            victim.forced_preemptions += 1
        return victim

    def _step_back(self, victim: RequestState, ranks: Ranks) -> None:
        """Rank one that was preempted, by all the work it ever had; swapped out, it keeps what it has computed."""
        victim.reach = self._reach(victim)
        ranks.rank(victim, victim.reach)
        ordering, computed = self.config.ordering, 0
        if ordering is not None and ordering.swap_s_per_token is not None:
            computed = victim.computed
            if self.config.hands_over_kv:
                computed = min(computed, victim.num_tokens - 1)  # output in flight is dropped
            self._swapped_tokens += computed
        victim.computed = computed

    def _dispatched(self, state: RequestState, ranks: Ranks) -> None:
        """Rank one that begins to run."""
        if state.scheduled_s is None:
            state.hit_tokens = state.cached_tokens
        ranks.dispatched(state, self._reach(state))
        self._ranks_hold_until = 0

    def _refresh_ranks(self, ranks: Ranks) -> None:
        """Rank those anew whose work has crossed a threshold."""
        if self._composed_steps < self._ranks_hold_until:
            return
        steps = self.config.max_model_len
        for state in self.running:
            reach = self._reach(state)
            if reach >= state.crosses_at:
                ranks.rank(state, reach)
            steps = min(steps, state.crosses_at - reach)
        self._ranks_hold_until = self._composed_steps + (1 if self._prefills else steps)

    def _rank_all(self, ranks: Ranks) -> None:
        """After what ranks are made of has changed."""
        for queue in (self.waiting, self.holding):
            for state in queue:
                ranks.rank(state, state.reach)
            queue.reorder()
        for state in self.running:
            ranks.rank(state, self._reach(state))

    def _reach(self, state: RequestState) -> int:
        """The most tokens of a request that were ever computed, those in flight included."""
        return max(state.reach, state.computed)

    def _is_ending(self, state: RequestState) -> bool:
        """Whether its last token is in flight."""
        held_back = state.placeholders
        return held_back > 0 and state.computed + 2 - held_back >= state.length_limit

    def _settle_all(self) -> None:
        """Before requests are displaced."""

    # -- pulls -------------------------------------------------------------------------------------------------------

    def _may_go(self, state: RequestState) -> bool:
        """Whether the pull of a request is over, and the step has room for what it left of its prompt, if anything."""
        if state.status is Status.PULLING and not self._promote(state):
            return False
        return self._prefill_left > 0 or state.num_tokens - state.computed == 1

    def _needs_no_pull(self, state: RequestState) -> bool:
        """Whether all that a request would pull a part of its prompt for is in the cache here; then it need not try."""
        if state.pull_tokens == state.input_tokens:
            return False
        state.pull_tried = len(self.pool.longest_hit(state)) * self.config.block_size >= state.pull_tokens
        return state.pull_tried

    def _start_pull(self, state: RequestState, now_s: float) -> bool:
        """Reserve all prompt blocks of a request whose KV lies elsewhere; False where they do not fit.

        A load holds its blocks without progress, so it is admitted only beside what prefills and loads in flight need.
        """
        pool = self.pool
        hit = pool.longest_hit(state)
        watermark = self.config.watermark_blocks if self.running else 0
        missing = pool.blocks_for(state.input_tokens) - len(hit)
        room = pool.free_blocks - pool.free_among(hit) - watermark
        reserved = sum(max(0, pool.blocks_for(other.num_tokens) - len(other.blocks)) for other in self._prefills)
        if missing > room - reserved:
            return False
        self._take_hit(state, hit)
        local = len(hit) * self.config.block_size
        state.blocks += pool.take(missing)
        state.cached_tokens = state.computed = state.pull_tokens
        state.pulled_tokens = state.pull_tokens - local
        self.counters.external_queries += state.pulled_tokens
        self.counters.external_hits += state.pulled_tokens
        state.pull_tried = True
        state.status = Status.PULLING
        state.scheduled_s = now_s
        self._prefills[state] = None
        return True

    def _promote(self, state: RequestState) -> bool:
        """Make a request whose pull was reported ready for admission; False while it is still under way."""
        if not state.pull_reported:
            return False
        if state.pull_failed:
            self.pool.release(state.blocks)
            state.blocks = []
            state.cached_blocks = state.computed = 0
            state.cached_tokens = state.pulled_tokens = 0
            state.scheduled_s = None
        else:
            self.pool.cache(state, state.computed)
            if state.computed == state.num_tokens:
                state.computed -= 1  # computed again, to sample from
        state.status = Status.PREEMPTED if state.preemptions else Status.WAITING
        return True

    def pulls_reported(self, ended: list[RequestState]) -> None:
        """The worker said that these pulls are over (well or not: `pull_failed`)."""
        for state in ended:
            if state.status is Status.PULLING:
                state.pull_reported = True
            elif self.aborted_pulls.pop(state.request_id, None) is not None:
                self._free(state)

    def sends_reported(self, ended: list[RequestState]) -> None:
        """The worker said that this KV was read, or that its lease is over."""
        for state in ended:
            del self.sending[state]
            self._free(state)

    # -- a step's end ------------------------------------------------------------------------------------------------

    def _fill(self, batch: Batch, chosen: dict[RequestState, int]) -> None:
        """Advance what is scheduled, and say of each chunk what it computes."""
        if not chosen:
            return
        asynchronous, pulls_kv = self.config.async_scheduling, self.config.pulls_kv
        self._composed_steps += 1
        batch.number = self._composed_steps
        step, prefills, append = self._composed_steps, self._prefills, batch.chunks.append
        total = decodes = context = 0
        pairs = 0.0
        for state, count in chosen.items():
            before = state.computed
            state.computed = reach = before + count
            state.in_flight += count
            state.last_step = step
            samples = reach >= state.num_tokens
            if state.prefill_steps is not None and not state.output_tokens:
                state.prefill_steps.append((batch, reach))
            decode = samples and count == 1 and (pulls_kv or reach > state.input_tokens)
            append((state, count, before, samples, decode))
            total += count
            if decode:
                decodes += 1
                context += before
            else:
                pairs += count * (before + count / 2)
            if reach >= state.num_tokens + state.placeholders:
                if prefills:
                    prefills.pop(state, None)
                if asynchronous:
                    state.placeholders += 1
        batch.tokens, batch.decodes, batch.decode_context_tokens, batch.prefill_pairs = total, decodes, context, pairs

    def process(self, batch: Batch, now_s: float) -> Output:
        """Take in the tokens of a step that has ended."""
        if batch.tokens:
            self._processed_steps += 1
            self._drain_deferred()
        output = Output()
        tokens, pool = output.tokens, self.pool
        asynchronous, block_size = self.config.async_scheduling, self.config.block_size
        running, ended, drops_stale = Status.RUNNING, Status.FINISHED, self.config.hands_over_kv
        for state, count, _, samples, _ in batch.chunks:
            state.in_flight -= count
            stale = state.stale > 0
            if stale:
                state.stale -= count
            if not samples or state.status is ended or (stale and drops_stale):
                continue
            if state.output_tokens == 0:
                state.first_token_s = now_s
            state.last_token_s = now_s
            state.output_tokens += 1
            state.num_tokens += 1
            tokens.append(state.request_id)
            if asynchronous:
                if not stale:
                    state.placeholders -= 1
                if state.status is running:
                    certain = state.computed - state.placeholders
                    if certain // block_size > state.cached_blocks:
                        pool.cache(state, min(certain, state.num_tokens))
            if state.output_tokens >= state.ends_after:
                stopped = state.output_tokens == state.request.stop_after
                output.finished.append((state, FinishReason.STOP if stopped else FinishReason.LENGTH))
                if state.status is not running:
                    self.waiting.remove(state)
                self._end(state)
        if output.finished:
            self._learn(output, now_s)
            self.running = [state for state in self.running if state.status is not Status.FINISHED]
        return output

    def _learn(self, output: Output, now_s: float) -> None:
        """From the ends of requests, where the order learns."""
        if self._ranks is None:
            return
        learned = [self._ranks.completed(state, now_s) for state, _ in output.finished]
        if any(learned):
            self._rank_all(self._ranks)

    def abort(self, state: RequestState) -> None:
        """End a request at any point. The blocks of a pull under way come back when the pull has ended."""
        if state.status is Status.RUNNING:
            self.running.remove(state)
        elif state.status is Status.PULLING:
            self.holding.remove(state)
            if not state.pull_reported:
                self.aborted_pulls[state.request_id] = state
                state.status = Status.FINISHED
                self._prefills.pop(state, None)
                self.finished_unflushed = True
                return
        else:
            (self.holding if state in set(self.holding) else self.waiting).remove(state)
        self._end(state, keep=False)

    def _end(self, state: RequestState, keep: bool = True) -> None:
        """Mark as finished; give the blocks back unless another engine is to pull them."""
        state.status = Status.FINISHED
        self.finished_unflushed = True
        self._prefills.pop(state, None)
        if keep and state.request.hold:
            self.sending[state] = None
        else:
            if keep and not state.content.shared:
                self.pool.spend(state.blocks[: state.cached_blocks])
            self._free(state)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _freeable(self, state: RequestState) -> bool:
        """Whether no step in flight may still write the request's blocks."""
        return not self._defers_frees or state.last_step <= self._processed_steps

    def _free(self, state: RequestState) -> None:
        """Return the request's blocks, now or when the newest composed step has been processed."""
        blocks, state.blocks, state.cached_blocks = state.blocks, [], 0
        if self._freeable(state):
            self.pool.release(blocks)
        elif blocks:
            self._deferred.append((self._composed_steps, blocks))

    def _drain_deferred(self) -> None:
        while self._deferred and self._deferred[0][0] <= self._processed_steps:
            self.pool.release(self._deferred.popleft()[1])
