"""Keeps the objects of one kind as the API server has them: a list, then a watch that goes on from it.

A watch that ends goes on from where it was. The list is read anew when the API server no longer knows that place (410),
when a watch has left out one of our own writes, and every `RELIST_S` whatever a watch says.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.api.kept import Change, Kept, equalities
from ballast_operator.kinds import Kind, Manifest

logger = logging.getLogger(__name__)

WATCH_S: Final = 300.0
"""How long the API server keeps one watch, and up to half as long again, so that not all end at once."""
RELIST_S: Final = 1800.0
FIRST_DELAY_S: Final = 0.5
LAST_DELAY_S: Final = 30.0
"""Delays after failures double from the first to the last."""
LEAST_TURN_S: Final = 1.0
"""A watch that ends sooner is not begun anew at once."""
BELIEVED_S: Final = 30.0
"""What is kept counts for so long while the API server cannot be watched."""
_EXPIRED: Final = 410
_ABSENT: Final = 404
_REFUSED: Final = (401, 403)


class Listed(Protocol):
    """A list."""

    @property
    def items(self) -> Iterable[Manifest]:
        """Its objects."""
        ...

    @property
    def version(self) -> int:
        """Where a watch goes on."""
        ...


class Events(Protocol):
    """A watch."""

    def __iter__(self) -> Iterator[Manifest]:
        """Its events, each with `type` and `object`. Raises `ApiFailure`."""
        ...

    def interrupt(self) -> None:
        """End it from another thread."""
        ...

    def close(self) -> None:
        """Give its connection up."""
        ...


class Source(Protocol):
    """What is needed of the API server. Each method raises `ApiFailure`."""

    def snapshot(self, kind: Kind, namespace: str | None, *, labels: str = "") -> Listed:
        """All objects of a kind, by label selector; of all namespaces without one."""
        ...

    def watch(self, kind: Kind, namespace: str | None, *, labels: str = "", since: int, lasts_s: float) -> Events:
        """What changes after the version `since`."""
        ...

    def kinds_of(self, api_version: str) -> frozenset[str]:
        """Plural names of the kinds of a group and version."""
        ...


class Informer:
    """Of one kind, in one namespace or in all. `start` it, and `stop` it at the end; its thread calls `told` with what
    has changed, and `turned` when the kind has become readable, or is readable no more."""

    def __init__(
        self,
        source: Source,
        kind: Kind,
        namespace: str | None,
        *,
        labels: str = "",
        told: Callable[[Kind, list[Change]], None],
        turned: Callable[[Kind], None] = lambda _: None,
        absent_retry_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`absent_retry_s`: how often to look for a kind that the cluster does not have."""
        self.kind: Final = kind
        self.namespace: Final = namespace
        self.kept: Final = Kept(equalities(labels))
        self._source = source
        self._labels = labels
        self._told = told
        self._turned = turned
        self._absent_retry_s = absent_retry_s
        self._clock = clock
        self._untold: list[Change] = []
        self._listed_s: float | None = None
        """When the list was read; None: it is to be read."""
        self._failures = 0
        self._heard_s = float("-inf")
        """When the API server was last listening to us."""
        self._settled = False
        self._present = False
        self._refusal: ApiFailure | None = ApiFailure(0, "NotRead", f"{kind.plural} have not been read yet")
        self._stopping = threading.Event()
        self._events: Events | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {kind.plural}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; `join` waits for it."""
        self._stopping.set()
        events = self._events
        if events is not None:
            events.interrupt()

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended, or for so long."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    @property
    def settled(self) -> bool:
        """Whether it is known what the API server has, or that it does not let us know."""
        return self._settled

    @property
    def present(self) -> bool:
        """Whether the cluster has this kind, as far as that is known."""
        return self._present

    @property
    def trouble(self) -> ApiFailure | None:
        """Why what is kept does not count; None if it does."""
        if self._refusal is None and self._failures and self._clock() - self._heard_s > BELIEVED_S:
            return ApiFailure(0, "NotWatched", f"{self.kind.plural} have not been watched for {BELIEVED_S:g} s")
        return self._refusal

    def turn(self) -> float:
        """One list, if it is due, and one watch, until that ends. Returns the seconds to wait before the next turn."""
        began_s = self._clock()
        try:
            if self._listed_s is None or began_s - self._listed_s > RELIST_S:
                self._list()
            self._watch()
        except ApiFailure as error:
            return self._failed(error)
        self._failures = 0
        return max(0.0, LEAST_TURN_S - (self._clock() - began_s))

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                wait_s = self.turn()
            except Exception:
                # One unforeseen answer must not stop this for good.
                logger.exception("%s are not watched: unexpected error; trying again", self.kind.plural)
                self._listed_s, wait_s = None, LAST_DELAY_S
            self._stopping.wait(wait_s)

    def _list(self) -> None:
        found = self._source.snapshot(self.kind, self.namespace, labels=self._labels)
        self._untold += self.kept.replace(found.items, found.version)
        self._listed_s = self._clock()

    def _watch(self) -> None:
        lasts_s = WATCH_S * random.uniform(1.0, 1.5)
        events = self._source.watch(
            self.kind, self.namespace, labels=self._labels, since=self.kept.version, lasts_s=lasts_s
        )
        self._events = events
        try:
            if self._stopping.is_set():
                return
            self._heard_s = self._clock()
            self._tell()
            self._turn_to(present=True)
            for event in events:
                self._hear(event)
        finally:
            self._events = None
            self._heard_s = self._clock()
            events.close()

    def _hear(self, event: Manifest) -> None:
        verb, item = event["type"], event["object"]
        if verb == "ERROR":
            raise ApiFailure(int(item.get("code") or 0), str(item.get("reason", "")), str(item.get("message", "")))
        self._failures = 0
        if verb == "BOOKMARK":
            self.kept.reached(int(item["metadata"]["resourceVersion"]))
        else:
            change = self.kept.reported(verb, item)
            self._untold += [] if change is None else [change]
        if self.kept.skipped:
            raise ApiFailure(_EXPIRED, "Skipped", "a watch has left out a change that we made")
        self._tell()

    def _tell(self) -> None:
        changes, self._untold = self._untold, []
        if changes:
            self._told(self.kind, changes)

    def _failed(self, error: ApiFailure) -> float:
        """What follows from a failure, and the seconds until the next try."""
        delay_s = min(FIRST_DELAY_S * 2.0 ** min(self._failures, 10), LAST_DELAY_S)
        self._failures += 1
        if self._stopping.is_set():
            return 0.0
        if error.status == _ABSENT or (error.status in _REFUSED and not self._exists()):
            self._untold += self.kept.replace((), 0)
            self._listed_s, self._failures, self._heard_s = None, 0, self._clock()
            self._turn_to(present=False)
            self._tell()
            return self._absent_retry_s
        if error.status == _EXPIRED or "Too large resource version" in str(error):
            logger.info("%s are listed anew: %s", self.kind.plural, error)
            self._listed_s = None
            return 0.0 if self._failures == 1 else delay_s
        logger.warning("%s cannot be watched: %s; trying again", self.kind.plural, error)
        if error.status in _REFUSED:
            self._turn_to(present=True, refusal=error)
        return delay_s

    def _exists(self) -> bool:
        """Whether the cluster has this kind: a server refuses also what it does not have."""
        if "/" not in self.kind.api_version:
            return True
        try:
            return self.kind.plural in self._source.kinds_of(self.kind.api_version)
        except ApiFailure:
            return True

    def _turn_to(self, *, present: bool, refusal: ApiFailure | None = None) -> None:
        turned = (self._present, self._refusal is None) != (present, refusal is None)
        self._settled, self._present, self._refusal = True, present, refusal
        if turned:
            self._turned(self.kind)
