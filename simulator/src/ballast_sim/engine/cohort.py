"""The scheduler again, without a visit to every running request in every step.

A request in steady decode computes one token a step and gets one token for each step that ends; what it holds follows
from two counters. The *cohort* is the front of the running list that is in this state, booked together: a step costs
what its newcomers, block boundaries and ends cost, and steps in which none of these but block boundaries occur can be
taken many at a time (`leap`). Blocks that no other request can hit get no hash until their request leaves, and none at
all when it ends: nobody looks for them. Whatever cannot be told from the counters (preemption, an abort, an end) first
settles the requests that it touches; then the rules of `scheduler` apply to them as ever. The decisions are the same,
block by block.
"""

import math
from array import array
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import accumulate

from ballast_sim.engine.batch import Batch, Output, ScheduledChunk
from ballast_sim.engine.config import EngineConfig
from ballast_sim.engine.ordering import Ranks
from ballast_sim.engine.requests import RequestState, Status
from ballast_sim.engine.scheduler import Scheduler

LEFT = -1
"""`RequestState.joined` of a request whose last token is in flight: out of the cohort, still at the list's front.

Otherwise it is the number of the first step that the request took as a member, or 0.
"""

OnSettled = Callable[[RequestState, int, Sequence[float]], None]
"""Called with a request that leaves the cohort, its output tokens before it joined, and the times of those since."""


class CohortScheduler(Scheduler):
    """A `Scheduler` that takes the same decisions with less work."""

    def __init__(self, config: EngineConfig, on_settled: OnSettled, mark_every_tokens: int = 0) -> None:
        """`mark_every_tokens`: how often `marks` reports a member's progress; 0 is never."""
        super().__init__(config)
        self.ended_s = array("d")  # of every step, by number
        self.size = 0
        self._on_settled = on_settled
        self._mark_every = mark_every_tokens
        self._lag = 1 if config.async_scheduling else 0  # steps in flight when one is composed
        self._front = 0  # running[:front] are members, or have just left
        self._context = 0  # tokens computed before the next step, of all members
        self._takers: list[list[RequestState]] = [[] for _ in range(config.block_size)]  # by step modulo block size
        self._sharers: list[list[RequestState]] = [[] for _ in range(config.block_size)]
        """Those takers whose blocks others may hit: they get their hashes as they fill."""
        self._taken: list[int] | None = None  # blocks taken in two rounds of `_takers`, summed up
        self._markers: list[dict[RequestState, tuple[str, int, int]]] = [{} for _ in range(max(1, mark_every_tokens))]
        """By step modulo `mark_every_tokens`: the id, the steps before its first one, and tokens less steps."""
        self._marked = 0  # the last step whose marks were reported
        self._ends: dict[int, list[RequestState]] = {}  # by the step that brings the last token
        self._in_flight: deque[Batch] = deque()
        self._slos_s: Counter[float] = Counter()  # times between tokens that members ask for, where the engine has one

    # -- members -----------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Take in the requests behind the front that are in steady decode, before a step is composed."""
        running = self.running
        if self._composed_steps - self._processed_steps != self._lag:
            return
        most = self.config.max_num_batched_tokens
        while self._front < len(running) and self.size < most and self._is_steady(running[self._front]):
            self._add(running[self._front])
            self._front += 1

    def _is_steady(self, state: RequestState) -> bool:
        lag, size, tokens = self._lag, self.config.block_size, state.num_tokens
        return (
            state.output_tokens > 0
            and state.ends_after - state.output_tokens > lag
            and state.in_flight == lag
            and state.placeholders == lag
            and state.stale == 0
            and state.computed == tokens - 1 + lag
            and len(state.blocks) == -(-state.computed // size)
            and (state.cached_blocks == (tokens - 1) // size or not self.config.prefix_caching)
            and state not in self._prefills  # the last token of a prompt can look like a decode
        )

    def _add(self, state: RequestState) -> None:
        number = self._composed_steps + 1
        state.joined = number
        self.size += 1
        self._context += state.computed
        if self.config.tbt_slo_s is not None:
            self._slos_s[state.request.tbt_slo_s or self.config.tbt_slo_s] += 1
        place = (number - state.computed) % self.config.block_size
        self._takers[place].append(state)
        self._taken = None
        if state.content.shared:
            self._sharers[place].append(state)
        processed = number - 1 - self._lag
        end = processed + state.ends_after - state.output_tokens
        insort(self._ends.setdefault(end, []), state, key=lambda member: member.order)
        if self._mark_every:
            ahead = state.output_tokens - processed
            self._markers[-ahead % self._mark_every][state] = state.request_id, processed, ahead

    def _settle(self, state: RequestState, joined: int = 0) -> None:
        """Write down what the counters say of a member, and take it out."""
        before = state.joined - 1 - self._lag
        done, first = self._processed_steps - before, state.output_tokens
        place = (state.joined - state.computed) % self.config.block_size
        self._takers[place].remove(state)
        self._taken = None
        if state.content.shared:
            self._sharers[place].remove(state)
        if self._mark_every:
            del self._markers[(before - first) % self._mark_every][state]
        state.computed += self._composed_steps - state.joined + 1
        state.num_tokens += done
        state.output_tokens += done
        state.in_flight = self._composed_steps - self._processed_steps
        state.placeholders = state.in_flight if self._lag else 0
        state.last_step = self._composed_steps
        state.joined = joined
        self.size -= 1
        self._context -= state.computed
        if self.config.tbt_slo_s is not None:
            self._slos_s[state.request.tbt_slo_s or self.config.tbt_slo_s] -= 1
        if done:
            state.last_token_s = self.ended_s[self._processed_steps - 1]
            self._on_settled(state, first, self.ended_s[before : self._processed_steps])

    def output_tokens(self, state: RequestState) -> int:
        """Of any request, now."""
        done = self._processed_steps - (state.joined - 1 - self._lag) if state.joined > 0 else 0
        return state.output_tokens + done

    def dissolve(self) -> None:
        """Settle every member: from here on the plain rules see all there is."""
        leaving = {state: number for number, states in self._ends.items() for state in states if state.joined == LEFT}
        members = [(state, state.joined) for state in self.running[: self._front] if state.joined > 0]
        for state in leaving:
            self._name(state)
        for state, _ in members:
            self._settle(state)
            self._name(state)
        for batch in self._in_flight:
            more: list[ScheduledChunk] = [
                (state, 1, state.computed - 1 - (self._composed_steps - batch.number), True, True)
                for state, joined in members
                if joined <= batch.number
            ]
            more += [
                (state, 1, state.computed - 1, True, True)
                for state, number in leaving.items()
                if number == batch.number
            ]
            batch.chunks = sorted([*batch.chunks, *more], key=lambda chunk: chunk[0].order)
        for state in leaving:
            state.joined = 0
        self._ends.clear()
        self._front = 0

    def _reach(self, state: RequestState) -> int:
        """See `Scheduler._reach`."""
        ahead = self._composed_steps - state.joined + 1 if state.joined > 0 else 0
        return max(state.reach, state.computed + ahead)

    def _is_ending(self, state: RequestState) -> bool:
        """See `Scheduler._is_ending`."""
        if state.joined <= 0:
            return super()._is_ending(state)
        return self._lag > 0 and state.computed + self._composed_steps - state.joined + 2 >= state.length_limit

    def _settle_all(self) -> None:
        """See `Scheduler._settle_all`."""
        self.dissolve()

    # -- the scheduler's steps ---------------------------------------------------------------------------------------

    def _schedule_running(self, chosen: dict[RequestState, int], index: int = 0, used_tokens: int = 0) -> int:
        """Blocks for the members that come to a boundary, then the plain rules for the others."""
        for state in self._ends.get(self._composed_steps, ()):
            if state.joined > 0 and state.ends_after == state.max_tokens:
                self._settle(state, LEFT)  # its last token is in flight
        self._join()
        number = self._composed_steps + 1
        takers = self._takers[number % self.config.block_size]
        if self.size and not self._fits(len(takers)):
            self.dissolve()
        if not self.size and not self._front:
            return super()._schedule_running(chosen)
        for state, block in zip(takers, self.pool.take(len(takers)), strict=True):
            state.blocks.append(block)
        self.pool.cache_next(self._sharers[(number + 1 - self._lag) % self.config.block_size])
        return super()._schedule_running(chosen, self._front, self.size)

    def _fits(self, blocks: int) -> bool:
        """Whether no member can be preempted in the step that is being composed.

        Under fcfs the newest goes first, who is no member while there are others.
        """
        if self._by_rank:
            for state in self.running[self._front :]:
                blocks += max(0, self.pool.blocks_for(state.num_tokens + state.placeholders) - len(state.blocks))
        return blocks <= self.pool.free_blocks

    def _members_work(self) -> tuple[int, int, float]:
        """See `Scheduler._members_work`."""
        return (
            self.size,
            self._context,
            min((slo_s for slo_s, count in self._slos_s.items() if count), default=math.inf),
        )

    def _fill(self, batch: Batch, chosen: dict[RequestState, int]) -> None:
        """The members' part of the batch is three numbers."""
        super()._fill(batch, chosen)
        if self.size:
            if not chosen:
                self._composed_steps += 1
                batch.number = self._composed_steps
            batch.tokens += self.size
            batch.decodes += self.size
            batch.decode_context_tokens += self._context
            self._context += self.size
        if batch.tokens:
            self._in_flight.append(batch)

    def process(self, batch: Batch, now_s: float) -> Output:
        """Take in a step; `tokens` names only those that are no members."""
        if not batch.tokens:
            return super().process(batch, now_s)
        self._in_flight.popleft()
        ending: list[ScheduledChunk] = []
        for state in self._ends.pop(batch.number, ()):
            if state.joined > 0:
                self._settle(state)
            state.joined = 0
            self._front -= 1
            if state.content.shared or state.request.hold:
                self._name(state)
            elif self.config.prefix_caching:
                state.cached_blocks = (state.computed - self._lag) // self.config.block_size
            ending.append((state, 1, 0, True, True))
        if batch.chunks:
            batch.chunks = ending + [chunk for chunk in batch.chunks if chunk[0].joined <= 0]
        else:
            batch.chunks = ending
        self.ended_s.append(now_s)
        return super().process(batch, now_s)

    def abort(self, state: RequestState) -> None:
        """See `Scheduler.abort`."""
        if state.joined:
            number = next(number for number, states in self._ends.items() if state in states)
            self._ends[number].remove(state)
            if not self._ends[number]:
                del self._ends[number]
            if state.joined > 0:
                self._settle(state)
            self._name(state)
            state.joined = 0
            self._front -= 1
        super().abort(state)

    # -- many steps at a time ----------------------------------------------------------------------------------------

    @property
    def composed_steps(self) -> int:
        """Steps composed so far that compute something."""
        return self._composed_steps

    @property
    def context_tokens(self) -> int:
        """Tokens computed before the next step, of all members."""
        return self._context

    def calm_steps(self, most: int) -> int:
        """How many more steps can be composed in which nothing but the members' own blocks changes; at most `most`."""
        if self.size == 0 or self.size != len(self.running) or self.finished_unflushed or self._deferred:
            return 0
        if any(chunk[0].joined <= 0 for batch in self._in_flight for chunk in batch.chunks):
            return 0
        steps = min(most, min(self._ends) - self._composed_steps)
        if self._ranks is not None:
            steps = self._steps_in_order(steps, self._ranks)
        if steps <= 0 or not self._admits_nobody():
            return 0
        free, size = self.pool.free_blocks, self.config.block_size
        if self.blocks_of(steps) > free:
            steps = free // self.size * size
            while self.blocks_of(steps + 1) <= free:
                steps += 1
        return steps

    def _steps_in_order(self, most: int, ranks: Ranks) -> int:
        """How many more steps can be composed before one that waits may displace a member; at most `most`."""
        if self._swapped_tokens:
            return 0
        head = self._next_up()
        if head is None:
            return most
        return 0 if self._rivals(head, ranks) else min(most, self._ranks_hold_until - self._composed_steps)

    def blocks_of(self, steps: int) -> int:
        """KV blocks that the members take in the next so many steps."""
        taken, size = self._taken, self.config.block_size
        if taken is None:
            taken = self._taken = [0, *accumulate(map(len, self._takers + self._takers))]
        cycles, rest = divmod(steps, size)
        first = (self._composed_steps + 1) % size
        return cycles * self.size + taken[first + rest] - taken[first]

    def leap(self, steps: int, ends_s: Sequence[float], in_flight: Sequence[Batch]) -> None:
        """Process the next `steps` steps, which ended at `ends_s`, and compose as many; `in_flight` is what is left."""
        size, first = self.config.block_size, self._composed_steps + 1
        order = [state for place in range(size) for state in self._takers[(first + place) % size]]
        blocks = self.pool.take(self.blocks_of(steps))
        for place in range(min(len(order), len(blocks))):
            order[place].blocks += blocks[place :: len(order)]
        self._cache_all(steps)
        self._composed_steps += steps
        self._processed_steps += steps
        self._context += steps * self.size
        self.ended_s.extend(ends_s)
        self._in_flight = deque(in_flight)

    def _cache_all(self, steps: int) -> None:
        """Without asynchronous scheduling a full block gets its hash one step before the next block is taken."""
        size, first = self.config.block_size, self._composed_steps + 2 - self._lag
        places = [self._sharers[(first + place) % size] for place in range(size)]
        cycles, rest = divmod(steps, size)
        if cycles:
            order = [state for states in places for state in states]
            for _ in range(cycles):
                self.pool.cache_next(order)
        for states in places[:rest]:
            self.pool.cache_next(states)

    def _admits_nobody(self) -> bool:
        """Whether the waiting scan changes nothing, now and while members only take blocks."""
        budget = self.config.max_num_batched_tokens - self.size
        if budget <= 0 or len(self.running) >= self.config.max_num_seqs:
            return True
        for state in self.holding:
            if state.status is Status.PULLING:
                if state.pull_reported:
                    return False
            else:
                return self._stays_out(state)
        for state in self.waiting:
            return self._stays_out(state)
        return True

    def _stays_out(self, state: RequestState) -> bool:
        """Whether the head of a queue does not fit, and will not before somebody gives blocks back."""
        if state.stale:
            return False
        pulls = not state.pull_tried
        hit = self.pool.longest_hit(state) if state.computed == 0 or pulls else []
        if pulls and len(hit) * self.config.block_size >= state.pull_tokens:
            return False  # it need not pull: whether it is admitted is for the next step to say
        may_grow = self.config.prefix_caching and len(hit) < (state.num_tokens - 1) // self.config.block_size
        if may_grow and state.content.shared and self._may_fill(len(hit)):
            return False  # a member may come to fill a block with just what is looked for
        return self._lacking(state, hit) > 0

    def _may_fill(self, block: int) -> bool:
        """Whether a member has still to fill this block, of its own, with what others may look for."""
        return any(member.content.shared and member.cached_blocks <= block for member in self.running)

    def name_blocks(self) -> None:
        """Give all full blocks of members their hashes: the pool then is as stepping would have it."""
        for state in self.running[: self._front]:
            steps = self._composed_steps - state.joined + 1 if state.joined > 0 else 0
            self.pool.cache(state, state.computed + steps - self._lag)

    def _name(self, state: RequestState) -> None:
        """Give the full blocks of a request that has been settled their hashes, if they have none yet."""
        self.pool.cache(state, state.computed - self._lag)

    # -- progress ----------------------------------------------------------------------------------------------------

    def marks(self, future_s: Sequence[float], steps: int) -> Sequence[tuple[float, str, int]]:
        """(time, request, output tokens) of each member's multiples of `mark_every_tokens`, each told once, in order.

        Of the steps that have been processed, and of the next `steps`, which will end at `future_s`. A request that has
        left the cohort tells of itself.
        """
        processed, number = self._processed_steps, self._marked
        last = self._marked = processed + steps
        if number == last or not self.size:
            return ()
        found: list[tuple[float, str, int]] = []
        append, markers, every = found.append, self._markers, self._mark_every
        while number < last:
            number += 1
            members = markers[number % every]
            if members:
                at_s = self.ended_s[number - 1] if number <= processed else future_s[number - processed - 1]
                for request_id, before, ahead in members.values():
                    if number > before:
                        append((at_s, request_id, number + ahead))
        return found

    def steps_without_marks(self) -> int:
        """How many steps after those of the last `marks` bring no member to a multiple, as long as nobody joins."""
        markers, every, first = self._markers, self._mark_every, self._marked + 1
        steps = 0
        while steps < every and not markers[(first + steps) % every]:
            steps += 1
        return steps
