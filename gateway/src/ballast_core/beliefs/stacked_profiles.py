"""Hardware profiles of many endpoints, one array per coefficient: the step-time law for all of them in one pass."""

from __future__ import annotations

from typing import Any, cast

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

_COEFFICIENTS = ("overhead_ms", "a_ms", "d_ms_per_token", "k_ms_per_kv_token", "s_ms_per_pair", "b_ms_per_seq")
_FIELDS = (*_COEFFICIENTS, "max_num_batched_tokens", "kv_tokens")


class StackedProfiles:
    """Coefficients by slot. Slots never set hold those of `UNINFORMED_PROFILE`."""

    def __init__(self) -> None:
        self._columns: dict[str, FloatArray] = {name: np.empty(0) for name in _FIELDS}
        self.grow(1)

    def __len__(self) -> int:
        return len(self._columns["a_ms"])

    def grow(self, slots: int) -> None:
        """Make room for so many slots at least."""
        more = max(slots, 2 * len(self)) - len(self)
        if slots > len(self):
            for name, column in self._columns.items():
                empty = np.full(more, float(getattr(UNINFORMED_PROFILE, name)))
                self._columns[name] = np.concatenate([column, empty])

    def put(self, slot: int, profile: HardwareProfile) -> None:
        """Set one slot's coefficients."""
        self.grow(slot + 1)
        for name, column in self._columns.items():
            column[slot] = getattr(profile, name)

    def clear(self, slot: int) -> None:
        """Nothing is known of the slot any more."""
        self.put(slot, UNINFORMED_PROFILE)

    def token_budget(self, slots: IntArray) -> FloatArray:
        """max_num_batched_tokens of each slot."""
        return self._columns["max_num_batched_tokens"].take(slots)

    def kv_tokens(self, slots: IntArray) -> FloatArray:
        """Tokens of KV cache that each slot's endpoint holds."""
        return self._columns["kv_tokens"].take(slots)

    def pair_s(self, slots: IntArray) -> FloatArray:
        """Seconds of one pair of a prefill token and a token that it attends to."""
        return self._columns["s_ms_per_pair"].take(slots) / 1e3

    def step_s(
        self,
        slots: IntArray,
        tokens: FloatArray | float,
        decode_context_tokens: FloatArray | float,
        prefill_pairs: FloatArray | float,
        decodes: FloatArray | float,
    ) -> FloatArray:
        """`HardwareProfile.step_s` of each slot; arguments broadcast against the slots."""
        rows = _Rows({name: self._columns[name].take(slots) for name in _COEFFICIENTS})
        # The law's one text is evaluated on arrays: it uses nothing but arithmetic on these attributes.
        law = cast("Any", HardwareProfile.step_s)
        return np.asarray(law(rows, tokens, decode_context_tokens, prefill_pairs, decodes), np.float64)


class _Rows:
    """Has the attributes of a profile that the law reads, as arrays."""

    def __init__(self, columns: dict[str, FloatArray]) -> None:
        vars(self).update(columns)
