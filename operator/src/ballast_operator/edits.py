"""Foreign edits: what somebody else changed of our objects, and was set back."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_operator.kinds import ObjectKey


@dataclass(frozen=True, slots=True)
class Edit:
    """What was set back of one object."""

    key: ObjectKey
    fields: tuple[str, ...] = ()
    """Paths of fields, such as `spec.template.spec.containers[engine].image`; empty: the object was deleted."""
    by: tuple[str, ...] = ()
    """Field managers that own these fields; empty where the server does not say."""
