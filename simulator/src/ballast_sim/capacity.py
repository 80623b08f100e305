"""How many requests a second a fleet carries at its limit: arithmetic on the step-time law, not a measurement.

Prefill: prompts fill the token budget of every step, no cache hits, no queueing loss. Decode: as many sequences as KV
(90 % full) and max_num_seqs allow, each with its mean context over life, all of them in every step; each sequence
also costs the law's arithmetic per token, which is what limits an H20. Real fleets reach less, above all near
balance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ballast_core.profiles import HardwareProfile

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
    def of(cls, requests: Sequence[HasLengths]) -> "LengthStatistics":
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


def prefill_rps(profile: HardwareProfile, lengths: LengthStatistics) -> float:
    """Requests a second that one prefill endpoint carries."""
    budget = profile.max_num_batched_tokens
    full_step_s = profile.step_s(budget, 0, 0, 0)
    attention_s = profile.step_s(budget, 0, lengths.input_pairs, 0) - full_step_s
    return 1 / (full_step_s * lengths.input_tokens / budget + attention_s)


def decode_rps(profile: HardwareProfile, lengths: LengthStatistics) -> float:
    """Requests a second that one decode endpoint carries."""
    fitting = KV_FILL_RATIO * profile.kv_tokens / lengths.context_tokens
    sequences = max(1, min(profile.max_num_seqs, int(fitting)))
    step_s = profile.step_s(sequences, sequences * lengths.context_tokens, 0, sequences)
    return sequences / step_s / lengths.output_tokens


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests a second that a fleet carries, by stage. Infinity where a stage has colocated endpoints only."""

    prefill_rps: float
    decode_rps: float

    @property
    def rps(self) -> float:
        """What the narrower stage lets through."""
        return min(self.prefill_rps, self.decode_rps)

    @property
    def bottleneck(self) -> str:
        """Which stage that is."""
        return "prefill" if self.prefill_rps <= self.decode_rps else "decode"

    def load_ratio(self, rate_rps: float) -> float:
        """The share of this capacity that a rate of arrivals takes."""
        return rate_rps / self.rps


def estimate(
    requests: Sequence[HasLengths], *, prefill: Sequence[HardwareProfile], decode: Sequence[HardwareProfile]
) -> Capacity:
    """The capacity of prefill and decode endpoints for requests of these lengths.

    Raises ValueError where a stage has no endpoint or there is no request.
    """
    for name, profiles in (("prefill", prefill), ("decode", decode)):
        if not profiles:
            raise ValueError(f"{name}: a fleet needs at least one endpoint of this role")
    lengths = LengthStatistics.of(requests)
    return Capacity(
        sum(prefill_rps(profile, lengths) for profile in prefill),
        sum(decode_rps(profile, lengths) for profile in decode),
    )


def mean_rate_rps(requests: Sequence[HasLengths], duration_s: float) -> float:
    """Arrivals a second over a span."""
    return len(requests) / duration_s
