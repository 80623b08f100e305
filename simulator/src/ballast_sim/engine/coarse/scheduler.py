"""Steps of a scheduler and a cohort: the cohort's decodes are scheduled first, as the front of the running list."""

from ballast_sim.engine.coarse.cohort import Cohort
from ballast_sim.engine.requests import RequestState
from ballast_sim.engine.vllm.batch import Batch, Output, ScheduledChunk
from ballast_sim.engine.vllm.scheduler import Scheduler


class CoarseSteps:
    """Composes and processes the same steps as `scheduler` alone would, with less work."""

    __slots__ = ("_by_key", "_scheduler", "_state", "cohort")

    def __init__(self, scheduler: Scheduler, cohort: Cohort) -> None:
        """Both of one `SchedulerState`."""
        self._scheduler = scheduler
        self._state = scheduler.state
        self._by_key = scheduler.state.config.by_key
        self.cohort = cohort

    def schedule(self, now_s: float) -> Batch:
        """See `Scheduler.schedule`; of the cohort's decodes the batch has only the sums."""
        scheduler, cohort, state = self._scheduler, self.cohort, self._state
        admits = state.may_admit()
        step = scheduler.begin_step() if admits else None  # this may preempt, and have the cohort settled
        self._schedule_members()
        if step is None:
            if cohort.size and cohort.front == len(state.running):
                return self._members_alone()
            step = scheduler.begin_step()
        step.token_budget -= cohort.size
        scheduler.schedule_running(step, cohort.front)
        if admits and not step.preempted:
            scheduler.schedule_waiting(step, now_s)
        batch = scheduler.end_step(step)
        if cohort.size:
            return self._with_members(batch)
        if batch.tokens:
            cohort.in_flight.append(batch)
        return batch

    def _schedule_members(self) -> None:
        """Schedule one token of each member, if none of them can be preempted in this step."""
        cohort = self.cohort
        composed = self._state.steps.composed
        if composed in cohort.ends:
            cohort.settle_ending()
        if cohort.front < len(self._state.running):
            cohort.join()
        if cohort.size:
            takers = len(cohort.wheel.takers(composed + 1))
            if self._fits(takers):
                cohort.take_blocks(takers)
            else:
                cohort.settle()

    def _fits(self, blocks: int) -> bool:
        """Whether no member can be preempted in the step that is being composed.

        Under fcfs the newest request is preempted first, which is no member while there are others.
        """
        pool = self._state.kv.pool
        if self._by_key:
            for request in self._state.running[self.cohort.front :]:
                blocks += max(0, pool.blocks_for(request.num_tokens + request.placeholders) - len(request.blocks))
        return blocks <= pool.free_blocks

    def _members_alone(self) -> Batch:
        """A step in which only members decode."""
        cohort, state = self.cohort, self._state
        size, context = cohort.size, cohort.context_tokens
        state.finished_unflushed = False
        state.steps.composed = number = state.steps.composed + 1
        batch = Batch(number, (), size, size, context)
        cohort.context_tokens = context + size
        cohort.in_flight.append(batch)
        return batch

    def _with_members(self, batch: Batch) -> Batch:
        """Add the members' decodes to a composed step."""
        cohort, steps = self.cohort, self._state.steps
        if not batch.tokens:
            steps.composed += 1
            batch.number = steps.composed
        batch.tokens += cohort.size
        batch.decodes += cohort.size
        batch.decode_context_tokens += cohort.context_tokens
        cohort.context_tokens += cohort.size
        cohort.in_flight.append(batch)
        return batch

    def update_from_output(self, batch: Batch, now_s: float) -> Output:
        """See `Scheduler.update_from_output`; `tokens` of the output names only requests that are no members."""
        if batch.tokens:
            cohort = self.cohort
            cohort.in_flight.popleft()
            if batch.chunks:
                batch.chunks = [chunk for chunk in batch.chunks if chunk[0].joined <= 0]
            if batch.number in cohort.ends:
                ending: list[ScheduledChunk] = [
                    (request, 1, 0, True, True) for request in cohort.take_ended(batch.number)
                ]
                batch.chunks = [*ending, *batch.chunks]
            cohort.ended_s.append(now_s)
        return self._scheduler.update_from_output(batch, now_s)

    def abort(self, request: RequestState) -> None:
        """See `Scheduler.abort`."""
        self.cohort.leave(request)
        self._scheduler.abort(request)
