"""KV blocks move in lists, and yet as vLLM moves them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_sim.engine import BlockHashes, TraceContent, UniqueContent
from ballast_sim.engine.requests import RequestState
from ballast_sim.engine.vllm.block_pool import BlockPool
from tests.support.engines import request
from tests.support.plain_block_pool import PlainBlockPool


def holder(pool: BlockPool, name: int, tokens: int) -> RequestState:
    """A request of so many prompt tokens, with blocks of 4 for all of them, the full ones with their hash."""
    state = RequestState(request(name, tokens, 1), 64)
    state.blocks = pool.take(pool.blocks_for(tokens))
    pool.cache(state, tokens)
    return state


def test_spent_blocks_are_not_hit_and_keep_their_place() -> None:
    pool = BlockPool(8, 4, caching=True)
    kept, spent = holder(pool, 1, 10), holder(pool, 2, 10)
    pool.spend(spent)
    for state in (kept, spent):
        pool.release(state.blocks, state.cached_blocks, state)
    pool.check([])
    assert pool.longest_hit(kept) == [1, 2]
    assert pool.longest_hit(spent) == []
    # Never full, so without a hash: first. Never taken: next. Then what was released, each request's tail first.
    assert pool.take(7) == [6, 3, 7, 2, 1, 5, 4]
    assert pool.longest_hit(kept) == []


def test_a_copy_of_a_spent_block_is_hit() -> None:
    pool = BlockPool(8, 4, caching=True)
    first, again = holder(pool, 1, 9), holder(pool, 1, 9)
    pool.spend(first)
    assert pool.longest_hit(again) == again.blocks[:2]
    pool.spend(again)
    assert pool.longest_hit(again) == []


def content_of(kind: int, name: int, ids: Sequence[int], tokens: int) -> BlockHashes:
    """Of a request alone; of one whose legs look for each other's blocks; of a prompt that others begin with too."""
    return (UniqueContent(name), SharedLegs(name), TraceContent(ids, 4, tokens, 4, name))[kind]


class SharedLegs(UniqueContent):
    """As a request that moves: another leg of it looks for its blocks."""

    shared = True


HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "fill", "spend", "end", "end", "defer"]),
        st.integers(0, 2),
        st.integers(0, 5),
        st.lists(st.integers(0, 1), min_size=1, max_size=5),
        st.integers(1, 40),
        st.floats(0, 1),
    ),
    max_size=60,
)


@given(HISTORIES, st.integers(12, 60))
@settings(deadline=None, max_examples=200)
def test_blocks_move_as_one_by_one(history: list[tuple[str, int, int, list[int], int, float]], kv_blocks: int) -> None:
    """The same blocks handed out and hit, the same queue, hashes and counts as a pool that keeps every block apart."""
    pool, plain = BlockPool(kv_blocks, 4, caching=True), PlainBlockPool(kv_blocks, 4)
    held: list[tuple[RequestState, RequestState]] = []
    for action, kind, name, ids, tokens, share in history:
        if action == "begin":
            pair = tuple(
                RequestState(replace(request(name, tokens, 1), content=content_of(kind, name, ids, tokens)), 1000)
                for _ in range(2)
            )
            state, twin = pair
            hit = pool.longest_hit(state)
            assert hit == plain.longest_hit(twin)
            assert pool.free_among(hit) == plain.free_among(hit)
            missing = pool.blocks_for(tokens) - len(hit)
            if missing > pool.free_blocks - pool.free_among(hit):
                continue
            for side, each in ((pool, state), (plain, twin)):
                side.touch(hit)
                each.blocks = [*hit, *side.take(missing)]
                each.cached_blocks = len(hit)
                side.cache(each, round(share * tokens))
            held.append((state, twin))
        elif held and action == "fill":
            state, twin = held[name % len(held)]
            assert pool.held_alone(state.blocks) == plain.held_alone(twin.blocks)
            pool.cache(state, round(share * state.num_tokens))
            plain.cache(twin, round(share * twin.num_tokens))
        elif held:
            state, twin = held.pop(name % len(held))
            if action == "spend" and not state.content.shared:
                pool.spend(state)
                plain.spend(twin)
            if action == "defer":
                pool.unclaim(state)
            pool.release(state.blocks, state.cached_blocks, None if action == "defer" else state)
            plain.release(twin.blocks)
        pool.check(state.blocks for state, _ in held)
        assert [state.blocks for state, _ in held] == [twin.blocks for _, twin in held]
        queue, hashes, _ = pool.contents()
        assert queue == list(plain.free)
        assert hashes == plain.named()
        assert pool.free_blocks == len(queue)
