"""Orders for engine tests, on a clock in which a token takes about a step's share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.policies.queue.orders import EarliestDeadline, Fcfs, LeastAttained, ShortestJob, ShortestRemaining
from ballast_core.policies.queue.protocol import FixedOrder, QueueOrder, Service, Work
from ballast_core.policies.queue.uniboost import UniBoost
from ballast_sim.engine.ordering import Ordering

SERVICE = Service(prefill_tokens_per_s=2_000.0, decode_tokens_per_s=60.0)


@dataclass(frozen=True, slots=True)
class NewestFirst(FixedOrder):
    """Last come, first served, and running requests give way at once: the worst order for an engine."""

    type: ClassVar[str] = "newest-first"
    needs: ClassVar[Belief] = Belief.NONE
    needs_lengths: ClassVar[bool] = False
    engine_priority: ClassVar[bool] = False
    preemption_margin: ClassVar[float] = 0.0

    def key(self, work: Work, service: Service) -> float:
        """The latest goes first."""
        return -work.arrived_s

    def may_evict(self, work: Work, attained_at_dispatch_tokens: int) -> bool:
        """Always."""
        return True


def ordering(order: QueueOrder, quantum_tokens: int = 4, swap_s_per_token: float | None = None) -> Ordering:
    """With tests' service rates; chunks yield where a request may be evicted."""
    yields = isinstance(order, UniBoost | LeastAttained | ShortestRemaining | NewestFirst)
    return Ordering(
        order=order,
        service=SERVICE,
        quantum_tokens=quantum_tokens,
        swap_s_per_token=swap_s_per_token,
        chunks_yield=yields,
    )


UNIBOOSTS: st.SearchStrategy[QueueOrder] = st.builds(
    UniBoost,
    gamma_per_s=st.sampled_from([0.1, 1.0, 30.0]),
    quantise=st.booleans(),
    unified=st.booleans(),
    bin_tokens=st.sampled_from([2, 8]),
    preemption_margin_s=st.sampled_from([0.0, 0.05]),
)
ORDERS: st.SearchStrategy[QueueOrder] = st.one_of(
    UNIBOOSTS,
    st.sampled_from([Fcfs(), EarliestDeadline(), ShortestJob(), ShortestRemaining(), LeastAttained(), NewestFirst()]),
)
ORDERINGS = st.builds(
    ordering, ORDERS, quantum_tokens=st.sampled_from([1, 4, 16]), swap_s_per_token=st.sampled_from([None, 0.0, 0.0005])
)
