"""An `ObjectStore` whose objects have resourceVersions, with lists and watches as the API server has them.

A watch may begin at any version that the store still knows (410 otherwise), and what leaves a label selector is DELETED
to it. `forget` is etcd's compaction.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.api.cluster import Snapshot
from ballast_operator.api.kept import equalities
from ballast_operator.kinds import BUILT_IN_CHILDREN, OPTIONAL_CHILDREN, Kind, Manifest
from tests.support.object_store import ObjectStore, StoreKey, key_of


@dataclass(frozen=True, slots=True)
class _Change:
    version: int
    before: Manifest | None
    after: Manifest | None

    @property
    def item(self) -> Manifest:
        found = self.after or self.before
        assert found is not None
        return found


@dataclass(slots=True)
class Events:
    """A watch that has all that happened until it began, and then ends, or breaks with an error."""

    events: list[Manifest]
    breaks: ApiFailure | None = None
    taken: int = field(default=0, init=False)

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Manifest:
        if self.taken < len(self.events):
            self.taken += 1
            return self.events[self.taken - 1]
        if self.breaks is not None:
            raise self.breaks
        raise StopIteration

    def interrupt(self) -> None:
        """It has an end."""

    def close(self) -> None:
        """Nothing to give up."""


class VersionedStore(ObjectStore):
    """Objects by kind, namespace and name, and their history."""

    def __init__(self, *objects: Manifest, optional: Iterable[Kind] = OPTIONAL_CHILDREN) -> None:
        self.version = 1
        self.refuse_reads: dict[str, ApiFailure] = {}
        """Answers to lists and watches of a kind, such as `Service`."""
        self._lock = threading.RLock()
        self._history: list[_Change] = []
        self._forgotten = 0
        super().__init__(*objects, optional=optional)
        self._absent = frozenset(OPTIONAL_CHILDREN) - frozenset(optional)

    def put(self, manifest: Manifest) -> Manifest:
        """Store an object; it gets a new version if it is not as it was."""
        with self._lock:
            before = self.objects.get(key_of(manifest))
            version = (before or {}).get("metadata", {}).get("resourceVersion")
            after = copy.deepcopy(manifest)
            after["metadata"] = {**after["metadata"], "resourceVersion": version}
            if before is None or before != after:
                self.version += 1
                after["metadata"]["resourceVersion"] = str(self.version)
                self.objects[key_of(manifest)] = after
                self._history.append(_Change(self.version, before, after))
            return copy.deepcopy(after)

    def remove(self, key: StoreKey) -> None:
        """Take an object away."""
        with self._lock:
            self.version += 1
            self._history.append(_Change(self.version, self.objects.pop(key), None))

    def forget(self) -> None:
        """Watches can no longer begin before now."""
        self._forgotten = self.version
        self._history.clear()

    def snapshot(self, kind: Kind, namespace: str | None, *, labels: str = "") -> Snapshot:
        """A list."""
        self._readable(kind)
        with self._lock:
            return Snapshot(self.list(kind, namespace, labels=labels), self.version)

    def watch(self, kind: Kind, namespace: str | None, *, labels: str = "", since: int, lasts_s: float) -> Events:
        """What happened after a version."""
        del lasts_s
        self._readable(kind)
        if since < self._forgotten:
            raise ApiFailure(410, "Expired", f"too old resource version: {since} ({self._forgotten})")
        return Events(self.changes(kind, namespace, labels=labels, since=since))

    def changes(self, kind: Kind, namespace: str | None, *, labels: str, since: int) -> list[Manifest]:
        """Of the history after a version, with a bookmark at the end."""
        wanted, found = equalities(labels), []
        with self._lock:
            history, version = list(self._history), self.version
        for change in history:
            item = change.item
            where = item["metadata"].get("namespace")
            if change.version > since and item["kind"] == kind.kind and namespace in (None, where):
                found += _event(change, wanted)
        bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}
        return [*found, bookmark]

    def kinds_of(self, api_version: str) -> frozenset[str]:
        """Discovery."""
        known = {*self.installed, *BUILT_IN_CHILDREN}
        return frozenset(kind.plural for kind in known if kind.api_version == api_version)

    def _readable(self, kind: Kind) -> None:
        if kind.kind in self.refuse_reads:
            raise self.refuse_reads[kind.kind]
        if kind in self._absent:
            raise ApiFailure(404, "NotFound", "the server could not find the requested resource")


def _event(change: _Change, wanted: dict[str, str]) -> list[Manifest]:
    was, is_now = (_matches(item, wanted) for item in (change.before, change.after))
    if is_now:
        return [{"type": "MODIFIED" if was else "ADDED", "object": copy.deepcopy(change.after)}]
    if not was:
        return []
    item = copy.deepcopy(change.before)
    assert item is not None
    item["metadata"]["resourceVersion"] = str(change.version)
    return [{"type": "DELETED", "object": item}]


def _matches(item: Manifest | None, wanted: dict[str, str]) -> bool:
    return item is not None and wanted.items() <= (item["metadata"].get("labels") or {}).items()
