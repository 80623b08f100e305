"""Names of prefix blocks, and the feed that gives an engine's blocks our names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.block_hashes import text_block_hashes, token_block_hashes, trace_block_hashes
from ballast_core.beliefs.kv_events import KvEventFeed
from ballast_core.beliefs.prefix_index import PrefixIndex

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=70)


def test_only_whole_blocks_have_a_name() -> None:
    assert token_block_hashes(range(15), 16) == []
    assert len(token_block_hashes(range(16), 16)) == 1
    assert len(token_block_hashes(range(47), 16)) == 2


def test_names_do_not_change_between_releases() -> None:
    """Replicas of different versions share an index's content: a golden value."""
    assert token_block_hashes([1, 2, 3, 4], 2, salt=b"m") == token_block_hashes(np.array([1, 2, 3, 4]), 2, salt=b"m")
    assert token_block_hashes([1, 2, 3, 4], 2) == [18389742664249816232, 11220972698411055348]


@given(TOKENS, TOKENS, st.integers(1, 9))
@settings(deadline=None)
def test_two_prompts_share_names_exactly_as_far_as_their_blocks_agree(
    left: list[int], right: list[int], block_size: int
) -> None:
    common = 0
    while left[: common + 1] == right[: common + 1] and common < min(len(left), len(right)):
        common += 1
    shared = common // block_size
    names_left, names_right = token_block_hashes(left, block_size), token_block_hashes(right, block_size)
    assert names_left[:shared] == names_right[:shared]
    assert not set(names_left[shared:]) & set(names_right[shared:])


@given(TOKENS, st.integers(1, 5), st.integers(0, 10))
@settings(deadline=None)
def test_a_chain_goes_on_from_its_parent(tokens: list[int], block_size: int, cut: int) -> None:
    whole = token_block_hashes(tokens, block_size, salt=b"lora")
    cut = min(cut, len(whole))
    if cut > 0:
        rest = token_block_hashes(tokens[cut * block_size :], block_size, salt=b"ignored", parent=whole[cut - 1])
        assert whole[cut:] == rest


def test_a_salt_keeps_equal_prompts_apart() -> None:
    names = [token_block_hashes(range(64), 16, salt=salt) for salt in (b"", b"a", b"b")]
    assert len({name for prompt in names for name in prompt}) == 12


def test_trace_ids_become_names_and_the_partial_block_is_dropped() -> None:
    """Mooncake: blocks of 512, the last id of 1,300 tokens stands for 276 of them."""
    names = trace_block_hashes([5, 6, 7], 1300, 512)
    assert len(names) == 2
    assert names == trace_block_hashes([5, 6, 9], 1024, 512)
    assert not set(names) & set(trace_block_hashes([5, 6, 7], 1536, 512, salt=b"other file"))
    assert trace_block_hashes([], 0, 512) == []


@pytest.mark.parametrize("bad", [[-1], [2**32], [1.5], ["a"], [[1, 2]]])
def test_impossible_tokens_are_refused(bad: list[int]) -> None:
    with pytest.raises(ValueError, match="token_ids: must be a list of whole numbers"):
        token_block_hashes(bad, 1)


def test_an_empty_block_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size: must be 1 or more"):
        token_block_hashes([1], 0)
    with pytest.raises(ValueError, match="block_size: must be 1 or more"):
        trace_block_hashes([1], 1, 0)
    with pytest.raises(ValueError, match="block_size: must be 1 or more"):
        KvEventFeed(PrefixIndex(), 0)


def feed() -> KvEventFeed:
    index = PrefixIndex()
    index.add(0, 100)
    index.add(1, 100)
    return KvEventFeed(index, 4)


def test_what_an_engine_stores_is_found_by_the_routers_own_names() -> None:
    """The engine names its blocks as it likes; a prompt is two events here, the second with a parent."""
    target, tokens = feed(), list(range(100, 112))
    names = token_block_hashes(tokens, 4, salt=b"m")
    assert target.stored(0, block_hashes=[77, b"x"], token_ids=tokens[:8], block_size=4, now_s=0.0, salt=b"m") == 2
    stored = target.stored(
        0, block_hashes=["c"], token_ids=tokens[8:], block_size=4, now_s=1.0, parent_block_hash=b"x", salt=b"m"
    )
    assert stored == 1
    assert target.index.match(names).tolist() == [3, 0]
    assert target.removed(0, block_hashes=["c", "unknown"], now_s=2.0) == 1
    assert target.index.match(names).tolist() == [2, 0]
    target.cleared(0, now_s=3.0)
    assert target.index.match(names).tolist() == [0, 0]


def test_events_that_cannot_be_named_are_left_out() -> None:
    """A parent that was never seen, another block size, too few tokens."""
    target = feed()
    tokens = list(range(8))
    assert target.stored(0, block_hashes=[1], token_ids=tokens, block_size=4, now_s=0.0, parent_block_hash=9) == 0
    assert target.stored(0, block_hashes=[1], token_ids=tokens, block_size=8, now_s=0.0) == 0
    assert target.stored(0, block_hashes=[1, 2, 3], token_ids=tokens, block_size=4, now_s=0.0) == 0
    assert len(target.index) == 0


def test_a_forgotten_endpoints_names_are_gone() -> None:
    target = feed()
    target.stored(1, block_hashes=[5], token_ids=range(4), block_size=4, now_s=0.0)
    target.forget(1)
    assert target.removed(1, block_hashes=[5], now_s=1.0) == 0


def test_events_of_endpoints_that_are_not_in_the_index_leave_nothing_behind() -> None:
    target = feed()
    assert target.stored(9, block_hashes=[5], token_ids=range(4), block_size=4, now_s=0.0) == 0
    assert target.removed(9, block_hashes=[5], now_s=1.0) == 0


def test_names_of_blocks_whose_eviction_got_lost_are_dropped_at_capacity() -> None:
    """100 blocks fit; of 300 stored without a removal the last 100 names are kept."""
    target = feed()
    for number in range(300):
        target.stored(0, block_hashes=[number], token_ids=[number] * 4, block_size=4, now_s=float(number))
    assert target.removed(0, block_hashes=list(range(200)), now_s=300.0) == 0
    assert target.removed(0, block_hashes=list(range(200, 300)), now_s=300.0) == 100


@given(st.text("ab\u4e2d\ud800", max_size=40), st.text("ab\u4e2d\ud800", max_size=40), st.integers(1, 9))
@settings(deadline=None)
def test_texts_share_names_exactly_as_far_as_their_blocks_agree(left: str, right: str, block_chars: int) -> None:
    common = 0
    while left[: common + 1] == right[: common + 1] and common < min(len(left), len(right)):
        common += 1
    shared = common // block_chars
    names_left, names_right = text_block_hashes(left, block_chars), text_block_hashes(right, block_chars)
    assert len(names_left) == len(left) // block_chars
    assert names_left[:shared] == names_right[:shared]
    assert not set(names_left[shared:]) & set(names_right[shared:])
    assert not set(names_left) & set(text_block_hashes(left, block_chars, salt=b"m"))


def test_a_text_block_has_a_size() -> None:
    with pytest.raises(ValueError, match="block_size: must be 1 or more"):
        text_block_hashes("abc", 0)
