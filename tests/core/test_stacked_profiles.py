"""Coefficients of many endpoints as columns: looked up once for each set of candidates, until one changes."""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import IntArray
from ballast_core.beliefs.stacked_profiles import StackedProfiles
from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B


def candidates(*slots: int) -> IntArray:
    chosen = np.array(slots)
    chosen.flags.writeable = False
    return chosen


def test_two_sets_of_candidates_that_take_turns_are_both_looked_up_once() -> None:
    """Each request asks for its prefill and its decode candidates."""
    stacked = StackedProfiles()
    stacked.put(3, A100_QWEN3_32B)
    prefill, decode = candidates(0, 1), candidates(2, 3)
    first = stacked.kv_tokens(prefill), stacked.kv_tokens(decode)
    for _ in range(2):
        assert stacked.kv_tokens(prefill) is first[0]
        assert stacked.kv_tokens(decode) is first[1]


def test_a_new_profile_is_seen_by_every_set() -> None:
    stacked = StackedProfiles()
    sets = candidates(0, 1), candidates(1)
    assert [stacked.kv_tokens(slots)[-1] for slots in sets] == [200_000, 200_000]
    stacked.put(1, H20_QWEN3_32B)
    assert [stacked.kv_tokens(slots)[-1] for slots in sets] == [190_000, 190_000]


def test_any_number_of_sets_is_looked_up_right() -> None:
    """Requests with subsets of their own make a set each: arrays of former ones must not be mistaken for theirs."""
    stacked = StackedProfiles()
    stacked.put(1, A100_QWEN3_32B)
    for _ in range(50):
        assert stacked.kv_tokens(candidates(0))[0] == 200_000
        assert stacked.kv_tokens(candidates(1))[0] == 280_000
