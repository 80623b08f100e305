"""Which of our objects were as we want them, and what others have changed of them since.

A write that is due has one of two causes: we want something else than before, or somebody has changed what we want.
Two things tell the second one:

* the object was as we want it at an earlier look, and we still want the very same (it need not exist any more);
* a field has another value than we want, another field manager owns it, and we do not: a change that came while no
  operator looked, or that the plan has followed for a while, as an instance too many that is emptied first.

An answer to our own write that is not what we wrote (an admission webhook changes it) is never in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from ballast_api import names
from ballast_operator.edits import Edit
from ballast_operator.kinds import Manifest, ObjectKey, key_of
from ballast_operator.planning.ownership import applied_fields
from ballast_operator.writing.drift import Path, changed_fields, differs

_Wish: TypeAlias = tuple[ObjectKey, str]
"""An object, and the field manager by which we want it."""
_DIGEST_BYTES: Final = 8


@dataclass(slots=True)
class InPlace:
    """Of one ServingPool, from look to look."""

    uid: str
    """Of the ServingPool: another one of the same name has other objects."""
    edits: list[Edit] = field(default_factory=list)
    """What was set back, until somebody takes it."""
    _digests: dict[_Wish, bytes] = field(default_factory=dict)
    """Of what we want of each object that has it."""

    def keep(self, wishes: Iterable[tuple[Manifest, str]]) -> None:
        """Forget all but these: what others are to change, or what is to go, is not in place."""
        wanted = {(key_of(manifest), manager) for manifest, manager in wishes}
        self._digests = {wish: digest for wish, digest in self._digests.items() if wish in wanted}

    def is_right(self, desired: Manifest, manager: str) -> None:
        """The object is as we want it."""
        self._digests[key_of(desired), manager] = _digest(desired)

    def edit_of(self, desired: Manifest, live: Manifest | None, manager: str) -> Edit | None:
        """What somebody else has changed of an object that is not as we want it; None: we want something else."""
        was_right = self._digests.get((key_of(desired), manager)) == _digest(desired)
        if live is None:
            return Edit(key_of(desired)) if was_right else None
        changed = changed_fields(desired, live, manager)
        owned = applied_fields(live, manager) or {}
        others = tuple(_others(live))
        if not was_right:
            taken = (path for path in changed if not _owns(owned, path))
            changed = tuple(path for path in taken if any(_owns(fields, path) for _, fields in others))
        if not changed:
            return None
        by = {who for who, fields in others if any(_owns(fields, path) for path in changed)}
        return Edit(key_of(desired), tuple(map(".".join, changed)), tuple(sorted(by)))

    def written(self, desired: Manifest, answer: Manifest, manager: str, edit: Edit | None) -> None:
        """The server has taken it."""
        if edit is not None:
            self.edits.append(edit)
        if differs(desired, answer, manager):
            self._digests.pop((key_of(desired), manager), None)
        else:
            self.is_right(desired, manager)

    def taken(self) -> list[Edit]:
        """What was set back since the last call."""
        found, self.edits = self.edits, []
        return found


def _digest(desired: Manifest) -> bytes:
    return blake2b(json.dumps(desired, sort_keys=True, default=list).encode(), digest_size=_DIGEST_BYTES).digest()


def _others(live: Manifest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Field managers that are not ours, with their `fieldsV1`."""
    for entry in live["metadata"].get("managedFields") or ():
        who = str(entry.get("manager", ""))
        if not who.startswith(names.MANAGER) and entry.get("subresource") != "status":
            yield who, entry.get("fieldsV1") or {}


def _owns(fields: Mapping[str, Any], path: Path) -> bool:
    """Whether these `fieldsV1` have the field, or a whole that it is in."""
    for depth, part in enumerate(path):
        if depth and not fields:
            return True
        name, _, entry = part.removesuffix("]").partition("[")
        if f"f:{name}" not in fields:
            return False
        fields = fields[f"f:{name}"]
        if entry and fields:
            keys = (key for key in fields if key.startswith("k:"))
            found = next((key for key in keys if entry in map(str, json.loads(key[2:]).values())), None)
            if found is None:
                return False
            fields = fields[found]
    return True
