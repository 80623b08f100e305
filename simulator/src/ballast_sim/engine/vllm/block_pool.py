"""KV blocks: a pool with reference counts, a prefix cache by chained hash, and an LRU free queue.

Follows vLLM's v1/core/block_pool.py. A freed block keeps its hash, and can be hit, until the pool hands it out again.
Block 0 is vLLM's null block and is never handed out.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from ballast_sim.engine.requests import RequestState

_SPENT = -1
"""The hash of every block whose content will not be looked up again; Python hashes nothing to -1."""


class BlockPool:
    """All KV blocks of one engine."""

    __slots__ = (
        "_block_hash",
        "_by_hash",
        "_caching",
        "_copies",
        "_free",
        "_references",
        "block_size",
        "usable_blocks",
    )

    def __init__(self, kv_blocks: int, block_size: int, caching: bool) -> None:
        """`kv_blocks` with the null block."""
        self.block_size = block_size
        self.usable_blocks = kv_blocks - 1
        self._caching = caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, kv_blocks))
        self._references = [0] * kv_blocks
        self._block_hash: list[int | None] = [None] * kv_blocks
        # Several blocks may hold the same content (computed twice at once): the oldest of them is hit.
        self._by_hash: dict[int, int] = {}
        self._copies: dict[int, list[int]] = {}  # the younger ones

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out, those that could still be hit included."""
        return len(self._free)

    @property
    def usage_ratio(self) -> float:
        """vLLM's kv_cache_usage_perc."""
        return self.usage_ratio_with(len(self._free))

    def usage_ratio_with(self, free_blocks: int) -> float:
        """What `usage_ratio` is once so many blocks are free."""
        return 1.0 - free_blocks / self.usable_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def longest_hit(self, state: RequestState) -> list[int]:
        """Blocks of the longest cached prefix; the last token is always left to compute."""
        if not self._caching:
            return []
        limit = (state.num_tokens - 1) // self.block_size
        hit: list[int] = []
        by_hash = self._by_hash
        for block_hash in state.content.upto(limit)[:limit]:
            block = by_hash.get(block_hash)
            if block is None:
                break
            hit.append(block)
        return hit

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of these hit blocks lie in the free queue (taking them makes room scarcer)."""
        references = self._references
        return [references[block] for block in blocks].count(0)

    def held_alone(self, blocks: Sequence[int]) -> int:
        """How many of these blocks have one holder: as many are free once it gives them back."""
        references = self._references
        return [references[block] for block in blocks].count(1)

    def touch(self, blocks: Sequence[int]) -> None:
        """Share hit blocks with one more request."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def take(self, count: int) -> list[int]:
        """Blocks from the front of the free queue; they lose their hash. The caller has checked `free_blocks`."""
        first, hashes, references = self._free.popitem, self._block_hash, self._references
        taken = [first(last=False)[0] for _ in range(count)]
        for block in taken:
            references[block] = 1
            if (block_hash := hashes[block]) is not None:
                hashes[block] = None
                if block_hash == _SPENT:
                    continue
                if self._copies and block_hash in self._copies:
                    self._forget(block, block_hash)
                else:
                    del self._by_hash[block_hash]
        return taken

    def _forget(self, block: int, block_hash: int) -> None:
        """Of content that several blocks hold: the oldest that is left is hit from now on."""
        copies = self._copies[block_hash]
        if self._by_hash[block_hash] == block:
            self._by_hash[block_hash] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[block_hash]

    def cache(self, state: RequestState, tokens: int) -> None:
        """Give their hash to the request's blocks that are full with the first `tokens` tokens."""
        full = tokens // self.block_size
        first = state.cached_blocks
        if full <= first or not self._caching:
            return
        self._name(state.blocks[first:full], state.content.upto(full)[first:full])
        state.cached_blocks = full

    def _name(self, blocks: Iterable[int], names: Iterable[int]) -> None:
        """Give blocks their hashes."""
        hashes, oldest = self._block_hash, self._by_hash.setdefault
        for block, block_hash in zip(blocks, names, strict=True):
            hashes[block] = block_hash
            if oldest(block_hash, block) != block:
                self._copies.setdefault(block_hash, []).append(block)

    def cache_next(self, states: Iterable[RequestState]) -> None:
        """Give the next block of each of these requests, which its tokens fill, its hash."""
        if not self._caching:
            return
        hashes, oldest = self._block_hash, self._by_hash.setdefault
        for state in states:
            index = state.cached_blocks
            state.cached_blocks = index + 1
            block, block_hash = state.blocks[index], state.content.upto(index + 1)[index]
            hashes[block] = block_hash
            if oldest(block_hash, block) != block:
                self._copies.setdefault(block_hash, []).append(block)

    def spend(self, blocks: Iterable[int]) -> None:
        """Drop the hashes of these full blocks of a request that has ended: they will not be looked up again."""
        hashes = self._block_hash
        for block in blocks:
            block_hash = hashes[block]
            if block_hash is not None and block_hash != _SPENT:
                if block_hash in self._copies:
                    self._forget(block, block_hash)
                else:
                    del self._by_hash[block_hash]
            hashes[block] = _SPENT

    def release(self, blocks: Iterable[int]) -> None:
        """Give back blocks, in the order of a request's tokens.

        They enter the free queue tail first: those without a hash at the front, as one group, the others at the end.
        """
        first: list[int] = []
        references, hashes, free = self._references, self._block_hash, self._free
        for block in reversed(list(blocks)):
            references[block] -= 1
            if references[block]:
                continue
            if hashes[block] is None:
                first.append(block)
            else:
                free[block] = None
        for block in reversed(first):
            free[block] = None
            free.move_to_end(block, last=False)

    def contents(self) -> tuple[list[int], list[int | None], list[int]]:
        """The free queue in order; each block's hash; each block's references: all that decides what comes next."""
        return list(self._free), list(self._block_hash), list(self._references)

    def check(self, held: Iterable[Iterable[int]]) -> None:
        """Raise AssertionError unless every block is free or held as often as counted: the pool's own invariant."""
        counts = [0] * len(self._references)
        for blocks in held:
            for block in blocks:
                counts[block] += 1
        assert counts == self._references, "reference counts and holders disagree"
        assert sum(1 for count in counts[1:] if count == 0) == len(self._free), "a block is neither free nor held"
        assert 0 not in self._free
        assert all(counts[block] == 0 for block in self._free)
