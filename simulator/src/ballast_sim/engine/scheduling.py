"""How the engines of a fleet are to schedule: a queue order with its mechanics, or vLLM's own scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ballast_core.policies.queue.protocol import QueueOrder
from ballast_core.profiles import HardwareProfile
from ballast_sim.engine.ordering import Ordering, nominal_service

Preempt = Literal["recompute", "swap", "none"]
"""What becomes of one who is displaced; none: nobody is, but where KV runs out."""

_PREEMPTIVE = frozenset({"las", "srpt", "uniboost"})
"""Orders under which chunks of running prefills give way, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Without an `order`: vLLM's first come, first served.

    `chunk_tokens` takes the place of the profile's max_num_batched_tokens. `swap_gbytes_per_s` is what one direction of
    the host link carries (PCIe 4.0 x16: 25 GB/s of the nominal 31.5); `quantum_tokens`: see `Ordering`. `name` is how
    reports call it.
    """

    name: str = "fcfs"
    order: QueueOrder | None = None
    chunk_tokens: int | None = None
    preempt: Preempt = "recompute"
    swap_gbytes_per_s: float = 25.0
    quantum_tokens: int = 64

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting that cannot work."""
        if self.chunk_tokens is not None and self.chunk_tokens < 1:
            raise ValueError(f"chunk: must be 1 token or more, not {self.chunk_tokens!r}")
        if not 0 < self.swap_gbytes_per_s < float("inf"):
            raise ValueError(f"swap_gbps: must be above 0 and finite, not {self.swap_gbytes_per_s!r}")
        if self.quantum_tokens < 1:
            raise ValueError(f"quantum: must be 1 token or more, not {self.quantum_tokens!r}")

    @property
    def is_plain(self) -> bool:
        """Whether it is vLLM's scheduler as the profile says."""
        return self.order is None and self.chunk_tokens is None

    @property
    def needs_lengths(self) -> bool:
        """Whether the order reads predicted output lengths."""
        return self.order is not None and self.order.needs_lengths

    def ordering(self, profile: HardwareProfile) -> Ordering | None:
        """What an engine on this hardware is given."""
        if self.order is None:
            return None
        swap_s = profile.kv_bytes_per_token / (self.swap_gbytes_per_s * 1e9)
        return Ordering(
            order=self.order,
            service=nominal_service(profile, self.chunk_tokens or profile.max_num_batched_tokens),
            quantum_tokens=self.quantum_tokens,
            swap_s_per_token=swap_s if self.preempt == "swap" else None,
            chunks_yield=self.order.type in _PREEMPTIVE,
            evicts=self.preempt != "none",
        )


VLLM_OWN = Scheduling()
