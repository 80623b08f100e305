"""Hashes of prefix blocks: 64 bits over a block's tokens and everything before them.

Two prompts share a prefix exactly as far as their leading hashes agree. Only whole blocks have a hash, since only whole
blocks are cached. The hashes are our own: an engine's hashes depend on its version and settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_DIGEST_BYTES = 8
_ROOT = b"\0" * _DIGEST_BYTES


def token_block_hashes(
    token_ids: Sequence[int] | NDArray[np.integer], block_size: int, *, salt: bytes = b""
) -> list[int]:
    """Hashes of the whole blocks of these tokens, in order.

    `salt` separates what must not be shared: model, adapter, tenant's cache salt, images. It enters the first hash and,
    through the chain, all others. Raises ValueError for a token id that is not an unsigned 32-bit number.
    """
    _check_block_size(block_size)
    tokens = np.asarray(token_ids)
    if tokens.size and (tokens.ndim != 1 or tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= 2**32):
        raise ValueError("token_ids: must be a list of whole numbers from 0 to 4294967295")
    data = tokens.astype("<u4").tobytes()
    step = 4 * block_size
    digest = blake2b(salt, digest_size=_DIGEST_BYTES).digest() if salt else _ROOT
    hashes = []
    for start in range(0, len(data) - step + 1, step):
        digest = blake2b(digest + data[start : start + step], digest_size=_DIGEST_BYTES).digest()
        hashes.append(int.from_bytes(digest, "little"))
    return hashes


def text_block_hashes(text: str, block_chars: int, *, salt: bytes = b"") -> list[int]:
    """Hashes of the whole blocks of a text whose tokens are not known: `block_chars` characters make a block.

    Chained and salted as in `token_block_hashes`. Two texts share hashes as far as their whole blocks agree. A text
    never shares a hash with the same prompt given as token ids. Lone surrogates are characters like any other.
    """
    _check_block_size(block_chars)
    digest = blake2b(b"text" + salt, digest_size=_DIGEST_BYTES).digest()
    hashes = []
    for start in range(0, len(text) - block_chars + 1, block_chars):
        block = text[start : start + block_chars].encode("utf-8", "surrogatepass")
        digest = blake2b(digest + block, digest_size=_DIGEST_BYTES).digest()
        hashes.append(int.from_bytes(digest, "little"))
    return hashes


def trace_block_hashes(hash_ids: Sequence[int], input_tokens: int, block_size: int, *, salt: bytes = b"") -> list[int]:
    """Hashes for a trace row, whose `hash_ids` each identify a block and everything before it.

    The last id may stand for a partial block, which is dropped. `salt` separates trace files: ids have no meaning
    across files.
    """
    _check_block_size(block_size)
    whole = hash_ids[: max(input_tokens, 0) // block_size]
    seed = blake2b(salt, digest_size=_DIGEST_BYTES).digest()
    return [
        int.from_bytes(blake2b(seed + int(block).to_bytes(8, "little", signed=True), digest_size=8).digest(), "little")
        for block in whole
    ]


def _check_block_size(block_size: int) -> None:
    if block_size < 1:
        raise ValueError(f"block_size: must be 1 or more, not {block_size!r}")
