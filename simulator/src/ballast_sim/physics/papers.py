"""The papers' own simulators as a physics: prefill is a delay without a queue, decode follows a law of the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ballast_core.model import Role
from ballast_core.profiles import HardwareProfile
from ballast_core.profiles.capacity import LengthStatistics
from ballast_sim.engine.config import DEFAULT_MAX_MODEL_LEN
from ballast_sim.physics.laws import DecodeLaw
from ballast_sim.physics.sharing import SharingEngine


@dataclass(frozen=True, slots=True)
class PaperPhysics:
    """One decode law for every endpoint. The profile only sets how long a prompt's prefill takes."""

    law: DecodeLaw

    def engine(self, profile: HardwareProfile, role: Role, *, coarse: bool, mark_every_tokens: int) -> SharingEngine:
        """See `Physics.engine`. The prefill delay is one step of the prompt alone; the papers do not give theirs."""

        def prefill_s(tokens: int) -> float:
            return profile.step_s(tokens, 0, tokens * tokens / 2, 0)

        return SharingEngine(self.law, prefill_s, profile.kv_tokens, mark_every_tokens)

    def max_model_len(self, profile: HardwareProfile) -> int:
        """See `Physics.max_model_len`."""
        return DEFAULT_MAX_MODEL_LEN

    def decode_step_s(self, profile: HardwareProfile, sequences: int, context_tokens: float) -> float:
        """See `Physics.decode_step_s`."""
        return self.law.seconds(1, sequences, context_tokens) if sequences else 0.0

    def prefill_rps(self, profiles: Sequence[HardwareProfile], lengths: LengthStatistics) -> float:
        """Without a queue there is no limit."""
        return math.inf

    def decode_rps(self, profiles: Sequence[HardwareProfile], lengths: LengthStatistics) -> float:
        """See `Physics.decode_rps`: at the batch size that generates most."""
        tokens_per_s = max(
            sequences / self.law.seconds(1, sequences, sequences * lengths.context_tokens)
            for sequences in range(1, self.law.max_num_seqs + 1)
        )
        return len(profiles) * tokens_per_s / lengths.output_tokens
