"""Hardware profiles of many endpoints, one array per coefficient: the step-time law for all of them in one pass."""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.profiles import HardwareProfile

UNINFORMED_PROFILE = HardwareProfile(
    name="uninformed",
    hardware="unknown",
    overhead_ms=1.0,
    a_ms=12.0,
    d_ms_per_token=0.1,
    k_ms_per_kv_token=4e-5,
    s_ms_per_pair=5e-6,
    b_ms_per_seq=0.02,
    kv_tokens=200_000,
    kv_bytes_per_token=131_072,
    derivation="a guess between the shipped profiles, for endpoints whose hardware nobody named; learned from there",
)

_OVERHEAD, _FLOOR_4, _SLOPE, _READ, _PAIR, _HOST, _BUDGET, _CHUNK, _KV = range(9)


def _column_values(profile: HardwareProfile) -> tuple[float, ...]:
    """What is kept of a profile: the law's coefficients in seconds, `a` to the fourth power, and capacities."""
    budget = profile.max_num_batched_tokens
    return (
        profile.overhead_ms / 1e3,
        (profile.a_ms / 1e3) ** 4,
        profile.d_ms_per_token / 1e3,
        profile.k_ms_per_kv_token / 1e3,
        profile.s_ms_per_pair / 1e3,
        profile.b_ms_per_seq / 1e3,
        float(budget),
        profile.step_s(budget, 0.0, 0.0, 0),
        float(profile.kv_tokens),
    )


class StackedProfiles:
    """Coefficients by slot. Slots never set hold those of `UNINFORMED_PROFILE`."""

    def __init__(self) -> None:
        self._columns: list[FloatArray] = [np.full(1, value) for value in _column_values(UNINFORMED_PROFILE)]

    def __len__(self) -> int:
        return len(self._columns[_BUDGET])

    def grow(self, slots: int) -> None:
        """Make room for so many slots at least."""
        if slots > len(self):
            more = max(slots, 2 * len(self)) - len(self)
            unknown = _column_values(UNINFORMED_PROFILE)
            self._columns = [
                np.concatenate([column, np.full(more, value)])
                for column, value in zip(self._columns, unknown, strict=True)
            ]

    def put(self, slot: int, profile: HardwareProfile) -> None:
        """Set one slot's coefficients."""
        self.grow(slot + 1)
        for column, value in zip(self._columns, _column_values(profile), strict=True):
            column[slot] = value

    def clear(self, slot: int) -> None:
        """Nothing is known of the slot any more."""
        self.put(slot, UNINFORMED_PROFILE)

    def token_budget(self, slots: IntArray) -> FloatArray:
        """max_num_batched_tokens of each slot."""
        return self._columns[_BUDGET].take(slots)

    def chunk_s(self, slots: IntArray) -> FloatArray:
        """Seconds of a step that is full of prompt tokens, their attention left out."""
        return self._columns[_CHUNK].take(slots)

    def kv_tokens(self, slots: IntArray) -> FloatArray:
        """Tokens of KV cache that each slot's endpoint holds."""
        return self._columns[_KV].take(slots)

    def pair_s(self, slots: IntArray) -> FloatArray:
        """Seconds of one pair of a prefill token and a token that it attends to."""
        return self._columns[_PAIR].take(slots)

    def prefill_step_s(self, slots: IntArray, tokens: FloatArray | float) -> FloatArray:
        """`HardwareProfile.step_s` of each slot for a step of prompt tokens alone, their attention left out."""
        seconds = self._weights_and_matmul_s(slots, tokens)
        seconds += self._columns[_OVERHEAD].take(slots)
        return seconds

    def decode_step_s(
        self, slots: IntArray, decodes: FloatArray | float, context_tokens: FloatArray | float
    ) -> FloatArray:
        """`HardwareProfile.step_s` of each slot for a step of decodes alone; arguments broadcast against the slots."""
        seconds = self._weights_and_matmul_s(slots, decodes) + self._columns[_READ].take(slots) * context_tokens
        seconds += self._columns[_HOST].take(slots) * decodes
        seconds += self._columns[_OVERHEAD].take(slots)
        return np.asarray(seconds, np.float64)

    def step_s(
        self,
        slots: IntArray,
        tokens: FloatArray | float,
        decode_context_tokens: FloatArray | float,
        prefill_pairs: FloatArray | float,
        decodes: FloatArray | float,
    ) -> FloatArray:
        """`HardwareProfile.step_s` of each slot; arguments broadcast against the slots."""
        seconds = self._weights_and_matmul_s(slots, tokens) + self._columns[_OVERHEAD].take(slots)
        seconds = seconds + self._columns[_READ].take(slots) * decode_context_tokens
        seconds = seconds + self._columns[_PAIR].take(slots) * prefill_pairs
        return np.asarray(seconds + self._columns[_HOST].take(slots) * decodes, np.float64)

    def _weights_and_matmul_s(self, slots: IntArray, tokens: FloatArray | float) -> FloatArray:
        """The law's fourth-power mean by squares and square roots, many times faster than powers of arrays."""
        mean = np.asarray(self._columns[_SLOPE].take(slots) * tokens, np.float64)
        mean *= mean
        mean *= mean
        mean += self._columns[_FLOOR_4].take(slots)
        np.sqrt(mean, out=mean)
        return np.sqrt(mean, out=mean)
