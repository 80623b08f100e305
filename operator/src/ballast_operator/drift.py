"""Whether a write would change anything: the desired object against the live one. Pure.

Server-side apply of an unchanged object changes nothing, but it is a request, for every object, at every look. The
live object holds all that is needed: its values, and in `managedFields` the fields that we applied last. A write is due
when (1) we never applied the object, (2) a desired value is missing or different, or (3) we own a field that is no
longer desired. Fields that others own do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ballast_operator.kinds import Manifest


def differs(desired: Manifest, live: Manifest, manager: str) -> bool:
    """Whether applying `desired` as `manager` would change `live`."""
    owned = applied_fields(live, manager)
    return owned is None or not _covers(live, desired) or _has_stale_field(owned, desired)


def applied_fields(live: Manifest, manager: str) -> Mapping[str, Any] | None:
    """What `manager` applied to the object itself (`fieldsV1`), or None if it never did."""
    for entry in live["metadata"].get("managedFields") or ():
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Mapping[str, Any] = entry.get("fieldsV1") or {}
            return fields
    return None


_LIST_KEYS: Final = ("name", "uid", "mountPath", "containerPort", "port", "type", "topologyKey", "ip", "number")
"""Fields that identify the entries of a list; the first that all entries have, each its own, counts."""
_QUANTITY_PARENTS: Final = frozenset({"limits", "requests", "capacity"})
_QUANTITY_FIELDS: Final = frozenset({"sizeLimit", "divisor"})


def _covers(live: Any, desired: Any, *, quantity: bool = False, field: str = "") -> bool:
    if isinstance(desired, Mapping):
        return (
            isinstance(live, Mapping)
            and all(
                key in live
                and _covers(live[key], value, quantity=field in _QUANTITY_PARENTS or key in _QUANTITY_FIELDS, field=key)
                for key, value in desired.items()
            )
        ) or (live is None and not desired)
    if isinstance(desired, (list, tuple)):
        return isinstance(live, list) and _covers_list(live, desired)
    if quantity:
        return bool(_quantity(live) == _quantity(desired))
    return bool(live == desired) and isinstance(live, bool) == isinstance(desired, bool)


def _covers_list(live: list[Any], desired: Sequence[Any]) -> bool:
    key = next((key for key in _LIST_KEYS if _identifies(key, desired)), None)
    if key is None or not desired:
        return len(live) == len(desired) and all(_covers(a, b) for a, b in zip(live, desired, strict=True))
    by_key = {item.get(key): item for item in live if isinstance(item, Mapping)}
    return all(item[key] in by_key and _covers(by_key[item[key]], item) for item in desired)


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
