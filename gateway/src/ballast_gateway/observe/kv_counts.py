"""What was heard of engines' KV events: counted where they are listened to, shown in metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class KvCounts:
    """What was heard of all engines since the start."""

    batches: int = 0
    unreadable: int = 0
    gaps_filled: int = 0
    gaps_unfilled: int = 0
    """Times that reports began anew because some were missed."""
