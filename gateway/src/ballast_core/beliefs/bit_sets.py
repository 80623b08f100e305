"""Sets of small numbers as the bits of one integer."""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import IntArray

_FEW_BITS = 8


def set_bits(target: IntArray, bits: int, value: int) -> None:
    """target[k] = value for every bit k that is set."""
    if bits.bit_count() <= _FEW_BITS:
        while bits:
            lowest = bits & -bits
            target[lowest.bit_length() - 1] = value
            bits ^= lowest
        return
    data = np.frombuffer(bits.to_bytes((len(target) + 7) // 8, "little"), np.uint8)
    target[np.unpackbits(data, bitorder="little", count=len(target)).view(np.bool_)] = value
