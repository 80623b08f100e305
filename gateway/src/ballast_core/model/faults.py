"""Faults of engines: why a leg failed, as far as that can be seen from outside."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Why a leg failed. Faults of ours or of the client are none of these."""

    UNREACHABLE = "unreachable"
    """No connection: the engine was not asked."""
    BROKE = "broke"
    """The connection or the stream broke, what came was garbage, or a status of success had an error in its body."""
    ERROR = "error"
    """A status of 5xx."""
    REFUSED = "refused"
    """A 4xx that another engine may not give: another key, model name or context length."""
    BUSY = "busy"
    """It takes no more for now: 429, 503 with Retry-After, or vLLM's 503 of a full queue."""
    SILENT = "silent"
    """Nothing came for too long."""
