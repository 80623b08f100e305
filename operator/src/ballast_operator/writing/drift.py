"""Whether a write would change anything: the desired object against the live one. Pure.

Server-side apply of an unchanged object changes nothing, but it is a request, for every object, at every look. The
live object holds all that is needed: its values, and in `managedFields` the fields that we applied last. A write is due
when (1) we never applied the object, (2) a desired value is missing or different, (3) we own a field that is no longer
desired, or (4) a list or mapping that we applied as a whole has other entries, or is not ours any more. Fields that
others own do not matter. The API server leaves out many a zero (an empty text, False, 0): one that we applied is not
missing while it is ours. A null asks for nothing. A field that an entry of (4) has and we do not want may be a default
of the server: that we wanted it before, a hash of the spec tells (`with_spec_hash`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from ballast_operator.kinds import Manifest
from ballast_operator.planning.ownership import applied_fields


def differs(desired: Manifest, live: Manifest, manager: str) -> bool:
    """Whether applying `desired` as `manager` would change `live`."""
    owned = applied_fields(live, manager)
    if owned is None or not _covers(live, desired, owned):
        return True
    return _has_stale_field(owned, desired) or any(_lost_fields(owned, desired))


def changed_fields(desired: Manifest, live: Manifest, manager: str) -> tuple[Path, ...]:
    """The desired fields that `live` does not have as `manager` applied them. Empty if it never applied the object, and
    where only fields that are no longer desired keep the two apart."""
    owned = applied_fields(live, manager)
    if owned is None:
        return ()
    lost = tuple(_lost_fields(owned, desired))
    changed = _uncovered(live, desired, owned, (), "")
    return (*(path for path in changed if not any(path[: len(one)] == one for one in lost)), *lost)


Path: TypeAlias = tuple[str, ...]
"""Names of fields from the object inwards; an entry of a list has its key: `containers[engine]`."""

_LIST_KEYS: Final = ("name", "uid", "mountPath", "containerPort", "port", "type", "topologyKey", "ip", "number")
"""Fields that identify the entries of a list; the first that all entries have, each its own, counts."""
_QUANTITY_PARENTS: Final = frozenset({"limits", "requests", "capacity"})
_QUANTITY_FIELDS: Final = frozenset({"sizeLimit", "divisor"})


_Owned = Mapping[str, Any]
_WHOLE: Final[_Owned] = MappingProxyType({})
"""fieldsV1 of what is applied as a whole: a list or mapping without owners of its parts. Others' entries go with it."""
_UNKNOWN: Final[_Owned] = MappingProxyType({".": {}})
"""fieldsV1 of what others may have a part in."""


def _covers(live: Any, desired: Any, owned: _Owned, *, quantity: bool = False, field: str = "") -> bool:
    if isinstance(desired, Mapping):
        return (
            isinstance(live, Mapping)
            and all(_covers_field(live, key, value, owned, field) for key, value in desired.items())
        ) or (live is None and not desired)
    if isinstance(desired, (list, tuple)):
        return isinstance(live, list) and _covers_list(live, desired, owned)
    if quantity:
        return bool(_quantity(live) == _quantity(desired))
    return bool(live == desired) and isinstance(live, bool) == isinstance(desired, bool)


def _covers_field(live: Mapping[str, Any], key: str, desired: Any, owned: _Owned, parent: str) -> bool:
    """Of one field of the mapping `live`, which the field `parent` holds."""
    below = _below(owned, key)
    if key not in live:
        # Who takes a field away takes it from us, too. An empty list is the same as none, and has no owner.
        return desired is None or (not desired and (isinstance(desired, (list, tuple)) or below is not _UNKNOWN))
    return desired is None or _covers(live[key], desired, below, quantity=_is_quantity(parent, key), field=key)


def _uncovered(live: Any, desired: Any, owned: _Owned, path: Path, field: str) -> Iterator[Path]:
    """Where `_covers` says no, as near to the leaves as it can be said."""
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        for key, value in desired.items():
            if _covers_field(live, key, value, owned, field):
                continue
            if key in live:
                yield from _uncovered(live[key], value, _below(owned, key), (*path, key), key)
            else:
                yield (*path, key)
        return
    key = _key_of_entries(desired) if isinstance(desired, (list, tuple)) and isinstance(live, list) else None
    if key is None or not owned:
        yield path
        return
    by_key = {item.get(key): item for item in live if isinstance(item, Mapping)}
    for item in desired:
        below, where = _entry(owned, item), (*path[:-1], f"{path[-1]}[{item[key]}]")
        if item[key] not in by_key:
            yield where
        elif not _covers(by_key[item[key]], item, below):
            yield from _uncovered(by_key[item[key]], item, below, where, "")


def _below(owned: _Owned, key: str) -> _Owned:
    """fieldsV1 of one field of a mapping."""
    return owned.get(f"f:{key}", _UNKNOWN) if owned else _WHOLE


def _is_quantity(parent: str, key: str) -> bool:
    return parent in _QUANTITY_PARENTS or key in _QUANTITY_FIELDS


def _covers_list(live: list[Any], desired: Sequence[Any], owned: _Owned) -> bool:
    key = _key_of_entries(desired)
    if key is None or not owned:
        return len(live) == len(desired) and all(_covers(a, b, owned) for a, b in zip(live, desired, strict=True))
    by_key = {item.get(key): item for item in live if isinstance(item, Mapping)}
    return all(item[key] in by_key and _covers(by_key[item[key]], item, _entry(owned, item)) for item in desired)


def _key_of_entries(desired: Sequence[Any]) -> str | None:
    """The field that tells the entries of a list apart; None of a list that is compared as a whole."""
    return next((key for key in _LIST_KEYS if _identifies(key, desired)), None) if desired else None


def _entry(owned: _Owned, item: Any) -> _Owned:
    """fieldsV1 of one entry of a list."""
    for path, below in owned.items():
        if path.startswith("k:") and _has_key(item, json.loads(path[2:])):
            found: _Owned = below
            return found
    return _UNKNOWN


def _identifies(key: str, entries: Sequence[Any]) -> bool:
    """Whether all entries have the field `key`, each another value: ports of two protocols may have one number."""
    values = [item[key] for item in entries if isinstance(item, Mapping) and key in item]
    return len(values) == len(entries) and all(value not in values[:index] for index, value in enumerate(values))


def _has_stale_field(owned: Mapping[str, Any], desired: Any) -> bool:
    """Whether `owned` goes beyond `desired`. fieldsV1: `f:` a field, `k:` a list entry by key, `v:` a set's value."""
    for path, below in owned.items():
        prefix, _, rest = path.partition(":")
        if path == "." or prefix not in ("f", "k", "v"):
            continue
        found = _step(prefix, rest, desired)
        if found is _MISSING or (below and _has_stale_field(below, found)):
            return True
    return False


def _lost_fields(owned: _Owned, desired: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """The lists and mappings that we want and of which no field is ours any more: who changes one that is applied as a
    whole (a Service's selector) owns it from then on, and what was added shows in no value of ours."""
    for key, value in desired.items():
        if not value or not isinstance(value, (Mapping, list, tuple)):
            continue
        below = owned.get(f"f:{key}")
        if below is None and key != "metadata":  # of which a name or uid is nobody's
            yield (*path, key)
        elif isinstance(value, Mapping) and (below or key == "metadata"):
            yield from _lost_fields(below or {}, value, (*path, key))


_MISSING: Final = object()


def _step(prefix: str, rest: str, desired: Any) -> Any:
    if prefix == "f":
        return desired.get(rest, _MISSING) if isinstance(desired, Mapping) else _MISSING
    if not isinstance(desired, (list, tuple)):
        return _MISSING
    wanted = json.loads(rest)
    if prefix == "v":
        return wanted if wanted in desired else _MISSING
    return next((item for item in desired if _has_key(item, wanted)), _MISSING)


def _has_key(item: Any, key: Mapping[str, Any]) -> bool:
    # A key field that we left out was filled in by the server with its default (a port's protocol).
    return isinstance(item, Mapping) and all(item.get(name, value) == value for name, value in key.items())


_SUFFIXES: Final = {
    **{suffix: Decimal(1000) ** power for suffix, power in (("n", -3), ("u", -2), ("m", -1), ("k", 1), ("M", 2))},
    **{suffix: Decimal(1000) ** power for suffix, power in (("G", 3), ("T", 4), ("P", 5), ("E", 6))},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}


def _quantity(value: Any) -> Any:
    """`500m` and 0.5 as one number; what is no quantity stays as it is."""
    text = str(value)
    for length in (2, 1):
        if len(text) > length and text[-length:] in _SUFFIXES:
            text, factor = text[:-length], _SUFFIXES[text[-length:]]
            break
    else:
        factor = Decimal(1)
    try:
        return Decimal(text) * factor
    except InvalidOperation:
        return value
