"""Fleets of running decodes for rescheduling policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from ballast_core.policies.rescheduling.protocol import Decodes


def decodes(
    *,
    endpoint: Sequence[int],
    tokens: Sequence[float],
    remaining_tokens: Sequence[float],
    endpoints: int | None = None,
    kv_tokens: Sequence[float] | None = None,
) -> Decodes:
    """Equal endpoints of 30 tokens a second that may all give and take, over a fast link."""
    count = len(kv_tokens) if kv_tokens is not None else endpoints or max(endpoint) + 1
    return Decodes(
        endpoint=np.array(endpoint, np.int64),
        tokens=np.array(tokens),
        remaining_tokens=np.array(remaining_tokens),
        may_move=np.ones(len(endpoint), np.bool_),
        takes=np.ones(count, np.bool_),
        tokens_per_s=np.full(count, 30.0),
        kv_tokens=np.full(count, 200_000.0) if kv_tokens is None else np.array(kv_tokens),
        other_tokens=np.zeros(count),
        migration_s=np.full((count, count), 1e-5),
        migration_setup_s=0.005,
    )


@st.composite
def fleets(draw: st.DrawFn) -> Decodes:
    """Up to five endpoints, twelve requests: unlike hardware, missing links, full memory, few places.

    All but one may drain.
    """
    count, requests = draw(st.integers(2, 5)), draw(st.integers(1, 12))

    def several(values: st.SearchStrategy[float], size: int) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=size, max_size=size)))

    return Decodes(
        endpoint=several(st.integers(0, count - 1), requests).astype(np.int64),
        tokens=several(st.integers(1, 8000), requests).astype(np.float64),
        remaining_tokens=several(st.one_of(st.integers(0, 3000), st.just(30_000)), requests).astype(np.float64),
        may_move=several(st.sampled_from([True, True, True, False]), requests),
        takes=np.array([True, *several(st.sampled_from([True, True, True, False]), count - 1)]),
        tokens_per_s=several(st.sampled_from([20.0, 30.0, 31.0, 60.0]), count),
        kv_tokens=several(st.sampled_from([10_000.0, 40_000.0, 50_000.0]), count),
        other_tokens=several(st.sampled_from([0.0, 0.0, 2000.0]), count),
        migration_s=several(st.sampled_from([1e-5, 1e-3, np.inf]), count * count).reshape(count, count),
        migration_setup_s=draw(st.sampled_from([0.0, 0.5])),
        free_decodes=several(st.sampled_from([0, 1, 2, 9]), count) if draw(st.booleans()) else None,
    )
