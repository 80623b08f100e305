"""Ranks of requests under a queue order, and when they change.

A rank is (the request's own priority, the order's key, arrival, id); the smallest goes first. It depends on the work
that a request has attained, and that only in quanta: powers of two of its bin where the order is UniBoost with
MemGuard, else multiples of `quantum_tokens`. In between neither the key nor the right to evict changes, so a scheduler
looks again only when a request crosses a threshold.

Attained work counts tokens whose KV was computed beyond what the prefix cache held on arrival. It never falls: what is
computed again after a preemption is not new.
"""

from __future__ import annotations

from dataclasses import replace

from ballast_core.policies.queue.protocol import Work
from ballast_core.policies.queue.uniboost import quantised_tokens
from ballast_sim.engine.ordering import Ordering
from ballast_sim.engine.requests import RequestState


class Ranks:
    """Ranks requests. What the order learns, it learns from this engine's own completions."""

    def __init__(self, ordering: Ordering) -> None:
        """Nothing learned yet."""
        self._order = ordering.order
        self._evicts = ordering.evicts
        self._margin = ordering.order.preemption_margin
        self._service = ordering.service
        self._quantum = ordering.quantum_tokens
        self._bin = ordering.order.bin_tokens_of_work
        self._learned = ordering.order.learned()

    def rank(self, state: RequestState, reach: int) -> None:
        """Set the rank of a request of which `reach` tokens were ever computed, and where it changes next."""
        attained = max(0, reach - state.hit_tokens)
        uncached = state.input_tokens - state.hit_tokens
        if self._bin is None:
            level = attained // self._quantum * self._quantum
            next_level = level + self._quantum
        else:
            level = quantised_tokens(max(attained, uncached), self._bin)
            next_level = 2 * level
            level = level if level <= attained else 0
        work = self._work(state, level)
        state.key = (
            state.spec.priority,
            self._order.key(work, self._service),
            state.spec.arrival_s,
            state.request_id,
        )
        state.crosses_at = next_level + state.hit_tokens
        state.evictable = self._evicts and self._order.may_evict(work, state.attained_at_dispatch)

    def dispatched(self, state: RequestState, reach: int) -> None:
        """Rank a request that begins to run, for the first time or again."""
        state.attained_at_dispatch = max(0, reach - state.hit_tokens)
        self.rank(state, reach)

    def overtakes(self, waiting: RequestState, running: RequestState) -> bool:
        """Whether a waiting request is ahead of a running one by more than the margin."""
        if waiting.key[0] != running.key[0]:
            return waiting.key[0] < running.key[0]
        return waiting.key[1] < running.key[1] - self._margin

    def completed(self, state: RequestState, now_s: float) -> bool:
        """Learn from a request that ended well. Returns whether all ranks must be computed anew."""
        learned, arrival_s = self._learned, state.spec.arrival_s
        changed = state.first_token_s is not None and learned.first_token(state.first_token_s - arrival_s)
        changed = learned.completed(now_s - arrival_s) or changed
        if changed:
            self._service = replace(self._service, gamma_per_s=learned.gamma_per_s)
        return changed

    @property
    def gamma_per_s(self) -> float | None:
        """Gamma as learned so far; None until then."""
        return self._service.gamma_per_s

    def _work(self, state: RequestState, attained: int) -> Work:
        spec = state.spec
        prefilled = min(attained, state.input_tokens - state.hit_tokens)
        return Work(
            arrived_s=spec.arrival_s,
            prompt_tokens=state.input_tokens,
            cached_tokens=state.hit_tokens,
            prefilled_tokens=prefilled,
            generated_tokens=attained - prefilled,
            expected_output_tokens=spec.expected_output_tokens,
            deadline_s=spec.deadline_s,
            priority=spec.priority,
        )
