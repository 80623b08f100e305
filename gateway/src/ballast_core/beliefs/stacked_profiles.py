"""Hardware profiles of many endpoints, one array per coefficient: the step-time law for all of them in one pass."""

from __future__ import annotations

import math

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.profiles import UNINFORMED_PROFILE, HardwareProfile

_MOST_SETS = 8
"""Sets of candidates whose coefficients are kept: those of both stages, and those of a few subsets."""

_OVERHEAD, _FLOOR_4, _SLOPE, _READ, _PAIR, _HOST, _BUDGET, _CHUNK, _CHUNK_TOKEN, _KV, _KV_BYTES, _LINK, _LINK_SETUP = (
    range(13)
)


def _column_values(profile: HardwareProfile) -> tuple[float, ...]:
    """A profile's value for each column: the law's coefficients in seconds, `a` to the fourth power, and capacities."""
    budget = profile.max_num_batched_tokens
    chunk_s = profile.step_s(budget, 0.0, 0.0, 0)
    return (
        profile.overhead_ms / 1e3,
        (profile.a_ms / 1e3) ** 4,
        profile.d_ms_per_token / 1e3,
        profile.k_ms_per_kv_token / 1e3,
        profile.s_ms_per_pair / 1e3,
        profile.b_ms_per_seq / 1e3,
        float(budget),
        chunk_s,
        chunk_s / budget,
        float(profile.kv_tokens),
        float(profile.kv_bytes_per_token),
        profile.kv_bytes_per_token / (profile.link_gbps * 1e9 / 8),
        profile.link_setup_s,
    )


class StackedProfiles:
    """Coefficients by slot. A slot that was never set has those of `UNINFORMED_PROFILE`."""

    def __init__(self) -> None:
        self._columns: FloatArray = np.array(_column_values(UNINFORMED_PROFILE))[:, None].copy()
        """One row for each coefficient, one column for each slot."""
        self._cached: dict[int, tuple[IntArray, dict[int, FloatArray]]] = {}
        """The last read-only slots looked up, by their `id`, with their columns: prefill and decode take turns."""

    def _of(self, column: int, slots: IntArray) -> FloatArray:
        if slots.flags.writeable:
            return self._take(column, slots)
        known = self._cached.get(id(slots))  # it is this very array: the entry keeps it alive
        if known is None:
            if len(self._cached) >= _MOST_SETS:
                self._cached.clear()
            known = self._cached[id(slots)] = (slots, {})
        values = known[1].get(column)
        if values is None:
            values = known[1][column] = self._take(column, slots)
        return values

    def _take(self, column: int, slots: IntArray) -> FloatArray:
        try:
            taken: FloatArray = self._columns[column].take(slots)
        except IndexError:
            self.grow(int(slots.max()) + 1)
            taken = self._columns[column].take(slots)
        return taken

    def __len__(self) -> int:
        return int(self._columns.shape[1])

    def grow(self, slots: int) -> None:
        """Extend the columns to at least this many slots."""
        if slots > len(self):
            more = max(slots, 2 * len(self)) - len(self)
            unknown = np.array(_column_values(UNINFORMED_PROFILE))
            self._columns = np.hstack([self._columns, np.repeat(unknown[:, None], more, axis=1)])
            self._cached.clear()

    def columns(self, slots: int) -> FloatArray:
        """All coefficients of at least this many slots, for the compiled kernel. Read only, until the next `put`."""
        if slots > self._columns.shape[1]:
            self.grow(slots)
        return self._columns

    def put(self, slot: int, profile: HardwareProfile) -> None:
        """Set one slot's coefficients."""
        self.grow(slot + 1)
        self._columns[:, slot] = _column_values(profile)
        self._cached.clear()

    def clear(self, slot: int) -> None:
        """Reset the slot to unknown hardware."""
        self.put(slot, UNINFORMED_PROFILE)

    def token_budget(self, slots: IntArray) -> FloatArray:
        """max_num_batched_tokens of each slot."""
        return self._of(_BUDGET, slots)

    def chunk_s(self, slots: IntArray) -> FloatArray:
        """Seconds of a step full of prompt tokens, without their attention."""
        return self._of(_CHUNK, slots)

    def one_chunk_s(self, slot: int) -> float:
        """`chunk_s` of one slot."""
        return float(self._columns[_CHUNK, slot])

    def chunk_token_s(self, slots: IntArray) -> FloatArray:
        """Seconds per token of a step full of prompt tokens, without their attention."""
        return self._of(_CHUNK_TOKEN, slots)

    def kv_tokens(self, slots: IntArray) -> FloatArray:
        """Size of each slot's KV cache in tokens."""
        return self._of(_KV, slots)

    def kv_bytes_per_token(self, slots: IntArray) -> FloatArray:
        """Bytes of one token's KV in each slot. Caches with different values are incompatible."""
        return self._of(_KV_BYTES, slots)

    def link_token_s(self, slots: IntArray) -> FloatArray:
        """Seconds to transfer one token's KV over each slot's link."""
        return self._of(_LINK, slots)

    def link_setup_s(self, slots: IntArray) -> FloatArray:
        """Seconds before the first byte of a transfer over each slot's link."""
        return self._of(_LINK_SETUP, slots)

    def pair_s(self, slots: IntArray) -> FloatArray:
        """Seconds per pair of a prefill token and a token that it attends to."""
        return self._of(_PAIR, slots)

    def prefill_step_s(self, slots: IntArray, tokens: FloatArray | float) -> FloatArray:
        """`HardwareProfile.step_s` of each slot for a step of prompt tokens alone, without their attention."""
        seconds = self._weights_and_matmul_s(slots, tokens)
        seconds += self._of(_OVERHEAD, slots)
        return seconds

    def prefill_alone_s(self, slot: int, tokens: float, cached_tokens: float) -> float:
        """Seconds of one prompt, in steps of the slot's token budget that hold nothing else; `PrefillTimes.work_s`."""
        self.grow(slot + 1)
        overhead, floor_4, slope, _, pair, _, budget, chunk, *_ = self._columns[:, slot].tolist()
        tokens = max(tokens, 1.0)
        full = math.floor(tokens / budget)
        rest = tokens - full * budget
        seconds: float = full * chunk
        if rest > 0:
            mean = slope * rest
            mean *= mean
            mean *= mean
            seconds += math.sqrt(math.sqrt(mean + floor_4)) + overhead
        seconds += pair * tokens * (cached_tokens + tokens / 2)
        return seconds

    def decode_step_s(
        self, slots: IntArray, decodes: FloatArray | float, context_tokens: FloatArray | float
    ) -> FloatArray:
        """`HardwareProfile.step_s` of each slot for a step of decodes alone; arguments broadcast against the slots."""
        seconds = self._weights_and_matmul_s(slots, decodes) + self._of(_READ, slots) * context_tokens
        seconds += self._of(_HOST, slots) * decodes
        seconds += self._of(_OVERHEAD, slots)
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
        seconds = self._weights_and_matmul_s(slots, tokens) + self._of(_OVERHEAD, slots)
        seconds = seconds + self._of(_READ, slots) * decode_context_tokens
        seconds = seconds + self._of(_PAIR, slots) * prefill_pairs
        return np.asarray(seconds + self._of(_HOST, slots) * decodes, np.float64)

    def _weights_and_matmul_s(self, slots: IntArray, tokens: FloatArray | float) -> FloatArray:
        """The law's fourth-power mean, by squares and square roots: many times faster than powers of arrays."""
        mean = np.asarray(self._of(_SLOPE, slots) * tokens, np.float64)
        mean *= mean
        mean *= mean
        mean += self._of(_FLOOR_4, slots)
        np.sqrt(mean, out=mean)
        return np.sqrt(mean, out=mean)
