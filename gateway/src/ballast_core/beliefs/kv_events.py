"""Feeds the prefix index from an engine's KV events (vLLM's `BlockStored`, `BlockRemoved`, `AllBlocksCleared`).

An event identifies blocks by the engine's own hashes. These depend on its version, its settings and, by default, on
Python's pickle. A `BlockStored` also carries the token ids, from which our hash is computed; the engine's hash is kept
with it for the removal.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice

from ballast_core.beliefs.block_hashes import token_block_hashes
from ballast_core.beliefs.prefix_index import PrefixIndex


class KvEventFeed:
    """Feeds one index from the events of many endpoints. The index uses blocks of `block_size` tokens."""

    def __init__(self, index: PrefixIndex, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size: must be 1 or more, not {block_size!r}")
        self.index = index
        self.block_size = block_size
        self._hashes: dict[int, dict[Hashable, int]] = {}
        """By slot: the engine's hash of a block -> ours."""

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
        """`BlockStored`: these consecutive blocks follow the parent (None: they begin a prompt).

        Returns how many blocks were added to the index. 0 if the endpoint is not in the index, if the engine's block
        size differs from the index's, or if the parent is unknown because its event was missed. `salt` is that of
        `token_block_hashes`; it must equal the one that the router uses for the same traffic.
        """
        if block_size != self.block_size or len(token_ids) < len(block_hashes) * block_size:
            return 0
        capacity = self.index.capacity_blocks(slot)
        if capacity == 0:
            return 0
        known = self._hashes.setdefault(slot, {})
        parent = None
        if parent_block_hash is not None:
            parent = known.get(parent_block_hash)
            if parent is None:
                return 0
        ours = token_block_hashes(token_ids, block_size, salt=salt, parent=parent)[: len(block_hashes)]
        for engines, our in zip(block_hashes, ours, strict=True):
            known.pop(engines, None)
            known[engines] = our
        # An engine holds no more blocks than its capacity: older ones were evicted, and the event got lost.
        for engines in list(islice(known, max(len(known) - capacity, 0))):
            del known[engines]
        self.index.stored(slot, ours, now_s)
        return len(ours)

    def removed(self, slot: int, *, block_hashes: Sequence[Hashable], now_s: float) -> int:
        """`BlockRemoved`. Returns how many of the blocks were known."""
        known = self._hashes.get(slot, {})
        ours = [known.pop(engines) for engines in block_hashes if engines in known]
        self.index.removed(slot, ours, now_s)
        return len(ours)

    def cleared(self, slot: int, *, now_s: float) -> None:
        """`AllBlocksCleared`: the endpoint's whole cache is empty."""
        self._hashes.pop(slot, None)
        self.index.cleared(slot, now_s)

    def forget(self, slot: int) -> None:
        """The endpoint is gone, or its events were lost for good. The caller reports which of both to the index."""
        self._hashes.pop(slot, None)
