"""Merging a user's PodTemplate overlay over a generated pod template.

The rules, in the order in which they are tried:

1. null removes the field;
2. mappings merge, key by key;
3. `containers` and `initContainers` merge by `name`, each container as a mapping; new ones come after ours;
4. `env`, `volumes`, `imagePullSecrets` (by `name`), `volumeMounts` (by `mountPath`), `ports` (by `containerPort`),
   `hostAliases` (by `ip`) and `topologySpreadConstraints` (by `topologyKey`): an entry with a known key replaces
   ours as a whole, a new one comes after ours;
5. everything else, other lists included, replaces.

Labels and annotations are the exception: those that Ballast sets win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ballast_api.pod_template import MERGED, REPLACED
from ballast_operator.kinds import Manifest


def overlaid(template: Manifest, overlay: Manifest) -> Manifest:
    """`template` with `overlay` merged over it, both in the shape of a PodTemplateSpec. Neither is changed."""
    ours, theirs = template["metadata"], overlay.get("metadata", {})
    metadata = {**theirs, **ours} | {
        part: {**theirs.get(part, {}), **ours.get(part, {})}
        for part in ("labels", "annotations")
        if part in ours or theirs.get(part)
    }
    return {"metadata": metadata, "spec": merged(template["spec"], overlay.get("spec", {}))}


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> Manifest:
    """Two mappings by the rules of the module."""
    result = dict(base)
    for key, value in overlay.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _value(key, base.get(key), value)
    return result


def _value(field: str, base: Any, overlay: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(overlay, Mapping):
        return merged(base, overlay)
    if isinstance(base, Sequence) and isinstance(overlay, Sequence):
        if field in MERGED:
            return _by_key(base, overlay, MERGED[field], deep=True)
        if field in REPLACED:
            return _by_key(base, overlay, REPLACED[field], deep=False)
    return _without_nulls(overlay)


def _by_key(base: Sequence[Any], overlay: Sequence[Any], key: str, *, deep: bool) -> list[Any]:
    entries = {entry.get(key): entry for entry in base}
    for entry in overlay:
        known = entries.get(entry.get(key))
        entries[entry.get(key)] = merged(known, entry) if deep and known is not None else _without_nulls(entry)
    return list(entries.values())


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
