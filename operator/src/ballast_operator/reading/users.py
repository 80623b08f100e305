"""Which ServingPools name an object: what watches said, corrected by each look. Safe in several threads."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from ballast_operator.kinds import Kind


@dataclass(frozen=True, slots=True)
class Referred:
    """Names one object that ServingPools refer to. `namespace` is None for cluster-scoped kinds."""

    kind: Kind
    namespace: str | None
    name: str


User = tuple[str, str]
"""Namespace and name of a ServingPool."""


class Users:
    """The ServingPools by the objects that they name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: dict[User, frozenset[Referred]] = {}
        self._users: dict[Referred, set[User]] = {}

    def put(self, namespace: str, name: str, named: Collection[tuple[Kind, str]]) -> frozenset[Referred]:
        """What a ServingPool names now; nothing when it is gone. Returns the objects whose users are others by that."""
        user = (namespace, name)
        now = frozenset(Referred(kind, namespace if kind.namespaced else None, each) for kind, each in named)
        with self._lock:
            before = self._named.pop(user, frozenset())
            if now:
                self._named[user] = now
            for gone in before - now:
                self._users[gone].discard(user)
                if not self._users[gone]:
                    del self._users[gone]
            for new in now - before:
                self._users.setdefault(new, set()).add(user)
        return before ^ now

    def of(self, referred: Referred) -> tuple[User, ...]:
        """Those that name an object, in order."""
        with self._lock:
            return tuple(sorted(self._users.get(referred, ())))
