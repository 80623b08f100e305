"""Values: what nobody changes once it is made, and what is made for every request.

Type checkers hold a `value` for frozen, and forbid assignments. At run time it is a plain dataclass with slots and a
hash: `dataclass(frozen=True)` takes five times as long to make (each field by `object.__setattr__`), which was some 3 %
of what a request costs the gateway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_T]) -> type[_T]:
    """A class decorator, in place of `dataclass(frozen=True, slots=True)` where many are made."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
