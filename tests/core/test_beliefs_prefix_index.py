"""Prefix index: what was routed is held, least recently used falls out, and an engine's own reports rule.

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


def index(*capacities: int, confirm_s: float = 30.0) -> PrefixIndex:
    made = PrefixIndex(confirm_s=confirm_s)
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


# --- exact: KV events -----------------------------------------------------------------------------------------------


def test_reports_rule_from_the_first_one_on() -> None:
    target = index(100, confirm_s=10.0)
    target.stored(0, [1, 2, 3], 0.0)
    assert matched(target, 1, 2, 3) == [3]
    target.removed(0, [3], 1.0)
    assert matched(target, 1, 2, 3) == [2]
    target.cleared(0, 2.0)
    assert matched(target, 1, 2, 3) == [0]
    assert len(target) == 0


def test_what_we_route_to_a_reporting_endpoint_counts_until_its_report_should_have_come() -> None:
    """A second request of the same prefix must find the first one, which is still being prefilled."""
    target = index(100, confirm_s=10.0)
    target.stored(0, [1], 0.0)
    target.record(0, [1, 2, 3], 1.0)
    assert matched(target, 1, 2, 3) == [3]
    target.stored(0, [2], 5.0)
    target.stored(0, [50], 12.0)
    assert matched(target, 1, 2, 3) == [2]


def test_what_was_guessed_before_the_first_report_fades() -> None:
    target = index(100, confirm_s=10.0)
    target.record(0, [1, 2], 0.0)
    target.stored(0, [50], 1.0)
    assert matched(target, 1, 2) == [2]
    target.stored(0, [51], 12.0)
    assert matched(target, 1, 2) == [0]
    assert matched(target, 50) == [1]


def test_a_report_of_eviction_removes_also_what_was_only_routed() -> None:
    target = index(100)
    target.stored(0, [50], 0.0)
    target.record(0, [1, 2], 0.0)
    target.removed(0, [2, 777], 1.0)
    assert matched(target, 1, 2) == [1]


def test_lost_evictions_do_not_let_an_endpoint_hold_more_than_it_can() -> None:
    target = index(5)
    for block in range(50):
        target.stored(0, [block], float(block))
        target.record(0, [1000 + block], float(block))
    assert target.blocks(0) <= 10
    assert len(target) <= 10


def test_after_lost_reports_routing_is_believed_again() -> None:
    target = index(4)
    target.stored(0, [1, 2], 0.0)
    target.record(0, [1, 2, 3], 0.0)
    target.lost_events(0)
    assert matched(target, 1, 2, 3) == [3]
    target.record(0, [10, 11], 100.0)
    assert target.blocks(0) == 4
    assert matched(target, 10, 11) == [2]


def test_reports_of_endpoints_that_are_not_known_are_ignored() -> None:
    target = index(10)
    target.stored(7, [1], 0.0)
    target.removed(7, [1], 0.0)
    target.cleared(7, 0.0)
    target.lost_events(7)
    target.remove(7)
    assert matched(target, 1) == [0]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["record", "stored", "removed", "cleared", "lost", "remove"]),
            st.integers(0, 2),
            st.lists(st.integers(0, 9), max_size=6, unique=True),
        ),
        max_size=50,
    )
)
@settings(deadline=None)
def test_whatever_comes_holders_and_caches_agree(operations: list[tuple[str, int, list[int]]]) -> None:
    """Invariants 2 and 3 with both sources mixed; every held block is found by `match`, and no other."""
    target, prompt = index(4, 4, 4, confirm_s=5.0), tuple(range(5))
    for now_s, (what, slot, hashes) in enumerate(operations):
        match what:
            case "record":
                target.record(slot, hashes, float(now_s))
            case "stored":
                target.stored(slot, hashes, float(now_s))
            case "removed":
                target.removed(slot, hashes, float(now_s))
            case "cleared":
                target.cleared(slot, float(now_s))
            case "lost":
                target.lost_events(slot)
            case _:
                target.add(slot, 4)
        held = sum(target.match([block]) for block in range(10))
        expected = target.match(list(prompt))
        np.testing.assert_array_equal(target.match(prompt), expected)  # remembered until the next change, no longer
        np.testing.assert_array_equal(held, [target.blocks(slot) for slot in range(3)])
        assert max(target.blocks(slot) for slot in range(3)) <= 8
    for slot in range(3):
        target.remove(slot)
    assert len(target) == 0


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
    with pytest.raises(ValueError, match="confirm_s: must be 0 or more"):
        PrefixIndex(confirm_s=-1)
