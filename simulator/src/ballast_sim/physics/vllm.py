"""vLLM's scheduler and KV block manager, step by step: the physics that golden runs confirm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ballast_core.model import Role
from ballast_core.profiles import HardwareProfile
from ballast_core.profiles.capacity import LengthStatistics, decode_rps, prefill_rps
from ballast_sim.engine import CoarseEngine, Engine, EngineConfig
from ballast_sim.engine.batching import PROFILES_OWN, LocalBatching
from ballast_sim.engine.scheduling import VLLM_OWN, Scheduling


@dataclass(frozen=True, slots=True)
class VllmPhysics:
    """Engines, configured like the pods of their role: kv_producer, kv_consumer, or kv_both for a flexible one.

    `scheduling` may replace vLLM's scheduler by a queue order.
    """

    batching: LocalBatching = PROFILES_OWN
    policy: Literal["fcfs", "priority"] = "fcfs"
    """vLLM's --scheduling-policy."""
    scheduling: Scheduling = VLLM_OWN

    def engine(self, profile: HardwareProfile, role: Role, *, coarse: bool, mark_every_tokens: int) -> Engine:
        """See `Physics.engine`."""
        config = EngineConfig.from_profile(
            profile,
            pulls_kv=role is not Role.PREFILL,
            hands_over_kv=role is not Role.DECODE,
            external_pulls=True,
            max_num_batched_tokens=self.scheduling.chunk_tokens or self.batching.chunk_tokens,
            tbt_slo_s=self.batching.tbt_slo_s,
            policy=self.policy,
            ordering=self.scheduling.ordering(profile),
        )
        return CoarseEngine(config, mark_every_tokens=mark_every_tokens) if coarse else Engine(config)

    def max_model_len(self, profile: HardwareProfile) -> int:
        """See `Physics.max_model_len`."""
        return EngineConfig.from_profile(profile).max_model_len

    def decode_step_s(self, profile: HardwareProfile, sequences: int, context_tokens: float) -> float:
        """See `Physics.decode_step_s`."""
        return profile.step_s(sequences, context_tokens, 0.0, sequences) if sequences else 0.0

    def prefill_rps(self, profiles: Sequence[HardwareProfile], lengths: LengthStatistics) -> float:
        """See `Physics.prefill_rps`."""
        return sum(prefill_rps(profile, lengths) for profile in profiles)

    def decode_rps(self, profiles: Sequence[HardwareProfile], lengths: LengthStatistics) -> float:
        """See `Physics.decode_rps`."""
        return sum(decode_rps(profile, lengths) for profile in profiles)
