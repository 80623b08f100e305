"""A store of objects that answers as the API server does where the operator's logic depends on it.

It keeps what is applied, but for zeros in Deployments, notes the applied fields in `managedFields`, removes fields that
the same manager stops to apply, gives uids, refuses a status for an object that is another one by now, and can fail
before its n-th write. Events count as writes, and are kept apart from the objects. The real API server runs in e2e/;
this one makes every interruption of every look cheap to try.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.kinds import OPTIONAL_CHILDREN, SERVING_POOL, Kind, Manifest

StoreKey = tuple[str, str | None, str]


class Killed(Exception):
    """The process died before this write."""


UNAVAILABLE = ApiFailure(503, "ServiceUnavailable", "etcd leader changed")


class ObjectStore:
    """Objects by kind, namespace and name."""

    def __init__(self, *objects: Manifest, optional: Iterable[Kind] = OPTIONAL_CHILDREN) -> None:
        self.objects: dict[StoreKey, Manifest] = {}
        self.writes: list[str] = []
        self.events: list[Manifest] = []
        self._interruption: Exception | None = None
        self._writes_left = 0
        self.refuse: dict[str, ApiFailure] = {}
        """Answers to all writes of a kind (`Service`), to all of one verb (`status Service`), or of one object
        (`Service chat`)."""
        self.installed = frozenset(optional)
        self._uids = 0
        for manifest in objects:
            self.put(manifest)

    def put(self, manifest: Manifest) -> Manifest:
        """Store an object as it is; returns a copy of what is stored."""
        self.objects[key_of(manifest)] = copy.deepcopy(manifest)
        return manifest

    def remove(self, key: StoreKey) -> None:
        """Take an object away."""
        del self.objects[key]

    def interrupt(self, error: Exception, *, after: int) -> None:
        """Raise `error` instead of doing the next write but `after`, once."""
        self._interruption, self._writes_left = error, after

    def end_interruption(self) -> bool:
        """Take it back; whether it was still to come."""
        pending, self._interruption = self._interruption is not None, None
        return pending

    def available(self, kinds: Iterable[Kind]) -> frozenset[Kind]:
        """Those of `kinds` that this cluster has."""
        return self.installed & frozenset(kinds)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """One object."""
        return copy.deepcopy(self.objects.get((kind.kind, namespace if kind.namespaced else None, name)))

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        """Objects of one kind whose labels equal `labels`."""
        wanted = dict(pair.split("=") for pair in labels.split(",") if pair)
        return tuple(
            copy.deepcopy(item)
            for (found, where, _), item in sorted(self.objects.items(), key=lambda item: str(item[0]))
            if found == kind.kind
            and namespace in (None, where)
            and wanted.items() <= (item["metadata"].get("labels") or {}).items()
        )

    def apply(self, manifest: Manifest, manager: str) -> Manifest:
        """Server-side apply with force."""
        self._write("apply", manifest["kind"], manifest["metadata"]["name"])
        live = self.objects.get(key_of(manifest))
        kept = _without(live, _fields_of(live, manager), manifest) if live else {}
        merged: Manifest = _merge(kept, copy.deepcopy(manifest))
        metadata = merged["metadata"]
        if "uid" not in metadata:
            self._uids += 1
            metadata["uid"] = f"uid-{self._uids}"
        others = [entry for entry in metadata.get("managedFields", []) if entry["manager"] != manager]
        fields = {"manager": manager, "operation": "Apply", "fieldsV1": _fields(manifest)}
        metadata["managedFields"] = [*others, fields]
        return self.put(_without_zeros(merged) if merged["kind"] == "Deployment" else merged)

    def apply_status(self, kind: Kind, of: Manifest, status: Manifest, manager: str) -> Manifest:
        """Replace the status of this very object."""
        self._write("status", kind.kind, of["metadata"]["name"])
        del manager
        live = self.objects.get(key_of(of))
        if live is None:
            raise ApiFailure(404, "NotFound", "not found")
        if live["metadata"]["uid"] != of["metadata"]["uid"]:
            raise ApiFailure(409, "Conflict", "uid mismatch")
        return self.put({**live, "status": status})

    def relabel(self, kind: Kind, metadata: Manifest, manager: str) -> Manifest:
        """Set labels of this very object."""
        self._write("relabel", kind.kind, metadata["name"])
        del manager
        live = self.objects.get((kind.kind, metadata["namespace"], metadata["name"]))
        if live is None or live["metadata"]["uid"] != metadata["uid"]:
            raise ApiFailure(409, "Conflict", "uid mismatch")
        live["metadata"]["labels"] = {**(live["metadata"].get("labels") or {}), **metadata["labels"]}
        return copy.deepcopy(live)

    def delete(self, manifest: Manifest) -> None:
        """Delete an object, if it is still the same."""
        self._write("delete", manifest["kind"], manifest["metadata"]["name"])
        live = self.objects.get(key_of(manifest))
        if live is not None and live["metadata"]["uid"] == manifest["metadata"]["uid"]:
            self.remove(key_of(manifest))

    def create_event(self, event: Manifest) -> None:
        """Keep an Event."""
        self._write("event", "Event", event["reason"])
        self.events.append(copy.deepcopy(event))

    def run_deployments(self) -> None:
        """What Kubernetes does with Deployments, LWS with its sets: all of the newest revision run and are ready."""
        for manifest in list(self.objects.values()):
            if manifest["kind"] in ("Deployment", "LeaderWorkerSet"):
                count = manifest["spec"]["replicas"]
                status = {"replicas": count, "readyReplicas": count, "updatedReplicas": count}
                self.put({**manifest, "status": status})

    def state(self) -> dict[StoreKey, Any]:
        """What the objects say, without what differs from run to run: uids of children."""
        return {key: _without_uid(item) for key, item in self.objects.items()}

    def _write(self, verb: str, kind: str, name: str) -> None:
        if self._interruption is not None:
            if self._writes_left == 0:
                error, self._interruption = self._interruption, None
                raise error
            self._writes_left -= 1
        for key in (kind, f"{verb} {kind}", f"{kind} {name}"):
            if key in self.refuse:
                raise self.refuse[key]
        self.writes.append(f"{verb} {kind} {name}")


def key_of(manifest: Manifest) -> StoreKey:
    """Where an object is stored."""
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


_ZEROS_LEFT_OUT = frozenset(
    {
        *("value", "hostNetwork", "hostPID", "hostIPC", "hostname", "tolerations", "imagePullSecrets", "args", "env"),
        *("readOnly", "subPath", "medium", "effect", "operator", "initialDelaySeconds", "nodeSelector", "stdin", "tty"),
    }
)
"""Of the API server's types: fields that are not pointers, and that it does not write while they are zero."""


def _without_zeros(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_zeros(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _without_zeros(item) for key, item in value.items() if item is not None}
    return {key: item for key, item in kept.items() if item or key not in _ZEROS_LEFT_OUT}


def _without_uid(manifest: Manifest) -> Manifest:
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "uid"}
    return {**manifest, "metadata": metadata if manifest["kind"] != SERVING_POOL.kind else manifest["metadata"]}
