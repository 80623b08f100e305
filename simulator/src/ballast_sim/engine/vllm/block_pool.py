"""KV blocks: a pool with reference counts, a prefix cache by chained hash, and an LRU free queue.

Follows vLLM's v1/core/block_pool.py. A freed block keeps its hash, and can be hit, until the pool hands it out again.
Block 0 is vLLM's null block and is never handed out.

The same queue and the same hits as vLLM's, kept in pieces so that a list of blocks moves at once. The free queue is, in
order: blocks without a hash, the last released first; blocks that were never handed out; blocks with a hash, one group
for each list that was released. Holders of a block are counted only while there are several. The blocks of content that
no other request shares are only *claimed*: they get their hashes when somebody looks for such content after all.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ballast_sim.engine.content import BlockHashes
from ballast_sim.engine.requests import RequestState


@dataclass(slots=True, eq=False)
class _Group:
    """Free blocks with a hash, in the order of a request's tokens: the last is handed out first."""

    blocks: list[int]
    claim: BlockHashes | None
    """The content whose hashes they have by claim."""


class CacheListener(Protocol):
    """Hears what can be hit: what vLLM's KV events tell. Only of content that is shared (`BlockHashes.shared`)."""

    def stored(self, state: RequestState, first: int, last: int) -> None:
        """The request's blocks `first` up to `last` got their hashes."""
        ...

    def removed(self, block_hash: int) -> None:
        """One block of this hash lost it."""
        ...

    def cleared(self) -> None:
        """All blocks lost theirs."""
        ...


class BlockPool:
    """All KV blocks of one engine."""

    __slots__ = (
        "_block_hash",
        "_by_hash",
        "_caching",
        "_claims",
        "_copies",
        "_fresh",
        "_gaps",
        "_groups",
        "_idle",
        "_looked_for",
        "_more_holders",
        "_passed_over",
        "_unnamed",
        "block_size",
        "free_blocks",
        "listener",
        "usable_blocks",
    )

    def __init__(self, kv_blocks: int, block_size: int, caching: bool) -> None:
        """`kv_blocks` with the null block."""
        self.block_size = block_size
        self.usable_blocks = kv_blocks - 1
        self.free_blocks = kv_blocks - 1
        """Blocks that can be handed out, those that could still be hit included."""
        self.listener: CacheListener | None = None
        self._caching = caching
        self._unnamed: list[int] = []  # the last goes first
        self._fresh = range(1, kv_blocks)
        self._groups: deque[_Group] = deque()
        self._passed_over: dict[int, int] = {}  # blocks that are in groups, so often, and not free there any more
        self._gaps = 0  # their sum
        self._more_holders: dict[int, int] = {}  # beyond the first
        self._block_hash: dict[int, int] = {}
        self._idle: set[int] = set()  # the free ones of these
        # Several blocks may hold the same content (computed twice at once): the oldest of them is hit.
        self._by_hash: dict[int, int] = {}
        self._copies: dict[int, list[int]] = {}  # the younger ones
        self._claims: dict[int, RequestState | _Group] = {}  # by the first hash: who holds the blocks
        self._looked_for: set[int] = set()  # first hashes of content that is not claimed any more, but named at once

    @property
    def usage_ratio(self) -> float:
        """vLLM's kv_cache_usage_perc."""
        return 1.0 - self.free_blocks / self.usable_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    # -- hits --------------------------------------------------------------------------------------------------------

    def longest_hit(self, state: RequestState) -> list[int]:
        """Blocks of the longest cached prefix; the last token is always left to compute."""
        limit = (state.num_tokens - 1) // self.block_size
        if not self._caching or limit <= 0:
            return []
        first = state.content.upto(1)[0]
        if first in self._claims:
            self._name_claimed(first, state.content)
        by_hash = self._by_hash
        if first not in by_hash:
            return []
        hit: list[int] = []
        for block_hash in state.content.upto(limit)[:limit]:
            block = by_hash.get(block_hash)
            if block is None:
                break
            hit.append(block)
        return hit

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of these hit blocks lie in the free queue (taking them makes room scarcer)."""
        return len(self._idle.intersection(blocks)) if blocks else 0

    def held_alone(self, blocks: Sequence[int]) -> int:
        """How many of these blocks have one holder: as many are free once it gives them back."""
        return len(blocks) - sum(map(self._more_holders.__contains__, blocks))

    def touch(self, blocks: Sequence[int]) -> None:
        """Share hit blocks with one more request."""
        idle, more = self._idle, self._more_holders
        for block in blocks:
            if block in idle:
                idle.remove(block)
                self._passed_over[block] = self._passed_over.get(block, 0) + 1
                self._gaps += 1
                self.free_blocks -= 1
            else:
                more[block] = more.get(block, 0) + 1
        if self._gaps > self.free_blocks:
            self._tidy()

    # -- handing out and taking back ---------------------------------------------------------------------------------

    def take(self, count: int) -> list[int]:
        """Blocks from the front of the free queue; they lose their hash. The caller has checked `free_blocks`."""
        if not count:
            return []
        self.free_blocks -= count
        taken: list[int] = []
        if self._unnamed:
            taken = _last(self._unnamed, count)
        if (missing := count - len(taken)) and self._fresh:
            taken += self._fresh[:missing]
            self._fresh = self._fresh[missing:]
        while missing := count - len(taken):
            taken += self._take_named(missing)
        return taken

    def _take_named(self, most: int) -> list[int]:
        """At most so many blocks of the first group."""
        group = self._groups[0]
        taken = _last(group.blocks, most)
        if self._passed_over:
            taken = [block for block in taken if not self._passes_over(block)]
        if not group.blocks:
            self._groups.popleft()
            if group.claim is not None:
                del self._claims[group.claim.upto(1)[0]]
        if self._block_hash:
            self._idle.difference_update(taken)
            self._unname(taken)
        return taken

    def _passes_over(self, block: int) -> bool:
        """Whether the block that comes next was hit since; its later place in the queue, if any, is the right one."""
        places = self._passed_over.get(block)
        if places is None:
            return False
        self._gaps -= 1
        if places > 1:
            self._passed_over[block] = places - 1
        else:
            del self._passed_over[block]
        return True

    def _tidy(self) -> None:
        """Take the blocks that were hit since out of the groups."""
        for group in self._groups:
            group.blocks = [block for block in group.blocks if not self._passes_over(block)]
        self._groups = deque(group for group in self._groups if group.blocks)

    def release(self, blocks: list[int], named: int, holder: RequestState | None = None) -> None:
        """Give back the blocks of a request, in the order of its tokens; the first `named` of them have a hash.

        They enter the free queue tail first: those without a hash at the front, as one group, the others at the end.
        The list is taken over. Without their `holder` they must not be claimed (`unclaim`).
        """
        rest = blocks[named:]
        self._unnamed += rest
        self.free_blocks += len(rest)
        if not named:
            return
        del blocks[named:]
        group = _Group(blocks, None)
        if holder is not None and self._claims.get(first := holder.content.upto(1)[0]) is holder:
            group.claim = holder.content
            self._claims[first] = group
        else:
            if self._more_holders:
                group.blocks = blocks = [block for block in blocks if not self._is_held_on(block)]
            if self._block_hash:
                self._idle.update(self._block_hash.keys() & blocks)
        if blocks:
            self._groups.append(group)
            self.free_blocks += len(blocks)

    def _is_held_on(self, block: int) -> bool:
        """One holder gives up a block. Returns whether there are others."""
        more = self._more_holders
        others = more.get(block)
        if others is None:
            return False
        if others > 1:
            more[block] = others - 1
        else:
            del more[block]
        return True

    # -- hashes ------------------------------------------------------------------------------------------------------

    def cache(self, state: RequestState, tokens: int) -> None:
        """Give their hash to the request's blocks that are full with the first `tokens` tokens."""
        full = tokens // self.block_size
        first = state.cached_blocks
        if full <= first or not self._caching:
            return
        content = state.content
        if not self._claims_alone(state, content.upto(1)[0]):
            self._name(state.blocks[first:full], content.upto(full)[first:full])
        state.cached_blocks = full
        if self.listener is not None:
            self.listener.stored(state, first, full)

    def _claims_alone(self, state: RequestState, first: int) -> bool:
        """Whether the request alone has its content: its blocks get hashes only if somebody looks for them."""
        holder = self._claims.get(first)
        known = state.cached_blocks or state.content.shared or first in self._looked_for or first in self._by_hash
        if holder is None and not known:
            holder = self._claims[first] = state
        if holder is not None and holder is not state:
            self._name_claimed(first, state.content)
        return holder is state

    def _name_claimed(self, first: int, content: BlockHashes) -> None:
        """Somebody looks for claimed content: give its blocks their hashes, now and from now on."""
        holder = self._claims.pop(first)
        self._looked_for.add(first)
        if isinstance(holder, _Group):
            blocks, holder.claim = holder.blocks, None
            self._idle.update(blocks)
        else:
            blocks = holder.blocks[: holder.cached_blocks]
        self._name(blocks, content.upto(len(blocks))[: len(blocks)])

    def unclaim(self, state: RequestState) -> None:
        """Give the blocks that a request has by claim their hashes: the claim cannot follow them."""
        if not state.content.shared and state.cached_blocks:
            first = state.content.upto(1)[0]
            if self._claims.get(first) is state:
                self._name_claimed(first, state.content)

    def _name(self, blocks: Iterable[int], names: Iterable[int]) -> None:
        """Give blocks their hashes."""
        hashes, oldest = self._block_hash, self._by_hash.setdefault
        for block, block_hash in zip(blocks, names, strict=True):
            hashes[block] = block_hash
            if oldest(block_hash, block) != block:
                self._copies.setdefault(block_hash, []).append(block)

    def _unname(self, blocks: Iterable[int]) -> None:
        """Take their hashes away from those of these blocks that have one."""
        hashes, by_hash, copies = self._block_hash, self._by_hash, self._copies
        for block in blocks:
            block_hash = hashes.pop(block, None)
            if block_hash is None:
                continue
            if self.listener is not None:
                self.listener.removed(block_hash)
            if block_hash in copies:
                self._forget(block, block_hash)
            else:
                del by_hash[block_hash]

    def _forget(self, block: int, block_hash: int) -> None:
        """Of content that several blocks hold: the oldest that is left is hit from now on."""
        copies = self._copies[block_hash]
        if self._by_hash[block_hash] == block:
            self._by_hash[block_hash] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[block_hash]

    def cache_next(self, states: Iterable[RequestState]) -> None:
        """Give the next block of each of these requests, which its tokens fill, its hash."""
        for state in states:
            self.cache(state, (state.cached_blocks + 1) * self.block_size)

    def spend(self, state: RequestState) -> None:
        """A request has ended whose content will not be looked up again: no block is hit for it any more."""
        if not state.cached_blocks:
            return
        first = state.content.upto(1)[0]
        if self._claims.get(first) is state:
            del self._claims[first]
        else:
            self._unname(state.blocks[: state.cached_blocks])

    def reset_prefix_cache(self) -> bool:
        """Take all hashes away, the free queue's order kept; False, and nothing is done, while a block is in use."""
        if self.free_blocks < self.usable_blocks:
            return False
        queue, _, _ = self.contents()
        self._unnamed, self._fresh = queue[::-1], range(0)
        self._groups.clear()
        self._passed_over.clear()
        self._gaps = 0
        self._block_hash.clear()
        self._idle.clear()
        self._by_hash.clear()
        self._copies.clear()
        self._claims.clear()
        if self.listener is not None:
            self.listener.cleared()
        return True

    # -- what tests compare ------------------------------------------------------------------------------------------

    def contents(self) -> tuple[list[int], dict[int, int], dict[int, int]]:
        """The free queue in order; hashes by block; by block, how many requests hold it beyond the first.

        All that decides what comes next.
        """
        hashes = dict(self._block_hash)
        for holder in self._claims.values():
            if isinstance(holder, _Group):
                assert holder.claim is not None
                blocks, content = holder.blocks, holder.claim
            else:
                blocks, content = holder.blocks[: holder.cached_blocks], holder.content
            hashes |= zip(blocks, content.upto(len(blocks)), strict=False)
        queue = [*reversed(self._unnamed), *self._fresh]
        passed_over = self._passed_over.copy()
        for group in self._groups:
            for block in reversed(group.blocks):
                if passed_over.get(block):
                    passed_over[block] -= 1
                else:
                    queue.append(block)
        return queue, hashes, dict(self._more_holders)

    def check(self, held: Iterable[Iterable[int]]) -> None:
        """Raise AssertionError unless every block is free or held as often as counted: the pool's own invariant."""
        holders = Counter(block for blocks in held for block in blocks)
        more = {block: count - 1 for block, count in holders.items() if count > 1}
        assert more == self._more_holders, "reference counts and holders disagree"
        queue, hashes, _ = self.contents()
        assert len(queue) == self.free_blocks, "the free queue and its length disagree"
        assert sorted([*queue, *holders]) == [*range(1, self.usable_blocks + 1)], "a block is neither free nor held"
        assert self._idle == self._block_hash.keys() & queue
        assert {*self._by_hash.values(), *(block for blocks in self._copies.values() for block in blocks)} == set(
            self._block_hash
        )
        assert hashes.keys().isdisjoint(self._unnamed)


def _last(blocks: list[int], most: int) -> list[int]:
    """Take at most so many from the end of a list, the last one first."""
    taken = blocks[: -most - 1 : -1]
    del blocks[-most:]
    return taken
