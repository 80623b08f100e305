"""How many steps can be foreseen: those in which nothing changes but that members of the cohort advance."""

from ballast_sim.engine.coarse.cohort import Cohort
from ballast_sim.engine.requests import RequestState, Status
from ballast_sim.engine.vllm.policy import SchedulingPolicy
from ballast_sim.engine.vllm.state import SchedulerState


class CalmSteps:
    """Looks ahead, and changes nothing."""

    __slots__ = ("_cohort", "_policy", "_state")

    def __init__(self, state: SchedulerState, policy: SchedulingPolicy, cohort: Cohort) -> None:
        """The parts of one scheduler, and its cohort."""
        self._state = state
        self._policy = policy
        self._cohort = cohort

    def count(self, most: int) -> int:
        """How many more steps can be composed in which only the members' own blocks change; at most `most`.

        There are members.
        """
        state, cohort = self._state, self._cohort
        if cohort.size != len(state.running) or state.finished_unflushed or state.kv.deferred_frees:
            return 0
        for batch in cohort.in_flight:
            for chunk in batch.chunks:
                if chunk[0].joined <= 0:
                    return 0
        steps = self._policy.steps_without_preemption(min(most, cohort.steps_to_end()))
        if steps <= 0 or not self._admits_none():
            return 0
        free, size = state.kv.pool.free_blocks, state.config.block_size
        if cohort.blocks_of(steps) > free:
            steps = free // cohort.size * size
            while cohort.blocks_of(steps + 1) <= free:
                steps += 1
        return steps

    def _admits_none(self) -> bool:
        """Whether no waiting request is admitted, now and while members only take blocks."""
        state = self._state
        budget = state.config.max_num_batched_tokens - self._cohort.size
        if budget <= 0 or len(state.running) >= state.config.max_num_seqs:
            return True
        for request in state.skipped_waiting:
            if request.status is Status.PULLING:
                if request.pull_reported:
                    return False
            else:
                return self._stays_out(request)
        for request in state.waiting:
            return self._stays_out(request)
        return True

    def _stays_out(self, head: RequestState) -> bool:
        """Whether the head of a queue does not fit, and will not before blocks are freed."""
        state = self._state
        if head.stale:
            return False
        pulls = not head.pull_tried
        hit = state.kv.pool.longest_hit(head) if head.computed == 0 or pulls else []
        if pulls and len(hit) * state.config.block_size >= head.pull_tokens:
            return False  # it need not pull: the next step decides whether it is admitted
        may_grow = state.config.prefix_caching and len(hit) < (head.num_tokens - 1) // state.config.block_size
        if may_grow and head.content.shared and self._may_fill(len(hit)):
            return False  # a member may fill a block with the content that is looked for
        return state.missing_blocks(head, hit) > 0

    def _may_fill(self, block: int) -> bool:
        """Whether a member has still to fill its own block of this index, with content that others may look up."""
        return any(member.content.shared and member.cached_blocks <= block for member in self._state.running)
