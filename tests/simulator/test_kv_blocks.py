"""Blocks of a request that has ended and that nobody can ask for: handed out as late as any, but found no more."""

from __future__ import annotations

from ballast_sim.engine.requests import RequestState
from ballast_sim.engine.vllm.block_pool import BlockPool
from tests.support.engines import request


def holder(pool: BlockPool, name: int, tokens: int) -> RequestState:
    """A request of so many prompt tokens, with blocks of 4 for all of them, the full ones with their hash."""
    state = RequestState(request(name, tokens, 1), 64)
    state.blocks = pool.take(pool.blocks_for(tokens))
    pool.cache(state, tokens)
    return state


def test_spent_blocks_are_not_hit_and_keep_their_place() -> None:
    pool = BlockPool(8, 4, caching=True)
    kept, spent = holder(pool, 1, 10), holder(pool, 2, 10)
    pool.spend(spent.blocks[: spent.cached_blocks])
    for state in (kept, spent):
        pool.release(state.blocks)
    pool.check([])
    assert pool.longest_hit(kept) == [1, 2]
    assert pool.longest_hit(spent) == []
    # Never full, so without a hash: first. Never taken: next. Then what was released, each request's tail first.
    assert pool.take(7) == [6, 3, 7, 2, 1, 5, 4]
    assert pool.longest_hit(kept) == []


def test_blocks_without_a_hash_yet_can_be_spent_too_and_twice() -> None:
    pool = BlockPool(4, 4, caching=True)
    blocks = pool.take(2)
    pool.spend(blocks)
    pool.spend(blocks)
    pool.release(blocks)
    assert pool.take(3) == [3, 2, 1]
    assert pool.contents()[1] == [None] * 4


def test_a_copy_of_a_spent_block_is_hit() -> None:
    pool = BlockPool(8, 4, caching=True)
    first, again = holder(pool, 1, 9), holder(pool, 1, 9)
    pool.spend(first.blocks[: first.cached_blocks])
    assert pool.longest_hit(again) == again.blocks[:2]
    pool.spend(again.blocks[: again.cached_blocks])
    assert pool.longest_hit(again) == []
