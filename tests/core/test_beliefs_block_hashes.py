"""Names of prefix blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.block_hashes import text_block_hashes, token_block_hashes, trace_block_hashes

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
