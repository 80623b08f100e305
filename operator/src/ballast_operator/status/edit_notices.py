"""What people are told of foreign edits: the first of each object at once, those that follow together.

Another controller or a person may change the same object again and again, and each look sets it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ballast_api.conditions import Reason
from ballast_operator.edits import Edit
from ballast_operator.kinds import ObjectKey
from ballast_operator.status.notice import Notice

TELL_S: Final = 600.0
"""Seconds in which one object is the subject of one Event at most."""
_MOST_FIELDS: Final = 5


@dataclass(slots=True)
class EditNotices:
    """Of one ServingPool."""

    _told_s: dict[ObjectKey, float] = field(default_factory=dict)
    _untold: dict[ObjectKey, int] = field(default_factory=dict)

    def of(self, edits: Iterable[Edit], now_s: float) -> Iterator[Notice]:
        """What to say now of edits that were set back. `now_s`: on one clock."""
        for edit in edits:
            told_s, untold = self._told_s.get(edit.key), self._untold.pop(edit.key, 0)
            if told_s is not None and now_s - told_s < TELL_S:
                self._untold[edit.key] = untold + 1
                continue
            self._told_s[edit.key] = now_s
            yield Notice(Reason.EDIT_REVERTED, _text(edit, untold), warning=True)


def _text(edit: Edit, untold: int) -> str:
    who = ", ".join(edit.by) or "somebody"
    shown = ", ".join(edit.fields[:_MOST_FIELDS])
    more = f" and {len(edit.fields) - _MOST_FIELDS} more" if len(edit.fields) > _MOST_FIELDS else ""
    said = f"changed {shown}{more}; set back" if edit.fields else "deleted it; made again"
    again = f" (and {untold} times since the last Event about it)" if untold else ""
    return f"{edit.key}: {who} {said}{again}"
