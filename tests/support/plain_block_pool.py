"""A block pool as vLLM writes it, block by block: what `BlockPool` must agree with, list for list."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ballast_sim.engine.requests import RequestState

SPENT = -1
"""The hash of every block whose content will not be looked up again; Python hashes nothing to -1."""


class PlainBlockPool:
    """Free queue, reference counts and hashes, one entry for each block."""

    def __init__(self, kv_blocks: int, block_size: int) -> None:
        """`kv_blocks` with the null block, 0."""
        self.block_size = block_size
        self.free = OrderedDict.fromkeys(range(1, kv_blocks))
        self.references = [0] * kv_blocks
        self.hashes: list[int | None] = [None] * kv_blocks
        self.holders: dict[int, list[int]] = {}  # blocks by hash, the oldest first

    def longest_hit(self, state: RequestState) -> list[int]:
        """Blocks of the longest cached prefix, the last token left out."""
        hit: list[int] = []
        limit = (state.num_tokens - 1) // self.block_size
        for name in state.content.upto(limit)[:limit]:
            if name not in self.holders:
                break
            hit.append(self.holders[name][0])
        return hit

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of these are free."""
        return sum(self.references[block] == 0 for block in blocks)

    def held_alone(self, blocks: Sequence[int]) -> int:
        """How many of these have one holder."""
        return sum(self.references[block] == 1 for block in blocks)

    def touch(self, blocks: Sequence[int]) -> None:
        """One more holder of each."""
        for block in blocks:
            self.free.pop(block, None)
            self.references[block] += 1

    def take(self, count: int) -> list[int]:
        """From the front of the queue."""
        taken = [self.free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self.references[block] = 1
            self._forget(block)
        return taken

    def _forget(self, block: int) -> None:
        name, self.hashes[block] = self.hashes[block], None
        if name is not None and name != SPENT:
            self.holders[name].remove(block)
            if not self.holders[name]:
                del self.holders[name]

    def cache(self, state: RequestState, tokens: int) -> None:
        """Name the blocks that are full with the first tokens."""
        full, first = tokens // self.block_size, state.cached_blocks
        names = state.content.upto(full)
        for index in range(first, full):
            self.hashes[state.blocks[index]] = names[index]
            self.holders.setdefault(names[index], []).append(state.blocks[index])
        state.cached_blocks = max(first, full)

    def spend(self, state: RequestState) -> None:
        """Its blocks are found no more, but keep their place."""
        for block in state.blocks[: state.cached_blocks]:
            self._forget(block)
            self.hashes[block] = SPENT

    def release(self, blocks: Sequence[int]) -> None:
        """Tail first: blocks with a hash to the end of the queue, the others to its front, as one group."""
        front: list[int] = []
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block]:
                continue
            if self.hashes[block] is None:
                front.append(block)
            else:
                self.free[block] = None
        for block in reversed(front):
            self.free[block] = None
            self.free.move_to_end(block, last=False)

    def named(self) -> dict[int, int]:
        """Hashes by block."""
        return {block: name for block, name in enumerate(self.hashes) if name is not None and name != SPENT}
