"""The setting for a fleet's engine schedulers: a queue order with its mechanics, or vLLM's own scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ballast_core.policies.queue.protocol import QueueOrder
from ballast_core.profiles import HardwareProfile
from ballast_sim.engine.ordering import Ordering, nominal_service

Preempt = Literal["recompute", "swap", "none"]
"""How a displaced request gets its KV back; none: requests are preempted only when KV runs out."""

_PREEMPTIVE = frozenset({"las", "srpt", "uniboost"})
"""Orders under which running prefills give way between chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Without an `order`: vLLM's first come, first served.

    `chunk_tokens` replaces the profile's max_num_batched_tokens. `swap_gbytes_per_s` is the bandwidth of the host link,
    each way (PCIe 4.0 x16: 25 GB/s of the nominal 31.5); `quantum_tokens`: see `Ordering`. `name` appears in reports.
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
        """Whether it is vLLM's scheduler with the profile's settings."""
        return self.order is None and self.chunk_tokens is None

    @property
    def needs_lengths(self) -> bool:
        """Whether the order reads predicted output lengths."""
        return self.order is not None and self.order.needs_lengths

    def ordering(self, profile: HardwareProfile) -> Ordering | None:
        """The `EngineConfig.ordering` of an engine on this hardware; None for vLLM's own scheduler."""
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
