"""What people are told of that is no condition."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_api.conditions import Reason


@dataclass(frozen=True, slots=True)
class Notice:
    """An Event about no condition."""

    reason: Reason
    message: str
    warning: bool = False
