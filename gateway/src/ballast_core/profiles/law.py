"""The step-time law: how long one engine step takes, how much KV fits, how fast a link transfers it.

The same law serves the gateway's beliefs, the simulator's engine and the golden runs; only coefficients can differ:

    t = overhead + (a^4 + (d T)^4)^(1/4) + k (sum of decode contexts) + s (sum over prefill chunks of n (C + n/2))
        + b (number of decodes)

T: all tokens computed in the step. A chunk computes n tokens of a request that has C tokens computed already. The
fourth-power mean joins the memory-bound floor `a` (weights are read once, however few the tokens) and the compute-bound
slope `d`. `k` is the KV read of decodes, `s` the attention arithmetic of prefill, `b` the host's cost per decode.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """Coefficients of one engine: a model on a kind and number of GPUs.

    Coefficients are in milliseconds, as published; methods return seconds.
    """

    name: str
    hardware: str = ""
    gpus: int = 1
    overhead_ms: float
    a_ms: float
    d_ms_per_token: float
    k_ms_per_kv_token: float
    s_ms_per_pair: float
    b_ms_per_seq: float
    kv_tokens: int
    kv_bytes_per_token: int
    block_size: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    link_gbps: float = 200.0
    link_setup_s: float = 0.005
    derivation: str = ""
    speed_known: bool = field(default=True, repr=False)
    """Whether the coefficients are of this engine; else they are a guess that learning begins from. Not in `repr`, by
    which records of runs know profiles."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the field when a coefficient is negative or a capacity is not positive."""
        for name in (
            "overhead_ms",
            "a_ms",
            "d_ms_per_token",
            "k_ms_per_kv_token",
            "s_ms_per_pair",
            "b_ms_per_seq",
            "link_setup_s",
        ):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: must be a finite number, 0 or more, not {getattr(self, name)!r}")
        for name in (
            "gpus",
            "kv_bytes_per_token",
            "block_size",
            "max_num_batched_tokens",
            "max_num_seqs",
            "link_gbps",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: must be a finite number above 0, not {getattr(self, name)!r}")
        if self.kv_tokens < self.block_size:
            raise ValueError(
                f"kv_tokens: must hold one block of {self.block_size} tokens at least, not {self.kv_tokens!r}"
            )
        if self.overhead_ms + self.a_ms <= 0:
            raise ValueError("overhead_ms, a_ms: one of them must be above 0, or an engine step would take no time")

    @property
    def kv_blocks(self) -> int:
        """Whole KV blocks that requests can use."""
        return self.kv_tokens // self.block_size

    def step_s(self, tokens: int, decode_context_tokens: float, prefill_pairs: float, decodes: int) -> float:
        """Seconds of one engine step.

        `tokens`: all tokens computed; `decode_context_tokens`: sum over the decodes of their tokens computed before;
        `prefill_pairs`: sum of n (C + n/2) over the prefill chunks.
        """
        weights_and_matmul_ms: float = (self.a_ms**4 + (self.d_ms_per_token * tokens) ** 4) ** 0.25
        return (
            self.overhead_ms
            + weights_and_matmul_ms
            + self.k_ms_per_kv_token * decode_context_tokens
            + self.s_ms_per_pair * prefill_pairs
            + self.b_ms_per_seq * decodes
        ) / 1e3

    def decodes_s(self, decodes: int, contexts: Iterable[int]) -> list[float]:
        """`step_s` of steps in which only so many requests decode, one for each sum of their contexts."""
        fixed_ms = self.overhead_ms + (self.a_ms**4 + (self.d_ms_per_token * decodes) ** 4) ** 0.25
        k_ms, decodes_ms = self.k_ms_per_kv_token, self.b_ms_per_seq * decodes
        return [(fixed_ms + k_ms * context + decodes_ms) / 1e3 for context in contexts]

    def transfer_s(self, tokens: int) -> float:
        """Seconds to transfer the KV of `tokens` over an otherwise idle link."""
        return self.link_setup_s + tokens * self.kv_bytes_per_token / (self.link_gbps * 1e9 / 8)
