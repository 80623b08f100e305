"""The exact token ids of a prompt, as an engine will see them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self, cast

TOKEN_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class PromptTokens:
    """Token ids, and what else an engine's prefix cache tells prompts apart by."""

    ids: bytes
    """Unsigned 64-bit numbers in this machine's byte order."""
    model: str = ""
    """As the request names it: an adapter's name keeps its blocks apart."""
    cache_salt: str = ""
    chains: dict[tuple[int, str], list[int]] = field(default_factory=dict, repr=False)
    """Notes of the index that looks for this prompt: names of its leading blocks, by block size and adapter."""

    @classmethod
    def of(cls, ids: Sequence[object], *, model: str = "", cache_salt: str = "") -> Self:
        """Raises TypeError or OverflowError if one of `ids` is no token id."""
        return cls(packed(ids), model, cache_salt)

    def __len__(self) -> int:
        return len(self.ids) // TOKEN_BYTES


def packed(ids: Sequence[object]) -> bytes:
    """Token ids as `PromptTokens.ids` has them. Raises TypeError or OverflowError if one is no token id."""
    return array("Q", cast("Sequence[int]", ids)).tobytes()
