"""How an engine's scheduler follows a queue order: ranks, and when they change.

A rank is (the request's own priority, the order's key, arrival, id); the smallest goes first. It depends on the work
that a request has attained, and that only in quanta: powers of two of its bin where the order is UniBoost with
MemGuard, else multiples of `quantum_tokens`. In between neither key nor the right to evict changes, so a scheduler
need look again only where somebody crosses a threshold.

Attained work counts tokens whose KV was computed beyond what the prefix cache held on arrival. It never falls: what is
computed again after a preemption is not new.
"""

from __future__ import annotations

from dataclasses import dataclass

from ballast_core.policies.queue.gamma import GammaEstimator
from ballast_core.policies.queue.protocol import QueueOrder, Service, Work
from ballast_core.policies.queue.uniboost import UniBoost, quantised_tokens
from ballast_core.profiles import HardwareProfile
from ballast_sim.engine.requests import RequestState

NOMINAL_CONTEXT_TOKENS = 2_048
"""Context of one request where a profile's decode rate is worked out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """An order, and how the engine carries it out.

    `service` turns tokens into seconds. `quantum_tokens`: see the module. Who is preempted loses its KV and computes it
    again (what vLLM does), or with `swap_s_per_token` it is copied to the host and back, which holds up the engine for
    so long per token and direction.
    """

    order: QueueOrder
    service: Service
    quantum_tokens: int = 64
    swap_s_per_token: float | None = None
    chunks_yield: bool = False
    evicts: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting that cannot work."""
        if self.quantum_tokens < 1:
            raise ValueError(f"quantum_tokens: must be 1 or more, not {self.quantum_tokens!r}")
        if self.swap_s_per_token is not None and not 0 <= self.swap_s_per_token < float("inf"):
            raise ValueError(f"swap_s_per_token: must be 0 or more and finite, not {self.swap_s_per_token!r}")


def nominal_service(profile: HardwareProfile, max_num_batched_tokens: int) -> Service:
    """What the hardware does by its profile: prefill in whole budgets; decode with half of the KV cache in use.

    The latter by requests of `NOMINAL_CONTEXT_TOKENS`.
    """
    budget = max_num_batched_tokens
    context = profile.kv_tokens / 2
    decodes = max(1, min(profile.max_num_seqs, int(context / NOMINAL_CONTEXT_TOKENS)))
    return Service(
        prefill_tokens_per_s=budget / profile.step_s(budget, 0, budget * budget / 2, 0),
        decode_tokens_per_s=1 / profile.step_s(decodes, context, 0.0, decodes),
    )


class Ranks:
    """Gives requests their ranks. Gamma, where the order learns it, comes from this engine's own completions."""

    def __init__(self, ordering: Ordering) -> None:
        """Nothing learned yet."""
        self.order = ordering.order
        self.chunks_yield = ordering.chunks_yield
        self._evicts = ordering.evicts
        self._margin = ordering.order.preemption_margin
        self._service = ordering.service
        self._quantum = ordering.quantum_tokens
        self._bin: int | None = None
        self._gamma: GammaEstimator | None = None
        self._learns_from_ttft = False
        if isinstance(self.order, UniBoost):
            self._bin = self.order.bin_tokens if self.order.quantise else None
            if self.order.adaptive:
                self._gamma = GammaEstimator(self.order.gamma_per_s, self.order.gamma_settings())
                self._learns_from_ttft = self.order.tail == "ttft"

    def rank(self, state: RequestState, reach: int) -> None:
        """Write down the rank of a request of which `reach` tokens were ever computed, and when it changes."""
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
            state.request.priority,
            self.order.key(work, self._service),
            state.request.arrival_s,
            state.request_id,
        )
        state.crosses_at = next_level + state.hit_tokens
        state.evictable = self._evicts and self.order.may_evict(work, state.attained_at_dispatch)

    def dispatched(self, state: RequestState, reach: int) -> None:
        """The request begins to run, for the first time or again."""
        state.attained_at_dispatch = max(0, reach - state.hit_tokens)
        self.rank(state, reach)

    def overtakes(self, waiting: RequestState, running: RequestState) -> bool:
        """Whether the waiting one is better by more than the margin."""
        if waiting.key[0] != running.key[0]:
            return waiting.key[0] < running.key[0]
        return waiting.key[1] < running.key[1] - self._margin

    def completed(self, state: RequestState, now_s: float) -> bool:
        """Learn from a request's end. Returns whether every rank must be worked out again."""
        if self._gamma is None:
            return False
        ended_s = state.first_token_s if self._learns_from_ttft else now_s
        if ended_s is None or not self._gamma.completed(ended_s - state.request.arrival_s):
            return False
        self._service = Service(
            self._service.prefill_tokens_per_s, self._service.decode_tokens_per_s, self._gamma.gamma_per_s
        )
        return True

    @property
    def gamma_per_s(self) -> float | None:
        """As learned so far; None where none is."""
        return self._service.gamma_per_s

    def _work(self, state: RequestState, attained: int) -> Work:
        request = state.request
        prefilled = min(attained, state.input_tokens - state.hit_tokens)
        return Work(
            arrived_s=request.arrival_s,
            prompt_tokens=state.input_tokens,
            cached_tokens=state.hit_tokens,
            prefilled_tokens=prefilled,
            generated_tokens=attained - prefilled,
            expected_output_tokens=request.expected_output_tokens,
            deadline_s=request.deadline_s,
            priority=request.priority,
        )
