"""Requests in steady decode, booked together.

A request in steady decode computes one token a step and gets one token for each step that ends; what it holds follows
from two counters. The *cohort* is the front of the running list that is in this state: a step costs what its newcomers,
block boundaries and ends cost. Blocks that no other request can hit get no hash until their request leaves, and none at
all when it ends. Where the counters are not enough (preemption, an abort, an end) the requests concerned are settled
first; then the scheduler's rules apply to them as to any other.
"""

import math
from array import array
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Sequence

from ballast_sim.engine.coarse.block_wheel import BlockWheel
from ballast_sim.engine.coarse.marks import ProgressMarks
from ballast_sim.engine.papers.progress import BookedDecodes
from ballast_sim.engine.requests import RequestState
from ballast_sim.engine.vllm.batch import Batch, ScheduledChunk
from ballast_sim.engine.vllm.state import SchedulerState

LEFT = -1
"""`RequestState.joined` of a request whose last token is in flight: out of the cohort, still at the list's front.

Otherwise it is the number of the first step that the request took as a member, or 0.
"""

OnSettled = Callable[[RequestState, int, int, int], None]
"""Called with a request that leaves the cohort with tokens that were not reported.

Then come its output tokens before it joined, the steps processed by then, and the last step whose marks were reported.
"""


class Cohort:
    """The members, and what they compute, take and finish by step. It implements `papers.progress.Progress`."""

    def __init__(self, state: SchedulerState, on_settled: OnSettled, mark_every_tokens: int = 0) -> None:
        """`state`: the scheduler's. `mark_every_tokens`: how often `marks` reports a member's progress; 0 is never."""
        config = state.config
        self.ended_s = array("d")  # of every step, by number
        self.size = 0
        self.front = 0  # running[:front] are members, or have just left
        self.context_tokens = 0  # computed before the next step, of all members
        self.ends: dict[int, list[RequestState]] = {}  # members by the step that brings the last token
        self.in_flight: deque[Batch] = deque()
        self.wheel = BlockWheel(config.block_size)
        self._state = state
        self._config = config
        self._steps = state.steps
        self._on_settled = on_settled
        self._undealt: list[int] = []  # blocks allocated for members, in the order in which these take them
        self._undealt_from = 0  # the step that takes the first of these
        self._looks_at_blocks = config.ordering is not None  # `RankedPolicy` does, without settling anybody
        self._lag = 1 if config.async_scheduling else 0  # steps in flight when one is composed
        self.marks = ProgressMarks(mark_every_tokens)
        self._slos_s: Counter[float] = Counter()  # times between tokens that members ask for, where the engine has one

    # -- progress of requests ----------------------------------------------------------------------------------------

    def reach(self, request: RequestState) -> int:
        """See `Progress.reach`."""
        ahead = self._steps.composed - request.joined + 1 if request.joined > 0 else 0
        return max(request.reach, request.computed + ahead)

    def is_ending(self, request: RequestState) -> bool:
        """See `Progress.is_ending`."""
        if request.joined <= 0:
            placeholders = request.placeholders
            return placeholders > 0 and request.computed + 2 - placeholders >= request.length_limit
        return self._lag > 0 and request.computed + self._steps.composed - request.joined + 2 >= request.length_limit

    def booked_decodes(self) -> BookedDecodes:
        """See `Progress.booked_decodes`."""
        least_s = min((slo_s for slo_s, count in self._slos_s.items() if count), default=math.inf)
        return BookedDecodes(self.size, self.context_tokens, least_s)

    def output_tokens(self, request: RequestState) -> int:
        """Output tokens of any request after the steps processed so far."""
        done = self._steps.processed - (request.joined - 1 - self._lag) if request.joined > 0 else 0
        return request.output_tokens + done

    # -- joining and leaving -----------------------------------------------------------------------------------------

    def join(self) -> None:
        """Take in the requests behind the front that are in steady decode, before a step is composed."""
        running = self._state.running
        if self._steps.composed - self._steps.processed != self._lag:
            return
        most = self._config.max_num_batched_tokens
        while self.front < len(running) and self.size < most and self._is_steady(running[self.front]):
            self._add(running[self.front])
            self.front += 1

    def _is_steady(self, request: RequestState) -> bool:
        lag, size, tokens = self._lag, self._config.block_size, request.num_tokens
        return (
            request.output_tokens > 0
            and request.ends_after - request.output_tokens > lag
            and request.in_flight == lag
            and request.placeholders == lag
            and request.stale == 0
            and request.computed == tokens - 1 + lag
            and len(request.blocks) == -(-request.computed // size)
            and (request.cached_blocks == (tokens - 1) // size or not self._config.prefix_caching)
            and request not in self._state.prefills  # the last token of a prompt can look like a decode
        )

    def _add(self, request: RequestState) -> None:
        self.deal_blocks()
        number = self._steps.composed + 1
        request.joined = number
        self.size += 1
        self.context_tokens += request.computed
        if self._config.tbt_slo_s is not None:
            self._slos_s[request.spec.tbt_slo_s or self._config.tbt_slo_s] += 1
        self.wheel.add(request, (number - request.computed) % self._config.block_size)
        processed = number - 1 - self._lag
        end = processed + request.ends_after - request.output_tokens
        insort(self.ends.setdefault(end, []), request, key=lambda member: member.order)
        self.marks.add(request, processed)

    def _settle(self, request: RequestState, joined: int = 0) -> None:
        """Bring a member's own counters up to date, and take it out of the cohort."""
        before = request.joined - 1 - self._lag
        done, first = self._steps.processed - before, request.output_tokens
        self.deal_blocks()
        self.wheel.remove(request, (request.joined - request.computed) % self._config.block_size)
        self.marks.remove(request, before)
        request.computed += self._steps.composed - request.joined + 1
        request.num_tokens += done
        request.output_tokens += done
        request.in_flight = self._steps.composed - self._steps.processed
        request.placeholders = request.in_flight if self._lag else 0
        request.last_step = self._steps.composed
        request.joined = joined
        self.size -= 1
        self.context_tokens -= request.computed
        if self._config.tbt_slo_s is not None:
            self._slos_s[request.spec.tbt_slo_s or self._config.tbt_slo_s] -= 1
        if done:
            request.last_token_s = self.ended_s[self._steps.processed - 1]
            self._on_settled(request, first, before, self.marks.reported)

    def settle(self) -> None:
        """Settle every member: from here on the scheduler's rules see all requests."""
        leaving = {request: number for number, ends in self.ends.items() for request in ends if request.joined == LEFT}
        members = [(request, request.joined) for request in self._state.running[: self.front] if request.joined > 0]
        for request in leaving:
            self._hash_blocks(request)
        for request, _ in members:
            self._settle(request)
            self._hash_blocks(request)
        for batch in self.in_flight:
            more: list[ScheduledChunk] = [
                (request, 1, request.computed - 1 - (self._steps.composed - batch.number), True, True)
                for request, joined in members
                if joined <= batch.number
            ]
            more += [
                (request, 1, request.computed - 1, True, True)
                for request, number in leaving.items()
                if number == batch.number
            ]
            batch.chunks = sorted([*batch.chunks, *more], key=lambda chunk: chunk[0].order)
        for request in leaving:
            request.joined = 0
        self.ends.clear()
        self.front = 0

    def settle_ending(self) -> None:
        """Settle the members whose last token is in flight, before a step is composed."""
        for request in self.ends[self._steps.composed]:
            if request.joined > 0 and request.ends_after == request.max_tokens:
                self._settle(request, LEFT)

    def take_ended(self, number: int) -> list[RequestState]:
        """Settle and return the members that step `number` brings their last token, in order of admission."""
        ended = self.ends.pop(number, [])
        for request in ended:
            if request.joined > 0:
                self._settle(request)
            request.joined = 0
            self.front -= 1
            if request.content.shared or request.spec.hold:
                self._hash_blocks(request)
            elif self._config.prefix_caching:
                request.cached_blocks = (request.computed - self._lag) // self._config.block_size
        return ended

    def leave(self, request: RequestState) -> None:
        """Settle one request, if it is a member or has just left."""
        if not request.joined:
            return
        number = next(number for number, ends in self.ends.items() if request in ends)
        self.ends[number].remove(request)
        if not self.ends[number]:
            del self.ends[number]
        if request.joined > 0:
            self._settle(request)
        self._hash_blocks(request)
        request.joined = 0
        self.front -= 1

    def steps_to_end(self) -> int:
        """Steps to be composed before the one that brings a member its last token. There are members."""
        return min(self.ends) - self._steps.composed

    # -- blocks ------------------------------------------------------------------------------------------------------

    def take_blocks(self, takers: int) -> None:
        """Allocate and hash the members' blocks of the step being composed, in which so many of them take one."""
        self._take(takers)
        if self.wheel.shares:
            self._state.kv.pool.cache_next(self.wheel.sharers(self._steps.composed + 2 - self._lag))

    def _take(self, count: int) -> None:
        """Allocate the next blocks of the members. They are dealt out when somebody may look at them."""
        if not self._undealt:
            self._undealt_from = self._steps.composed + 1
        self._undealt += self._state.kv.pool.take(count)
        if self.wheel.shares or self._looks_at_blocks:
            self.deal_blocks()

    def deal_blocks(self) -> None:
        """Put the blocks that were allocated into the members' block tables."""
        blocks = self._undealt
        if blocks:
            order = self.wheel.takers_in_order(self._undealt_from)
            for index in range(min(len(order), len(blocks))):
                order[index].blocks += blocks[index :: len(order)]
            self._undealt = []

    def blocks_of(self, steps: int) -> int:
        """KV blocks that the members take in the next so many steps."""
        return self.wheel.blocks(self._steps.composed + 1, steps)

    def advance(self, steps: int, ends_s: "array[float]", in_flight: Sequence[Batch]) -> None:
        """Process the next `steps` steps, which ended at `ends_s`, and compose as many; `in_flight` is what is left."""
        self._take(self.blocks_of(steps))
        if self.wheel.shares:
            self._hash_next_blocks(steps)
        self._steps.composed += steps
        self._steps.processed += steps
        self.context_tokens += steps * self.size
        self.ended_s.extend(ends_s)
        self.in_flight = deque(in_flight)

    def _hash_next_blocks(self, steps: int) -> None:
        """Without asynchronous scheduling a full block gets its hash one step before the next block is taken."""
        pool = self._state.kv.pool
        sharers = self.wheel.sharers_in_order(self._steps.composed + 2 - self._lag)
        cycles, rest = divmod(steps, self._config.block_size)
        if cycles:
            order = [request for requests in sharers for request in requests]
            for _ in range(cycles):
                pool.cache_next(order)
        for requests in sharers[:rest]:
            pool.cache_next(requests)

    def hash_all_blocks(self) -> None:
        """Give all full blocks of members their hashes: the pool then is as stepping would have it."""
        self.deal_blocks()
        for request in self._state.running[: self.front]:
            steps = self._steps.composed - request.joined + 1 if request.joined > 0 else 0
            self._state.kv.pool.cache(request, request.computed + steps - self._lag)

    def _hash_blocks(self, request: RequestState) -> None:
        """Give the full blocks of a settled request their hashes, if they have none yet."""
        self._state.kv.pool.cache(request, request.computed - self._lag)
