"""What an engine reports of its prefix cache: vLLM's KV events (`vllm/distributed/kv_events.py`), read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

BlockName: TypeAlias = int | bytes
"""The engine's own hash of a block and everything before it."""
ExtraKeys: TypeAlias = tuple[object, ...] | None
"""What else makes a block what it is: adapter, images, the prompt's cache salt. Hashable; None if nothing does."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """`BlockStored`: these consecutive blocks can be hit from now on. Each one is reported once for each copy."""

    names: tuple[BlockName, ...]
    parent: BlockName | None
    """The block before the first one; None if that begins a prompt."""
    ids: bytes
    """Their tokens, as `PromptTokens.ids`."""
    block_size: int
    """Tokens of one block."""
    extras: tuple[ExtraKeys, ...] = ()
    """One for each block; empty if no block has any."""
    adapter: str = ""
    """Name of the LoRA adapter; empty for the base model."""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """`BlockRemoved`: one copy of each of these blocks was evicted."""

    names: tuple[BlockName, ...]


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """`AllBlocksCleared`: nothing is cached any more."""


@dataclass(frozen=True, slots=True)
class HistoryTold:
    """None of vLLM's: all that was reported before the listener came has been repeated to it."""


KvReport: TypeAlias = BlocksStored | BlocksRemoved | CacheCleared | HistoryTold
