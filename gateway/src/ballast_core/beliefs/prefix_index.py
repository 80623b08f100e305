"""The approximate prefix index: which endpoint is believed to hold which prefix blocks in its KV cache.

An endpoint is believed to cache every prompt that we route to it, and to evict the least recently used blocks beyond
its capacity. Where engines report their KV events, `reported_prefixes` knows.

For each block the index keeps its holders as a set of bits in one integer. A prompt is matched by walking its blocks
and intersecting these sets: one intersection per block, however many endpoints there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from ballast_core.arrays import IntArray
from ballast_core.beliefs.bit_sets import set_bits


@dataclass(slots=True)
class _Cache:
    """The blocks of one endpoint."""

    capacity_blocks: int
    bit: int
    blocks: dict[int, None] = field(default_factory=dict)
    """Least recently used first."""


class PrefixIndex:
    """The holders of each block. Endpoints are given by slot, blocks by hash (`beliefs.block_hashes`)."""

    def __init__(self) -> None:
        self._caches: dict[int, _Cache] = {}
        self._holders: dict[int, int] = {}
        self._slots = 0
        """One more than the largest slot ever added: the length of what `match` returns."""
        self._asked: Sequence[int] = ()
        self._answer: IntArray | None = None
        """What `match` found for `_asked`; None once a holder has changed."""

    def __len__(self) -> int:
        """Number of different blocks held anywhere."""
        return len(self._holders)

    def add(self, slot: int, capacity_blocks: int) -> None:
        """A new endpoint has this slot; its cache is empty. Raises ValueError for a bad slot or capacity."""
        if slot < 0 or capacity_blocks < 1:
            raise ValueError(f"slot, capacity_blocks: must be 0 and 1 or more, not {slot!r} and {capacity_blocks!r}")
        self.remove(slot)
        self._caches[slot] = _Cache(capacity_blocks, 1 << slot)
        self._slots = max(self._slots, slot + 1)
        self._answer = None

    def remove(self, slot: int) -> None:
        """The endpoint is gone, and its cache with it."""
        cache = self._caches.pop(slot, None)
        if cache is not None:
            self._drop(cache, list(cache.blocks))

    def blocks(self, slot: int) -> int:
        """How many blocks the endpoint is believed to hold; 0 if it is not known."""
        cache = self._caches.get(slot)
        return 0 if cache is None else len(cache.blocks)

    def record(self, slot: int, hashes: Sequence[int], now_s: float) -> None:
        """A prompt with these blocks was routed to the endpoint, which will hold them. Unknown slots are ignored."""
        cache = self._caches.get(slot)
        if cache is None:
            return
        hashes = hashes[: cache.capacity_blocks]
        # From the last block to the first: a prompt's tail is then evicted before its head, as in vLLM. A head without
        # its tail is useful; a tail without its head is not.
        blocks, holders, bit = cache.blocks, self._holders, cache.bit
        self._answer = None
        for block in reversed(hashes):
            if block in blocks:
                del blocks[block]
            else:
                holders[block] = holders.get(block, 0) | bit
            blocks[block] = None
        excess = len(blocks) - cache.capacity_blocks
        if excess > 0:
            self._drop(cache, list(islice(blocks, excess)))

    def match(self, hashes: Sequence[int], block_tokens: int = 1) -> IntArray:
        """How many leading blocks each endpoint holds: one entry per slot, 0 where there is no endpoint. Read only.

        `block_tokens`: of how many tokens a block is, for an answer in tokens; the same at each call. Asked again for
        the same tuple, for another stage of a request, it has the answer at hand.
        """
        if self._answer is None or hashes is not self._asked or not isinstance(hashes, tuple):
            self._asked, self._answer = hashes, self._match(hashes, block_tokens)
            self._answer.setflags(write=False)
        return self._answer

    def _match(self, hashes: Sequence[int], block_tokens: int) -> IntArray:
        matched: IntArray = np.zeros(self._slots, np.int64)
        holders = self._holders
        alive = holders.get(hashes[0], 0) if hashes else 0
        depth = 0
        for depth, block in enumerate(hashes):
            still = alive & holders.get(block, 0)
            if still != alive:
                set_bits(matched, alive ^ still, depth * block_tokens)
                alive = still
                if not alive:
                    return matched
        if alive:
            set_bits(matched, alive, (depth + 1) * block_tokens)
        return matched

    def _drop(self, cache: _Cache, hashes: Iterable[int]) -> None:
        blocks, holders, bit = cache.blocks, self._holders, cache.bit
        self._answer = None
        for block in hashes:
            del blocks[block]
            left = holders[block] & ~bit
            if left:
                holders[block] = left
            else:
                del holders[block]
