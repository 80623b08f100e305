"""A store of objects that answers as the API server does where the operator's logic depends on it.

It keeps what is applied, notes the applied fields in `managedFields`, removes fields that the same manager stops to
apply, gives uids, and can die before its n-th write. The real API server runs in e2e/; this one makes every
interruption of every plan cheap to try.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from ballast_operator.cluster import ApiFailure
from ballast_operator.kinds import OPTIONAL_CHILDREN, SERVING_POOL, Kind, Manifest

StoreKey = tuple[str, str | None, str]


class Killed(Exception):
    """The process died before this write."""


class ObjectStore:
    """Objects by kind, namespace and name."""

    def __init__(self, *objects: Manifest, optional: Iterable[Kind] = OPTIONAL_CHILDREN) -> None:
        self.objects: dict[StoreKey, Manifest] = {}
        self.writes: list[str] = []
        self.writes_left: int | None = None
        self.refuse: dict[str, str] = {}
        self._optional = frozenset(optional)
        self._uids = 0
        for manifest in objects:
            self.put(manifest)

    def put(self, manifest: Manifest) -> None:
        """Store an object as it is."""
        self.objects[_key(manifest)] = copy.deepcopy(manifest)

    def available(self, kinds: Iterable[Kind]) -> frozenset[Kind]:
        """Those of `kinds` that this cluster has."""
        return self._optional & frozenset(kinds)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """One object."""
        return copy.deepcopy(self.objects.get((kind.kind, namespace if kind.namespaced else None, name)))

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        """Objects of one kind whose labels equal `labels`."""
        wanted = dict(pair.split("=") for pair in labels.split(",") if pair)
        return tuple(
            copy.deepcopy(item)
            for (found, where, _), item in sorted(self.objects.items(), key=str)
            if found == kind.kind
            and where == namespace
            and wanted.items() <= (item["metadata"].get("labels") or {}).items()
        )

    def apply(self, manifest: Manifest, manager: str) -> Manifest:
        """Server-side apply with force."""
        self._write(f"apply {manifest['kind']} {manifest['metadata']['name']}", manifest["kind"])
        live = self.objects.get(_key(manifest))
        kept = _without(live, _fields_of(live, manager), manifest) if live else {}
        merged: Manifest = _merge(kept, copy.deepcopy(manifest))
        metadata = merged["metadata"]
        if "uid" not in metadata:
            self._uids += 1
            metadata["uid"] = f"uid-{self._uids}"
        others = [entry for entry in metadata.get("managedFields", []) if entry["manager"] != manager]
        fields = {"manager": manager, "operation": "Apply", "fieldsV1": _fields(manifest)}
        metadata["managedFields"] = [*others, fields]
        self.put(merged)
        return merged

    def apply_status(self, kind: Kind, of: Manifest, status: Manifest, manager: str) -> Manifest:
        """Replace the status."""
        self._write(f"status {kind.kind} {of['metadata']['name']}", kind.kind)
        del manager
        live = self.objects[_key(of)]
        live["status"] = copy.deepcopy(status)
        return live

    def delete(self, manifest: Manifest) -> None:
        """Delete an object, if it is still the same."""
        self._write(f"delete {manifest['kind']} {manifest['metadata']['name']}", manifest["kind"])
        live = self.objects.get(_key(manifest))
        if live is not None and live["metadata"]["uid"] == manifest["metadata"]["uid"]:
            del self.objects[_key(manifest)]

    def create_event(self, event: Manifest) -> None:
        """Events are not kept."""

    def state(self) -> dict[StoreKey, Any]:
        """What the objects say, without what differs from run to run: uids of children."""
        return {key: _without_uid(item) for key, item in self.objects.items()}

    def _write(self, what: str, kind: str) -> None:
        if self.writes_left is not None:
            if self.writes_left == 0:
                raise Killed(what)
            self.writes_left -= 1
        if kind in self.refuse:
            raise ApiFailure(403, "Forbidden", self.refuse[kind])
        self.writes.append(what)


def _key(manifest: Manifest) -> StoreKey:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace"), metadata["name"]


def _fields(value: Manifest) -> dict[str, Any]:
    """fieldsV1 of a mapping; lists are atomic here."""
    return {f"f:{key}": _fields(item) if isinstance(item, dict) else {} for key, item in value.items()}


def _fields_of(live: Manifest, manager: str) -> dict[str, Any]:
    entries = live["metadata"].get("managedFields", [])
    return next((dict(entry["fieldsV1"]) for entry in entries if entry["manager"] == manager), {})


def _without(live: Any, owned: dict[str, Any], desired: Any) -> Any:
    """`live` without the owned fields that are no longer desired."""
    if not isinstance(live, dict):
        return live
    result = dict(live)
    for path, below in owned.items():
        key = path.removeprefix("f:")
        if key not in desired:
            result.pop(key, None)
        elif below and isinstance(desired[key], dict):
            result[key] = _without(result.get(key), below, desired[key])
    return result


def _merge(live: Any, desired: Any) -> Any:
    if isinstance(live, dict) and isinstance(desired, dict):
        return {**live, **{key: _merge(live.get(key), value) for key, value in desired.items()}}
    return desired


def _without_uid(manifest: Manifest) -> Manifest:
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "uid"}
    return {**manifest, "metadata": metadata if manifest["kind"] != SERVING_POOL.kind else manifest["metadata"]}
