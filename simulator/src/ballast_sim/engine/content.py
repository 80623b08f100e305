"""A request's tokens as the prefix cache sees them: one chained hash for each full block.

Chained: a block's hash covers the block and everything before it (vLLM's v1/core/kv_cache_utils.py), so two requests
share a prefix exactly as far as their leading hashes agree. Python's hash of integers and of tuples of integers does
not depend on PYTHONHASHSEED; none of these hashes leave the process.
"""

from collections.abc import Sequence
from typing import Protocol
from zlib import crc32

_ROOT = 0x9E3779B97F4A7C15
_OUTPUT = -2
_UNIQUE = -3


class BlockHashes(Protocol):
    """The hashes of a request's full blocks: of its prompt and, once generated, of its output."""

    @property
    def shared(self) -> bool:
        """Whether a block may have the same hash as one of another request."""
        ...

    def upto(self, blocks: int) -> Sequence[int]:
        """At least the first `blocks` hashes. The engine asks only for blocks whose tokens exist."""
        ...


class UniqueContent:
    """Tokens that no other request shares; `key` tells requests apart."""

    __slots__ = ("_hashes", "_key")
    shared = False

    def __init__(self, key: int) -> None:
        """`key`: different for every request of a run."""
        self._key = key
        self._hashes: list[int] = []

    def upto(self, blocks: int) -> Sequence[int]:
        """See `BlockHashes`."""
        hashes = self._hashes
        if len(hashes) < blocks:
            key = self._key
            hashes += [hash((_UNIQUE, key, block)) for block in range(len(hashes), blocks)]
        return hashes


class TraceContent:
    """Tokens known by the prefix ids of a trace: equal leading ids mean equal blocks of `id_tokens` tokens.

    What lies beyond the ids is the request's own; outputs are the same for every request with the same prefix.
    """

    __slots__ = ("_block_size", "_covered", "_hashes", "_id_tokens", "_ids", "_input_tokens", "_key")
    shared = True

    def __init__(self, ids: Sequence[int], id_tokens: int, input_tokens: int, block_size: int, key: int) -> None:
        """`ids` cover `id_tokens` prompt tokens each, the last one possibly fewer; `key` is the request's own."""
        self._ids = ids
        self._id_tokens = id_tokens
        self._input_tokens = input_tokens
        self._block_size = block_size
        self._key = key
        self._covered = min(len(ids) * id_tokens, input_tokens)
        self._hashes: list[int] = []

    def upto(self, blocks: int) -> Sequence[int]:
        """See `BlockHashes`."""
        hashes, size, id_tokens = self._hashes, self._block_size, self._id_tokens
        parent = hashes[-1] if hashes else _ROOT
        start, end = len(hashes) * size, blocks * size
        while start < end:
            index, offset = divmod(start, id_tokens)
            # Most blocks lie within one id; those are hashed without a list of their pieces.
            for first in range(offset, min(id_tokens, offset + min(end, self._covered) - start) - size + 1, size):
                parent = hash((parent, self._ids[index], first, first + size))
                hashes.append(parent)
                start += size
            if start < end:
                parent = hash((parent, *self._pieces(start, start + size)))
                hashes.append(parent)
                start += size
        return hashes

    def _pieces(self, start: int, end: int) -> list[int]:
        """Which tokens lie in [start, end): runs of (source, first offset, last offset), flattened."""
        covered = self._covered
        pieces: list[int] = []
        position = start
        while position < end:
            if position < covered:
                index, offset = divmod(position, self._id_tokens)
                stop = min(end, covered, (index + 1) * self._id_tokens)
                pieces += (self._ids[index], offset, offset + stop - position)
            elif position < self._input_tokens:
                stop = min(end, self._input_tokens)
                pieces += (_UNIQUE, self._key, position)
            else:
                stop = end
                pieces += (_OUTPUT, position - start, end - start)
            position = stop
        return pieces


class TokenContent:
    """Tokens known one by one: the prompt's ids, then what `append` adds as the engine generates."""

    __slots__ = ("_block_size", "_hashes", "_root", "tokens")
    shared = True

    def __init__(self, tokens: list[int], block_size: int, adapter: str = "") -> None:
        """`tokens`: the prompt; the list is taken over and grows. Adapters share no blocks."""
        self.tokens = tokens
        self._root = _ROOT ^ crc32(adapter.encode())
        self._block_size = block_size
        self._hashes: list[int] = []

    def append(self, token: int) -> None:
        """One generated token."""
        self.tokens.append(token)

    def upto(self, blocks: int) -> Sequence[int]:
        """See `BlockHashes`."""
        hashes, size = self._hashes, self._block_size
        while len(hashes) < blocks:
            start = len(hashes) * size
            hashes.append(hash((hashes[-1] if hashes else self._root, *self.tokens[start : start + size])))
        return hashes
