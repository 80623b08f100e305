"""How many requests an endpoint runs at a time, as far as it has shown that."""

from __future__ import annotations

from typing import Final

import numpy as np

from ballast_core.arrays import BoolArray, IntArray

UNSEEN: Final = np.iinfo(np.int64).max
"""The places of an endpoint that has not shown them."""
_LEAST_WAITING = 8


def crowded(running: IntArray, waiting: IntArray) -> BoolArray:
    """Where max(8, running / 8) requests wait: for a place, for KV or for their prefill. Shapes: all (endpoints,)."""
    many: BoolArray = waiting >= np.maximum(running // 8, _LEAST_WAITING)
    return many


def seen(before: IntArray, running: IntArray, waiting: IntArray) -> IntArray:
    """What endpoints show of their places, given those known `before`. Shapes: all (endpoints,).

    A crowded one has as many places as it runs: what it got more would wait, too. One that runs more than was known has
    others than was known, and they are unseen.
    """
    known: IntArray = np.where(running > before, UNSEEN, before)
    return np.where(crowded(running, waiting), np.maximum(running, 1), known)
