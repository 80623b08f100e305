"""One problem."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_api.conditions import Reason


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps the cluster from the spec. `str()` is a sentence: field, what is wrong, fix."""

    reason: Reason
    """The reason of a condition that reports the problem first."""
    message: str
    """What is wrong: names objects and numbers."""
    field: str = ""
    """camelCase path in the ServingPool, such as `spec.pools[1].hardware`; empty where no field is to blame."""
    fix: str = ""
    """What to do, unless the message includes it."""

    def __str__(self) -> str:
        text = f"{self.field}: {self.message}" if self.field else self.message
        return f"{text}; {self.fix}" if self.fix else text
