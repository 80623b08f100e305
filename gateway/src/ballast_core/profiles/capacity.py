"""How many requests a second one endpoint carries at its limit: arithmetic on the step-time law, not a measurement.

Prefill: prompts fill the token budget of every step, no queueing loss. Decode: as many sequences as KV (90 % full) and
max_num_seqs allow, each with its mean context over life, all of them in every step; each sequence also costs the law's
arithmetic per token, which is what limits an H20. Real fleets reach less, above all near balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ballast_core.profiles.law import HardwareProfile

KV_FILL_RATIO = 0.9


class HasLengths(Protocol):
    """A request of a workload."""

    @property
    def arrival_s(self) -> float: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """What capacity depends on; `context_tokens` is a sequence's mean context over its decoding life."""

    input_tokens: float
    output_tokens: float
    input_pairs: float
    context_tokens: float

    @classmethod
    def of(cls, requests: Sequence[HasLengths]) -> LengthStatistics:
        """Raises ValueError where there is no request."""
        if not requests:
            raise ValueError("requests: a capacity estimate needs at least one request")
        count = len(requests)
        outputs = sum(request.output_tokens for request in requests)
        weighted = sum(
            (request.input_tokens + request.output_tokens / 2) * request.output_tokens for request in requests
        )
        return cls(
            input_tokens=sum(request.input_tokens for request in requests) / count,
            output_tokens=outputs / count,
            input_pairs=sum(request.input_tokens**2 / 2 for request in requests) / count,
            context_tokens=weighted / outputs,
        )

    def uncached(self, hit_ratio: float) -> LengthStatistics:
        """What is left to prefill where caches hold the leading `hit_ratio` of every prompt; decodes stay as they are.

        n = (1 - h) L tokens after C = h L make n (C + n/2) = (1 - h^2) L^2 / 2 pairs.
        """
        return replace(
            self,
            input_tokens=self.input_tokens * (1 - hit_ratio),
            input_pairs=self.input_pairs * (1 - hit_ratio**2),
        )


def prefill_rps(profile: HardwareProfile, lengths: LengthStatistics) -> float:
    """Requests a second that one prefill endpoint carries."""
    budget = profile.max_num_batched_tokens
    full_step_s = profile.step_s(budget, 0, 0, 0)
    attention_s = profile.step_s(budget, 0, lengths.input_pairs, 0) - full_step_s
    return 1 / (full_step_s * lengths.input_tokens / budget + attention_s)


def decode_batch(profile: HardwareProfile, context_tokens: float, tpot_s: float | None = None) -> tuple[int, float]:
    """The sequences of one decode endpoint at its limit, and the seconds of a step with all of them.

    With `tpot_s`: the most whose step lasts that long at most; one sequence at least.
    """
    fitting = KV_FILL_RATIO * profile.kv_tokens / context_tokens
    most = max(1, min(profile.max_num_seqs, int(fitting)))

    def step_s(sequences: int) -> float:
        return profile.step_s(sequences, sequences * context_tokens, 0, sequences)

    if tpot_s is not None and step_s(most) > tpot_s:
        low, high = 1, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if step_s(middle) <= tpot_s else (low, middle)
        most = low
    return most, step_s(most)


def decode_rps(profile: HardwareProfile, lengths: LengthStatistics, tpot_s: float | None = None) -> float:
    """Requests a second that one decode endpoint carries, with the batch that `decode_batch` allows."""
    sequences, step_s = decode_batch(profile, lengths.context_tokens, tpot_s)
    return sequences / step_s / lengths.output_tokens
