"""A queue order as an engine's setting: the order, its mechanics, and the service rates that its keys need."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_core.policies.queue.protocol import QueueOrder, Service
from ballast_core.profiles import HardwareProfile

NOMINAL_CONTEXT_TOKENS = 2_048
"""Context of one request for the nominal decode rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """An order, and how the engine carries it out.

    `service` turns tokens into seconds. `quantum_tokens`: see `papers.ranks`. A preempted request loses its KV and
    computes it again (vLLM's way); with `swap_s_per_token` its KV is copied to the host and back instead, which makes
    the step longer by so many seconds a token, each way. With `chunks_yield` running prefills give way between chunks;
    with `evicts` running requests give way to waiting ones.
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
    """Service rates by the profile's step-time law.

    Prefill in steps of `max_num_batched_tokens`; decode with half of the KV cache in use, by requests of
    `NOMINAL_CONTEXT_TOKENS`.
    """
    budget = max_num_batched_tokens
    context = profile.kv_tokens / 2
    decodes = max(1, min(profile.max_num_seqs, int(context / NOMINAL_CONTEXT_TOKENS)))
    return Service(
        prefill_tokens_per_s=budget / profile.step_s(budget, 0, budget * budget / 2, 0),
        decode_tokens_per_s=1 / profile.step_s(decodes, context, 0.0, decodes),
    )
