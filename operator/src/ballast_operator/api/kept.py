"""Objects of one kind as the API server said last: by a list, by a watch, and by its answers to our own writes.

They are kept as JSON: a fifth of the memory of Python's own objects, and each reader gets a copy that it may change.

Versions are resourceVersions, which the API server compares as numbers within one kind. A watch reports changes in
their order, so `version` says how far it has come, and three rules follow:

* an answer to a write counts only if it is newer than `version`: else the watch has said that, or something later;
* what a watch or a list says of an object is older than an answer of ours until it gets to that answer's version;
* a watch that gets beyond that version without having reported the write has left something out (`skipped`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ballast_api import names
from ballast_operator.kinds import Manifest

Name: TypeAlias = tuple[str | None, str]
"""Namespace (None of a cluster-scoped object) and name."""


@dataclass(frozen=True, slots=True)
class Change:
    """One object that is another one now than readers have seen."""

    name: Name
    labels: tuple[Mapping[str, str], ...]
    """Before and after."""
    manifest: Manifest | None
    """As it is now; None: it is gone."""
    same_generation: bool = False
    """Whether it is the same object with the same spec: metadata or status have changed."""


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    uid: str
    generation: int | None
    labels: Mapping[str, str]
    text: bytes


class Kept:
    """Objects of one kind that have the labels of a selector. Safe in several threads."""

    def __init__(self, selector: Mapping[str, str]) -> None:
        self.selector: Final = selector
        self._lock = threading.Lock()
        self._version = 0
        self._entries: dict[Name, _Entry] = {}
        self._of_pool: dict[Name, set[Name]] = {}
        """Names by namespace and ServingPool of their label."""
        self._shared: dict[Name, Manifest] = {}
        """What `shared` has read."""
        self._unseen: dict[Name, int] = {}
        """Versions of our own writes that the watch has not reported yet."""
        self._ended: set[str] = set()
        """Uids of what we have deleted, until the watch says so, too."""

    @property
    def version(self) -> int:
        """How far the watch has come."""
        return self._version

    @property
    def skipped(self) -> bool:
        """Whether the watch has gone past one of our own writes without reporting it."""
        with self._lock:
            return any(version <= self._version for version in self._unseen.values())

    # --- what the API server says -----------------------------------------------------------------------------------

    def replace(self, items: Iterable[Manifest], version: int) -> list[Change]:
        """A list, which is whole and as of `version`."""
        with self._lock:
            self._unseen = {name: written for name, written in self._unseen.items() if written > version}
            self._version = version
            listed, uids, changes = set(self._unseen), set(), []
            for item in items:
                uids.add(_uid(item))
                if _uid(item) not in self._ended and _name(item) not in self._unseen:
                    listed.add(_name(item))
                    changes.append(self._put(item))
            self._ended &= uids
            changes += [self._drop(name) for name in self._entries.keys() - listed]
        return [change for change in changes if change is not None]

    def reported(self, verb: str, item: Manifest) -> Change | None:
        """One change of a watch: ADDED, MODIFIED or DELETED. None if readers have seen it already."""
        name, version, deleted = _name(item), _version(item), verb == "DELETED"
        with self._lock:
            self._version = max(self._version, version)
            ended = _uid(item) in self._ended
            if deleted:
                self._ended.discard(_uid(item))
            if version < self._unseen.get(name, 0):
                return None
            self._unseen.pop(name, None)
            if deleted:
                return self._drop(name)
            return None if ended else self._put(item)

    def reached(self, version: int) -> None:
        """A bookmark: nothing has changed up to this version but what was reported."""
        with self._lock:
            self._version = max(self._version, version)

    # --- what answers to our own writes say -------------------------------------------------------------------------

    def written(self, item: Manifest) -> None:
        """The answer to a write: the object as it is now."""
        name, version = _name(item), _version(item)
        with self._lock:
            known = self._entries.get(name)
            older = version <= self._version or (known is not None and version <= known.version)
            if not older and _has(_labels(item), self.selector) and _uid(item) not in self._ended:
                self._put(item)
                self._unseen[name] = version

    def deleted(self, item: Manifest) -> None:
        """The answer to a deletion: this very object is gone."""
        name = _name(item)
        with self._lock:
            known = self._entries.get(name)
            if known is not None and known.uid == _uid(item):
                self._drop(name)
                self._unseen.pop(name, None)
                self._ended.add(known.uid)

    # --- what readers ask for ---------------------------------------------------------------------------------------

    def get(self, name: Name) -> Manifest | None:
        """One object."""
        with self._lock:
            found = self._entries.get(name)
        return None if found is None else _read(found)

    def list(self, namespace: str | None, labels: Mapping[str, str]) -> tuple[Manifest, ...]:
        """Those with these labels, in the API server's order; of all namespaces without one."""
        with self._lock:
            found = sorted(self._found(namespace, labels))
            texts = [self._entries[name] for name in found]
        return tuple(map(_read, texts))

    def shared(self, namespace: str | None) -> tuple[Manifest, ...]:
        """All objects, of all namespaces without one. Each is read once, and all readers have the same: none of them
        may change it."""
        with self._lock:
            found = sorted(name for name in self._entries if namespace in (None, name[0]))
            for name in found:
                if name not in self._shared:
                    self._shared[name] = _read(self._entries[name])
            return tuple(self._shared[name] for name in found)

    def _found(self, namespace: str | None, labels: Mapping[str, str]) -> Iterator[Name]:
        pool = labels.get(names.LABEL_SERVING_POOL)
        near: Iterable[Name] = self._entries
        if pool is not None and namespace is not None:
            near = self._of_pool.get((namespace, pool), ())
        for name in near:
            if namespace in (None, name[0]) and _has(self._entries[name].labels, labels):
                yield name

    # --- under the lock ---------------------------------------------------------------------------------------------

    def _put(self, item: Manifest) -> Change | None:
        name, known = _name(item), self._entries.get(_name(item))
        text = json.dumps(item, separators=(",", ":")).encode()
        generation = item["metadata"].get("generation")
        entry = _Entry(_version(item), _uid(item), generation, _labels(item), text)
        if known is not None and (known.version, known.uid) == (entry.version, entry.uid):
            return None
        self._forget(name)
        self._entries[name] = entry
        pool = entry.labels.get(names.LABEL_SERVING_POOL)
        if pool is not None:
            self._of_pool.setdefault((name[0], pool), set()).add(name)
        if known is None:
            return Change(name, (entry.labels,), item)
        same = generation is not None and (known.uid, known.generation) == (entry.uid, generation)
        return Change(name, (known.labels, entry.labels), item, same)

    def _drop(self, name: Name) -> Change | None:
        known = self._forget(name)
        return None if known is None else Change(name, (known.labels,), None)

    def _forget(self, name: Name) -> _Entry | None:
        known = self._entries.pop(name, None)
        self._shared.pop(name, None)
        if known is not None:
            pool = (name[0], known.labels.get(names.LABEL_SERVING_POOL, ""))
            others = self._of_pool.get(pool, set())
            others.discard(name)
            if not others:
                self._of_pool.pop(pool, None)
        return known


def equalities(selector: str) -> dict[str, str]:
    """The pairs of a label selector `a=b,c=d`."""
    return dict(pair.split("=", 1) for pair in selector.split(",") if pair)


def _read(entry: _Entry) -> Manifest:
    found: Manifest = json.loads(entry.text)
    return found


def _name(item: Manifest) -> Name:
    return item["metadata"].get("namespace"), item["metadata"]["name"]


def _version(item: Manifest) -> int:
    return int(item["metadata"].get("resourceVersion") or 0)


def _uid(item: Manifest) -> str:
    return str(item["metadata"].get("uid", ""))


def _labels(item: Manifest) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= labels.items()
