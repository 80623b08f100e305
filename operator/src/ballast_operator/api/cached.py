"""The API server for looks: reads are answered from what informers keep, writes go to the server.

The answer to a write is kept at once, so that the next look sees it although no watch has reported it yet. The server
itself is asked for:

* kinds that are not watched: Secrets, of which the operator sees none but its own, and Leases, which change all the
  time;
* one object, by its name, of a kind that is watched by label: before something is made that others may own, the server
  says whether it is there, and what an earlier operator stored of its decisions is read where it was written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, Protocol

from ballast_api import names
from ballast_operator.api.informer import Informer, Source
from ballast_operator.api.kept import Change, equalities
from ballast_operator.kinds import WATCHED, WATCHED_ANYWHERE, WATCHED_BY_LABEL, Kind, Manifest, kind_of

OURS: Final = f"{names.APP_MANAGED_BY}={names.MANAGER}"
"""Label selector of what is watched by label."""
_JOIN_S: Final = 5.0


class Server(Source, Protocol):
    """What is needed of the API server. Each method raises `ApiFailure`."""

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """One object, None if none of that name exists."""
        ...

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        """Objects of one kind; of all namespaces without one."""
        ...

    def apply(self, manifest: Manifest, manager: str) -> Manifest:
        """Server-side apply."""
        ...

    def apply_status(self, kind: Kind, of: Manifest, status: Manifest, manager: str) -> Manifest:
        """Server-side apply of the status of this very object."""
        ...

    def relabel(self, kind: Kind, metadata: Manifest, manager: str) -> Manifest:
        """Set labels of this very object."""
        ...

    def delete(self, manifest: Manifest) -> Manifest | None:
        """Delete this very object; returns it if it stays until its finalizers have run."""
        ...

    def create_event(self, event: Manifest) -> None:
        """Post an Event."""
        ...


class CachedCluster:
    """Safe to use from several threads. Each method raises `ApiFailure`."""

    def __init__(
        self,
        server: Server,
        watched: Source,
        namespaces: Collection[str],
        *,
        told: Callable[[Kind, list[Change]], None] = lambda *_: None,
        turned: Callable[[Kind], None] = lambda _: None,
        absent_retry_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`watched`: the server again, with connections for `connections_of` watches. `namespaces`: those that are
        served; empty: all. `told` and `turned` as an `Informer` has them; called in its threads."""
        self._server = server
        self.informers: Final = {
            (kind, namespace): Informer(
                watched,
                kind,
                namespace,
                labels=OURS if kind in WATCHED_BY_LABEL else "",
                told=told,
                turned=turned,
                absent_retry_s=absent_retry_s,
                clock=clock,
            )
            for kind in (*WATCHED, *WATCHED_BY_LABEL)
            for namespace in _scopes(kind, namespaces)
        }

    # --- the watches ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch."""
        for informer in self.informers.values():
            informer.start()

    def stop(self) -> None:
        """End; may block for a while."""
        for informer in self.informers.values():
            informer.stop()
        for informer in self.informers.values():
            informer.join(_JOIN_S)

    def alive(self) -> bool:
        """Whether all watches go on."""
        return all(informer.alive() for informer in self.informers.values())

    @property
    def settled(self) -> bool:
        """Whether it is known of every kind what is there, or that it cannot be known."""
        return all(informer.settled for informer in self.informers.values())

    def available(self, kinds: Iterable[Kind]) -> frozenset[Kind]:
        """Those of `kinds` that the cluster has."""
        present = {kind for (kind, _), informer in self.informers.items() if informer.present}
        return frozenset(present.intersection(kinds))

    # --- reads ------------------------------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """The object, or None if none of that name exists."""
        informer = self._of(kind, namespace)
        if informer is None or informer.kept.selector:
            return self._server.get(kind, namespace, name)
        _believe(informer)
        return informer.kept.get((namespace if kind.namespaced else None, name))

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        """Objects of a kind by label selector; of all namespaces without one. Without `labels` all readers share what
        is kept, and must not change it: every look at a ServingPool with parents reads all HTTPRoutes."""
        informer, wanted = self._of(kind, namespace), equalities(labels)
        if informer is None or not informer.kept.selector.items() <= wanted.items():
            return self._server.list(kind, namespace, labels=labels)
        _believe(informer)
        where = namespace if kind.namespaced else None
        return informer.kept.list(where, wanted) if wanted else informer.kept.shared(where)

    def kept(self, kind: Kind) -> Iterator[Manifest]:
        """All objects of a kind as they are kept, whether they may be believed or not; shared by all readers."""
        for (watched, _), informer in self.informers.items():
            if watched is kind:
                yield from informer.kept.shared(None)

    # --- writes -----------------------------------------------------------------------------------------------------

    def apply(self, manifest: Manifest, manager: str) -> Manifest:
        """Server-side apply; takes over fields that others own, creates what does not exist."""
        return self._written(kind_of(manifest), self._server.apply(manifest, manager))

    def apply_status(self, kind: Kind, of: Manifest, status: Manifest, manager: str) -> Manifest:
        """Server-side apply of the status of this very object."""
        return self._written(kind, self._server.apply_status(kind, of, status, manager))

    def relabel(self, kind: Kind, metadata: Manifest, manager: str) -> None:
        """Set labels of this very object."""
        self._written(kind, self._server.relabel(kind, metadata, manager))

    def delete(self, manifest: Manifest) -> None:
        """Delete this very object. Gone already is fine."""
        left, kind = self._server.delete(manifest), kind_of(manifest)
        informer = self._of(kind, manifest["metadata"].get("namespace"))
        if left is not None:
            self._written(kind, left)
        elif informer is not None:
            informer.kept.deleted(manifest)

    def create_event(self, event: Manifest) -> None:
        """Post an Event."""
        self._server.create_event(event)

    def _written(self, kind: Kind, answer: Manifest) -> Manifest:
        informer = self._of(kind, answer["metadata"].get("namespace"))
        if informer is not None:
            informer.kept.written(answer)
        return answer

    def _of(self, kind: Kind, namespace: str | None) -> Informer | None:
        return self.informers.get((kind, namespace)) or self.informers.get((kind, None))


def connections_of(namespaces: Collection[str]) -> int:
    """Watches that a `CachedCluster` of these namespaces has."""
    return sum(len(_scopes(kind, namespaces)) for kind in (*WATCHED, *WATCHED_BY_LABEL))


def _scopes(kind: Kind, namespaces: Collection[str]) -> Collection[str | None]:
    return sorted(namespaces) if namespaces and kind.namespaced and kind not in WATCHED_ANYWHERE else (None,)


def _believe(informer: Informer) -> None:
    if informer.trouble is not None:
        raise informer.trouble
