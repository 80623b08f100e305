"""Which request computes how many tokens in the next step, and what a finished step changes.

The rules of vLLM 0.32 (v1/core/sched/scheduler.py and async_scheduler.py), without speculative decoding,
multi-modal input and pipeline parallelism. Asynchronous scheduling composes step k+1 when step k starts: a
*placeholder* stands for each output token that is not known yet.
"""

from ballast_sim.engine.events import FinishReason
from ballast_sim.engine.requests import RequestState, Status
from ballast_sim.engine.vllm.batch import NO_OUTPUT, Batch, Composition, Output, ScheduledChunk
from ballast_sim.engine.vllm.kv_transfers import KvTransfers
from ballast_sim.engine.vllm.loras import Loras
from ballast_sim.engine.vllm.policy import SchedulingPolicy
from ballast_sim.engine.vllm.prompt_budget import PromptBudget
from ballast_sim.engine.vllm.state import SchedulerState


class Scheduler:
    """vLLM's scheduler. A coarse engine runs the phases of `schedule` itself, and schedules its cohort in between."""

    def __init__(
        self, state: SchedulerState, policy: SchedulingPolicy, prompt_budget: PromptBudget | None = None
    ) -> None:
        """Without a `prompt_budget` only the token budget limits prompts, as in vLLM."""
        self.state = state
        self.policy = policy
        self.transfers = KvTransfers(state)
        self._prompt_budget = prompt_budget
        self._admissions = 0
        config = state.config
        self._loras = Loras(config.max_loras, config.lora_load_s) if config.max_loras else None

    def add_request(self, request: RequestState) -> None:
        """Put a new request into the waiting queue."""
        self.policy.arrived(request)
        self.state.waiting.add(request)

    # -- composing ---------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> Batch:
        """Compose the next step. Running requests come first, then, if none was preempted, waiting ones."""
        step = self.begin_step()
        self.schedule_running(step)
        if not step.preempted and self.state.may_admit():
            self.schedule_waiting(step, now_s)
        return self.end_step(step)

    def begin_step(self) -> Composition:
        """Start to compose a step: preempt what the policy displaces."""
        step = Composition(self.state.config.max_num_batched_tokens)
        displaced = self.policy.before_step(step)
        if displaced:
            for victim in displaced:
                self.state.running.remove(victim)
                self._preempt(victim)
            step.displaced = len(displaced)
        return step

    def schedule_running(self, step: Composition, index: int = 0) -> None:
        """Schedule running requests in order of admission, from `index`."""
        if self._prompt_budget is not None:
            step.prompt_budget = self._prompt_budget.tokens(index)
        if index < len(self.state.running):
            self._schedule_running(step, index)

    def _schedule_running(self, step: Composition, index: int) -> None:
        state, pool = self.state, self.state.kv.pool
        config, running, num_scheduled_tokens = state.config, state.running, step.num_scheduled_tokens
        token_budget, threshold, yielding = step.token_budget, state.prefill_threshold(), step.yielding
        block_size, max_model_len = config.block_size, config.max_model_len
        limits_prompts = self._prompt_budget is not None
        while index < len(running) and token_budget > 0:
            request = running[index]
            if yielding and request in yielding:
                index += 1
                continue
            placeholders = request.placeholders
            computed = request.computed
            if placeholders and computed + 2 - placeholders >= request.length_limit:
                index += 1  # its last token is in flight already
                continue
            count = request.num_tokens + placeholders - computed
            if 0 < threshold < count:
                count = threshold
            is_prompt = limits_prompts and count > 1
            if is_prompt:
                count = min(count, step.prompt_budget)
            count = min(count, token_budget)
            count = min(count, max_model_len - computed - 1)
            if count <= 0:
                index += 1
                continue
            reach = computed + count
            missing = -(-reach // block_size) - len(request.blocks)
            if missing > 0:
                if missing > pool.free_blocks:
                    room = self._make_room(request, missing, index, step)
                    if room is None:
                        break
                    index, restored = room
                    token_budget += restored
                request.blocks += pool.take(missing)
            cacheable = min(request.num_tokens, reach)
            if cacheable // block_size > request.cached_blocks:
                pool.cache(request, cacheable)
            num_scheduled_tokens[request] = count
            token_budget -= count
            if is_prompt:
                step.prompt_budget -= count
            index += 1
        step.token_budget = token_budget

    def _make_room(self, request: RequestState, missing: int, index: int, step: Composition) -> tuple[int, int] | None:
        """Preempt until `missing` blocks are free: the request's new index and the token budget given back.

        None where the request itself was preempted, or where the victim's blocks cannot be freed at once.
        """
        state, restored = self.state, 0
        running = state.running
        while missing > state.kv.pool.free_blocks:
            victim = self.policy.victim()
            if not state.kv.frees_at_once(victim):
                return None
            position = len(running) - 1 if running[-1] is victim else running.index(victim)
            del running[position]
            if position < index:
                index -= 1
            restored += step.num_scheduled_tokens.pop(victim, 0)
            step.preempted += 1
            self._preempt(victim)
            if victim is request:
                return None
        return index, restored

    def _preempt(self, victim: RequestState) -> None:
        """Back to the waiting queue, without its KV. It has left the running list already.

        Tokens in flight are stale: they still count when they come, except on an engine that hands over KV.
        """
        state = self.state
        state.kv.free(victim)
        state.prefills.pop(victim, None)
        victim.status = Status.PREEMPTED
        self.policy.preempted(victim)
        victim.stale = victim.in_flight
        victim.placeholders = 0
        victim.preemptions += 1
        if victim.prefill_steps:
            victim.prefill_steps.clear()
        state.waiting.prepend(victim)
        state.counters.preemptions += 1

    def schedule_waiting(self, step: Composition, now_s: float) -> None:
        """Admit in order until one does not fit. Requests that cannot be admitted yet are passed over."""
        state = self.state
        config, running, threshold = state.config, state.running, state.prefill_threshold()
        pulls: list[RequestState] = []
        needless_pulls: list[RequestState] = []
        skipped: list[RequestState] = []
        skipped_pulls: list[RequestState] = []
        loras = self._loras
        adapters = set() if loras is None else loras.in_step(step.num_scheduled_tokens)
        while step.token_budget > 0 and len(running) < config.max_num_seqs:
            queue = state.skipped_waiting or state.waiting
            if not queue:
                break
            request = queue.peek()
            if queue is state.skipped_waiting and not self._can_resume(request, step):
                skipped_pulls.append(queue.pop())
                continue
            if request.stale and not config.hands_over_kv:
                skipped.append(queue.pop())
                continue
            if loras is not None and not loras.fits(request, adapters):
                (skipped if queue is state.waiting else skipped_pulls).append(queue.pop())
                continue
            if not request.pull_tried:
                if self.transfers.needs_no_pull(request):
                    needless_pulls.append(request)
                elif not self.transfers.start_pull(request, now_s):
                    break
                else:
                    pulls.append(request)
                    skipped_pulls.append(queue.pop())
                    continue
            only_samples = request.num_tokens - request.computed == 1
            budget = step.token_budget if only_samples else min(step.token_budget, step.prompt_budget)
            count = self._allocate_first_chunk(request, budget, threshold) if budget > 0 else 0
            if not count:
                break
            if not only_samples:
                step.prompt_budget -= count
            if loras is not None:
                step.batch.load_s += loras.use(request, adapters)
            queue.pop()
            self._admit(request, count, step.batch, now_s)
            step.num_scheduled_tokens[request] = count
            step.token_budget -= count
        state.skipped_waiting.put_back(skipped_pulls)
        state.waiting.put_back(skipped)
        step.batch.pulls, step.batch.needless_pulls = pulls, needless_pulls

    def _can_resume(self, request: RequestState, step: Composition) -> bool:
        """Whether a request's pull is over, and prompts may use the step if the pull left a part of its prompt."""
        if self.transfers.is_pulling(request):
            return False
        return step.prompt_budget > 0 or request.num_tokens - request.computed == 1

    def _allocate_first_chunk(self, request: RequestState, budget: int, threshold: int) -> int:
        """Allocate blocks for a waiting request's first chunk. Returns the chunk's tokens, 0 where it does not fit.

        The whole sequence must fit, though only the chunk's blocks are taken.
        """
        state, pool = self.state, self.state.kv.pool
        hit = pool.longest_hit(request) if request.computed == 0 else []
        computed = request.computed or len(hit) * pool.block_size
        count = request.num_tokens - computed
        if 0 < threshold < count:
            count = threshold
        count = min(count, budget)
        if state.missing_blocks(request, hit) > 0:
            return 0
        if request.computed and not request.blocks:
            self.policy.restored(request)
        have = len(request.blocks) + len(hit)
        state.kv.share_hit(request, hit)
        if request.scheduled_s is None:
            request.cached_tokens = computed
        request.computed = computed
        request.blocks += pool.take(max(0, pool.blocks_for(computed + count) - have))
        pool.cache(request, min(computed + count, request.num_tokens))
        return count

    def _admit(self, request: RequestState, count: int, batch: Batch, now_s: float) -> None:
        """Move a request with its first `count` tokens to the running list."""
        state = self.state
        state.running.append(request)
        self._admissions += 1
        request.order = self._admissions
        if request.status is Status.PREEMPTED:
            batch.resumed += 1
        request.status = Status.RUNNING
        self.policy.admitted(request)
        if request.scheduled_s is None:
            request.scheduled_s = now_s
        if request.computed + count < request.num_tokens:
            state.prefills[request] = None

    def end_step(self, step: Composition) -> Batch:
        """Finish composing: the step as the worker gets it."""
        self.policy.after_waiting(step)
        batch = step.batch
        if step.num_scheduled_tokens:
            self._update_after_schedule(batch, step.num_scheduled_tokens)
        batch.preempted = step.preempted + step.displaced
        self.state.finished_unflushed = False
        return batch

    def _update_after_schedule(self, batch: Batch, num_scheduled_tokens: dict[RequestState, int]) -> None:
        """Advance the scheduled requests, and describe each chunk for the step-time law."""
        state = self.state
        asynchronous, pulls_kv = state.config.async_scheduling, state.config.pulls_kv
        state.steps.composed += 1
        batch.number = step = state.steps.composed
        chunks: list[ScheduledChunk] = []
        prefills, append = state.prefills, chunks.append
        total = decodes = context = 0
        pairs = 0.0
        for request, count in num_scheduled_tokens.items():
            before = request.computed
            request.computed = reach = before + count
            request.in_flight += count
            request.last_step = step
            samples = reach >= request.num_tokens
            if request.prefill_steps is not None and not request.output_tokens:
                request.prefill_steps.append((batch, reach))
            decode = samples and count == 1 and (pulls_kv or reach > request.input_tokens)
            append((request, count, before, samples, decode))
            total += count
            if decode:
                decodes += 1
                context += before
            else:
                pairs += count * (before + count / 2)
            if reach >= request.num_tokens + request.placeholders:
                if prefills:
                    prefills.pop(request, None)
                if asynchronous:
                    request.placeholders += 1
        batch.chunks, batch.tokens, batch.prefill_pairs = chunks, total, pairs
        batch.decodes, batch.decode_context_tokens = decodes, context

    # -- a step's output ---------------------------------------------------------------------------------------------

    def update_from_output(self, batch: Batch, now_s: float) -> Output:
        """Append the tokens of a step that has ended, and end the requests that are complete."""
        state = self.state
        if batch.tokens:
            state.steps.processed += 1
            if state.kv.deferred_frees:
                state.kv.free_deferred()
        if self._prompt_budget is not None:
            self._prompt_budget.observe(batch)
        return self._take_tokens(batch, now_s) if batch.chunks else NO_OUTPUT

    def _take_tokens(self, batch: Batch, now_s: float) -> Output:
        state = self.state
        tokens: list[str] = []
        finished: list[tuple[RequestState, FinishReason]] = []
        pool = state.kv.pool
        asynchronous, block_size = state.config.async_scheduling, state.config.block_size
        running, ended, drops_stale = Status.RUNNING, Status.FINISHED, state.config.hands_over_kv
        for request, count, _, samples, _ in batch.chunks:
            request.in_flight -= count
            stale = request.stale > 0
            if stale:
                request.stale -= count
            if not samples or request.status is ended or (stale and drops_stale):
                continue
            if request.output_tokens == 0:
                request.first_token_s = now_s
            request.last_token_s = now_s
            request.output_tokens += 1
            request.num_tokens += 1
            tokens.append(request.request_id)
            if asynchronous:
                if not stale:
                    request.placeholders -= 1
                if request.status is running:
                    certain = request.computed - request.placeholders
                    if certain // block_size > request.cached_blocks:
                        pool.cache(request, min(certain, request.num_tokens))
            if request.output_tokens >= request.ends_after:
                finished.append((request, self._stop(request)))
        if finished:
            self.policy.finished((request for request, _ in finished), now_s)
            state.running = [request for request in state.running if request.status is not ended]
        return Output(tokens, finished)

    def _stop(self, request: RequestState) -> FinishReason:
        """End a request that has all its tokens. A preempted one leaves the waiting queue; running ones stay listed."""
        if request.status is not Status.RUNNING:
            self.state.waiting.remove(request)
        self._end(request)
        return FinishReason.STOP if request.output_tokens == request.spec.stop_after else FinishReason.LENGTH

    def abort(self, request: RequestState) -> None:
        """End a request that has not ended. The blocks of a pull under way are freed when the pull has ended."""
        state = self.state
        if request.status is Status.RUNNING:
            state.running.remove(request)
        elif request.status is Status.PULLING:
            state.skipped_waiting.remove(request)
            if not request.pull_reported:
                state.aborted_pulls[request.request_id] = request
                request.status = Status.FINISHED
                state.prefills.pop(request, None)
                state.finished_unflushed = True
                return
        else:
            (state.skipped_waiting if request in set(state.skipped_waiting) else state.waiting).remove(request)
        self._end(request, completed=False)

    def _end(self, request: RequestState, completed: bool = True) -> None:
        """Mark as finished, and free its blocks unless another engine is to pull them."""
        state = self.state
        request.status = Status.FINISHED
        state.finished_unflushed = True
        state.prefills.pop(request, None)
        if completed and request.spec.hold:
            state.sending[request] = None
            return
        if completed and not request.content.shared:
            state.kv.pool.spend(request)
        state.kv.free(request)
