"""What came of a plan: the objects that were written and those that were refused."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_operator.kinds import ObjectKey


@dataclass(frozen=True, slots=True)
class Refusal:
    """An object that could not be written or deleted."""

    key: ObjectKey
    message: str
    """Why: the API server's message, which names the field, or whose the object is."""
    taken: bool = False
    """Whether the object belongs to another owner."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one plan. Objects that were right already are in neither."""

    written: frozenset[ObjectKey] = frozenset()
    """Objects that were applied or deleted."""
    refusals: tuple[Refusal, ...] = ()
    """In the order of the plan."""

    def outdated(self) -> frozenset[ObjectKey]:
        """Objects that the plan wanted otherwise than they were observed."""
        return self.written.union(refusal.key for refusal in self.refusals)
