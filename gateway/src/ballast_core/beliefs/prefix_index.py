"""The prefix index: which endpoint holds which prefix blocks in its KV cache.

Approximate mode: an endpoint is believed to cache every prompt that we route to it, and to evict the least recently
used blocks beyond its capacity. Exact mode: if an endpoint reports KV events, its reports decide. A block that we route
there then counts only until its report arrives, or is overdue.

For each block the index keeps its holders as a set of bits in one integer. A prompt is matched by walking its blocks
and intersecting these sets: one intersection per block, however many endpoints there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from ballast_core.arrays import IntArray

_FEW_BITS = 8


@dataclass(slots=True)
class _Cache:
    """The blocks of one endpoint."""

    capacity_blocks: int
    bit: int
    blocks: dict[int, None] = field(default_factory=dict)
    """Least recently used first. In exact mode: the reported blocks."""
    exact: bool = False
    routed: dict[int, float] = field(default_factory=dict)
    """In exact mode: blocks routed there and not reported yet, with the time until which they count."""


class PrefixIndex:
    """The holders of each block. Endpoints are given by slot, blocks by hash (`beliefs.block_hashes`)."""

    def __init__(self, *, confirm_s: float = 30.0) -> None:
        """`confirm_s`: seconds for which a block routed to an endpoint in exact mode counts without a report."""
        if not confirm_s >= 0:
            raise ValueError(f"confirm_s: must be 0 or more, not {confirm_s!r}")
        self.confirm_s = confirm_s
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
            self._drop(cache, [*cache.blocks, *cache.routed])

    def capacity_blocks(self, slot: int) -> int:
        """How many blocks the endpoint can hold; 0 if it is not known."""
        cache = self._caches.get(slot)
        return 0 if cache is None else cache.capacity_blocks

    def blocks(self, slot: int) -> int:
        """How many blocks the endpoint is believed to hold; 0 if it is not known."""
        cache = self._caches.get(slot)
        return 0 if cache is None else len(cache.blocks) + len(cache.routed)

    # --- what we do ----------------------------------------------------------------------------------------------

    def record(self, slot: int, hashes: Sequence[int], now_s: float) -> None:
        """A prompt with these blocks was routed to the endpoint, which will hold them. Unknown slots are ignored."""
        cache = self._caches.get(slot)
        if cache is None:
            return
        if cache.exact:
            self._expire(cache, now_s)
            until_s = now_s + self.confirm_s
            for block in hashes:
                if block not in cache.blocks:
                    cache.routed.pop(block, None)
                    cache.routed[block] = until_s
                    self._hold(cache, block)
            self._bound(cache, cache.routed)
            return
        self._use(cache, hashes[: cache.capacity_blocks])

    def _use(self, cache: _Cache, hashes: Sequence[int]) -> None:
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
        self._bound(cache, blocks)

    def _bound(self, cache: _Cache, held: Collection[int]) -> None:
        """Drop the oldest blocks beyond the capacity: reports of evictions may get lost."""
        excess = len(held) - cache.capacity_blocks
        if excess > 0:
            self._drop(cache, list(islice(held, excess)))

    def match(self, hashes: Sequence[int]) -> IntArray:
        """How many leading blocks each endpoint holds: one entry per slot, 0 where there is no endpoint. Read only.

        Asked again for the same tuple, for another stage of a request, it has the answer at hand.
        """
        if self._answer is None or hashes is not self._asked or not isinstance(hashes, tuple):
            self._asked, self._answer = hashes, self._match(hashes)
            self._answer.flags.writeable = False
        return self._answer

    def _match(self, hashes: Sequence[int]) -> IntArray:
        matched: IntArray = np.zeros(self._slots, np.int64)
        holders = self._holders
        alive = holders.get(hashes[0], 0) if hashes else 0
        depth = 0
        for depth, block in enumerate(hashes):
            still = alive & holders.get(block, 0)
            if still != alive:
                _set_bits(matched, alive ^ still, depth)
                alive = still
                if not alive:
                    return matched
        if alive:
            _set_bits(matched, alive, depth + 1)
        return matched

    # --- what endpoints report: KV events --------------------------------------------------------------------------

    def stored(self, slot: int, hashes: Iterable[int], now_s: float) -> None:
        """The endpoint reports these blocks as cached. Its first report turns exact mode on.

        Blocks believed before count for another `confirm_s`: their reports may have been missed.
        """
        cache = self._report(slot, now_s)
        if cache is None:
            return
        for block in hashes:
            cache.routed.pop(block, None)
            cache.blocks[block] = None
            self._hold(cache, block)
        self._bound(cache, cache.blocks)

    def removed(self, slot: int, hashes: Iterable[int], now_s: float) -> None:
        """The endpoint reports these blocks as evicted."""
        cache = self._report(slot, now_s)
        if cache is not None:
            self._drop(cache, hashes)

    def cleared(self, slot: int, now_s: float) -> None:
        """The endpoint reports that its whole cache was cleared, or that its reports start again."""
        cache = self._report(slot, now_s)
        if cache is not None:
            self._drop(cache, [*cache.blocks, *cache.routed])

    def lost_events(self, slot: int) -> None:
        """Reports of the endpoint were lost for good: return to approximate mode, starting from the known blocks."""
        cache = self._caches.get(slot)
        if cache is not None and cache.exact:
            cache.exact = False
            routed, cache.routed = list(cache.routed), {}
            for block in routed:
                cache.blocks[block] = None
            self._use(cache, ())

    def _report(self, slot: int, now_s: float) -> _Cache | None:
        cache = self._caches.get(slot)
        if cache is None:
            return None
        if not cache.exact:
            cache.exact = True
            cache.routed = dict.fromkeys(cache.blocks, now_s + self.confirm_s)
            cache.blocks = {}
        self._expire(cache, now_s)
        return cache

    def _expire(self, cache: _Cache, now_s: float) -> None:
        """Drop blocks that were routed and whose report is overdue; `routed` is ordered by time."""
        gone = []
        for block, until_s in cache.routed.items():
            if until_s > now_s:
                break
            gone.append(block)
        self._drop(cache, gone)

    def _hold(self, cache: _Cache, block: int) -> None:
        self._holders[block] = self._holders.get(block, 0) | cache.bit
        self._answer = None

    def _drop(self, cache: _Cache, hashes: Iterable[int]) -> None:
        holders, bit = self._holders, cache.bit
        self._answer = None
        for block in hashes:
            known = block in cache.blocks or block in cache.routed
            cache.blocks.pop(block, None)
            cache.routed.pop(block, None)
            if known:
                left = holders[block] & ~bit
                if left:
                    holders[block] = left
                else:
                    del holders[block]


def _set_bits(target: IntArray, bits: int, value: int) -> None:
    """target[k] = value for every bit k that is set."""
    if bits.bit_count() <= _FEW_BITS:
        while bits:
            lowest = bits & -bits
            target[lowest.bit_length() - 1] = value
            bits ^= lowest
        return
    data = np.frombuffer(bits.to_bytes((len(target) + 7) // 8, "little"), np.uint8)
    target[np.unpackbits(data, bitorder="little", count=len(target)).view(np.bool_)] = value
