"""Prefix index: what was routed is held, least recently used falls out.

Invariants, against plain sets per endpoint:
1. `match` counts exactly the leading blocks held, for every endpoint.
2. No endpoint holds more than its capacity.
3. When every endpoint is gone, nothing is left.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.prefix_index import PrefixIndex


def index(*capacities: int) -> PrefixIndex:
    made = PrefixIndex()
    for slot, capacity in enumerate(capacities):
        made.add(slot, capacity)
    return made


def matched(target: PrefixIndex, *hashes: int) -> list[int]:
    found: list[int] = target.match(hashes).tolist()
    return found


def test_a_routed_prompt_is_matched_as_far_as_it_agrees() -> None:
    target = index(100, 100, 100)
    target.record(0, [1, 2, 3, 4], 0.0)
    target.record(2, [1, 2, 30], 0.0)
    assert matched(target, 1, 2, 3, 5) == [3, 0, 2]
    assert matched(target, 1, 2, 3, 4) == [4, 0, 2]
    assert matched(target, 9) == [0, 0, 0]
    assert matched(target) == [0, 0, 0]


def test_a_block_behind_a_gap_does_not_count() -> None:
    """Vectors of KV are of use only when everything before them is there."""
    target = index(100)
    target.record(0, [1, 2, 3], 0.0)
    assert matched(target, 1, 99, 3) == [1]


def test_least_recently_used_blocks_fall_out_and_the_tail_of_a_prompt_before_its_head() -> None:
    target = index(4)
    target.record(0, [1, 2, 3], 0.0)
    target.record(0, [10, 11], 1.0)
    assert matched(target, 1, 2, 3) == [2]
    target.record(0, [1, 2], 2.0)
    target.record(0, [20, 21], 3.0)
    assert matched(target, 1, 2) == [2]
    assert matched(target, 10, 11) == [0]


def test_of_a_prompt_larger_than_the_cache_the_head_is_held() -> None:
    target = index(3)
    target.record(0, [1, 2, 3, 4, 5], 0.0)
    assert matched(target, 1, 2, 3, 4, 5) == [3]
    assert target.blocks(0) == 3


def test_a_lost_endpoint_holds_nothing_and_its_slot_begins_empty() -> None:
    target = index(10, 10)
    target.record(0, [1, 2], 0.0)
    target.record(1, [1], 0.0)
    target.remove(0)
    assert matched(target, 1, 2) == [0, 1]
    target.record(0, [1], 1.0)
    assert matched(target, 1) == [0, 1]
    target.add(0, 10)
    assert matched(target, 1) == [0, 1]
    target.remove(0)
    target.remove(1)
    assert len(target) == 0


def test_a_thousand_endpoints_are_matched_at_once() -> None:
    target = index(*[64] * 1000)
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 33, 1000)
    for slot, length in enumerate(lengths):
        target.record(slot, list(range(length)), 0.0)
    np.testing.assert_array_equal(target.match(list(range(32))), lengths)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["record", "record", "record", "remove", "add"]),
        st.integers(0, 11),
        st.integers(0, 3),
        st.integers(0, 8),
    ),
    max_size=60,
)


def prompt(family: int, length: int) -> list[int]:
    """Prompts of one family share a prefix; all begin with the same block."""
    return [0, *(family * 100 + at for at in range(1, length))][:length]


@given(OPERATIONS)
@settings(max_examples=200, deadline=None)
def test_the_index_is_a_least_recently_used_cache_per_endpoint(operations: list[tuple[str, int, int, int]]) -> None:
    """Invariants 1 to 3, against an OrderedDict per endpoint."""
    capacity = 6
    target = PrefixIndex()
    plain: dict[int, OrderedDict[int, None]] = {}
    for what, slot, family, length in operations:
        hashes = prompt(family, length)
        if what == "add":
            target.add(slot, capacity)
            plain[slot] = OrderedDict()
        elif what == "remove":
            target.remove(slot)
            plain.pop(slot, None)
        else:
            target.record(slot, hashes, 0.0)
            if slot in plain:
                for block in reversed(hashes[:capacity]):
                    plain[slot][block] = None
                    plain[slot].move_to_end(block)
                while len(plain[slot]) > capacity:
                    plain[slot].popitem(last=False)
        found = target.match(hashes)
        for at, held in plain.items():
            leading = next((depth for depth, block in enumerate(hashes) if block not in held), len(hashes))
            assert found[at] == leading
            assert target.blocks(at) == len(held) <= capacity
    for slot in list(plain):
        target.remove(slot)
    assert len(target) == 0
    assert not target.match(prompt(1, 8)).any()


def test_a_prompt_asked_for_again_is_matched_once_until_a_holder_changes() -> None:
    """Both stages of a dispatch ask for the same request."""
    target, prompt = index(4, 4), (1, 2)
    target.record(0, prompt, 0.0)
    first = target.match(prompt)
    assert target.match(prompt) is first
    target.record(1, (1,), 0.0)
    assert target.match(prompt).tolist() == [2, 1]
    assert first.tolist() == [2, 0]


def test_impossible_endpoints_are_refused() -> None:
    with pytest.raises(ValueError, match="capacity_blocks"):
        index(0)
