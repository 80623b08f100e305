"""From an engine's KV events to the prefix index.

An event names blocks by the engine's own hashes, which depend on its version, settings and, by default, on Python's
pickle. It also carries the token ids of what was stored, so each block is named anew with our hash and the engine's
name is kept beside it for the removal (vLLM's `BlockStored`, `BlockRemoved`, `AllBlocksCleared`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice

from ballast_core.beliefs.block_hashes import token_block_hashes
from ballast_core.beliefs.prefix_index import PrefixIndex


class KvEventFeed:
    """Feeds one index from the events of many endpoints. The index works in blocks of `block_size` tokens."""

    def __init__(self, index: PrefixIndex, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size: must be 1 or more, not {block_size!r}")
        self.index = index
        self.block_size = block_size
        self._names: dict[int, dict[Hashable, int]] = {}
        """By slot: the engine's name of a block -> ours."""

    def stored(
        self,
        slot: int,
        *,
        block_hashes: Sequence[Hashable],
        token_ids: Sequence[int],
        block_size: int,
        now_s: float,
        parent_block_hash: Hashable | None = None,
        salt: bytes = b"",
    ) -> int:
        """`BlockStored`: these blocks, one after the other, follow the parent (None: they begin a prompt).

        Returns how many blocks were taken in: 0 if the endpoint is not in the index, if the engine's block size is
        not the index's, or if the parent is not known (its event was missed), so that the rest cannot be named.
        `salt` as in `token_block_hashes`; it must be what the router uses for the same traffic.
        """
        if block_size != self.block_size or len(token_ids) < len(block_hashes) * block_size:
            return 0
        capacity = self.index.capacity_blocks(slot)
        if capacity == 0:
            return 0
        names = self._names.setdefault(slot, {})
        parent = None
        if parent_block_hash is not None:
            parent = names.get(parent_block_hash)
            if parent is None:
                return 0
        ours = token_block_hashes(token_ids, block_size, salt=salt, parent=parent)[: len(block_hashes)]
        for engines, name in zip(block_hashes, ours, strict=True):
            names.pop(engines, None)
            names[engines] = name
        # An engine holds no more than its capacity: what is older was evicted by an event that got lost.
        for engines in list(islice(names, max(len(names) - capacity, 0))):
            del names[engines]
        self.index.stored(slot, ours, now_s)
        return len(ours)

    def removed(self, slot: int, *, block_hashes: Sequence[Hashable], now_s: float) -> int:
        """`BlockRemoved`. Returns how many of the blocks were known."""
        names = self._names.get(slot, {})
        ours = [names.pop(name) for name in block_hashes if name in names]
        self.index.removed(slot, ours, now_s)
        return len(ours)

    def cleared(self, slot: int, *, now_s: float) -> None:
        """`AllBlocksCleared`."""
        self._names.pop(slot, None)
        self.index.cleared(slot, now_s)

    def forget(self, slot: int) -> None:
        """The endpoint is gone, or its events were missed for good. Tell the index which of both."""
        self._names.pop(slot, None)
