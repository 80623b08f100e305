"""The controller: keys on a work queue, workers that take each key to the reconciler, and the resync."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.kinds import SERVING_POOL, Kind
from ballast_operator.reconcile import Result
from ballast_operator.settings import OperatorSettings
from ballast_operator.workqueue import WorkQueue

logger = logging.getLogger(__name__)

_SETTLE_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Key:
    """Names one object to reconcile. `namespace` is None for cluster-scoped kinds."""

    kind: Kind
    namespace: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind.kind} {self.name}"


class Reconciles(Protocol):
    """What the workers call, in threads."""

    def serving_pool(self, namespace: str, name: str) -> Result:
        """One ServingPool."""
        ...

    def referred(self, kind: Kind, namespace: str | None, name: str) -> Result:
        """One object that ServingPools refer to."""
        ...


class Beside(Protocol):
    """What runs in threads of its own as long as the controller does."""

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self) -> None:
        """End; may block."""
        ...

    def alive(self) -> bool:
        """Whether it still runs."""
        ...


class Watches(Beside, Protocol):
    """What looks read from."""

    @property
    def settled(self) -> bool:
        """Whether all that looks read is there, as far as it can be had."""
        ...


class Controller:
    """The queue, its workers, and the resync."""

    def __init__(
        self,
        reconciler: Reconciles,
        settings: OperatorSettings,
        looked: Callable[[str, str, float], None] = lambda *_: None,
        watches: Watches | None = None,
        begins: Callable[[], None] = lambda: None,
    ) -> None:
        """`looked`: is told of each look: its kind, its result (done, refused, failed) and its seconds. `watches`: what
        looks read from, where that is not the API server itself. `begins`: is told when the first may be taken."""
        self._looked = looked
        self._begins = begins
        self._watches = watches
        self._reconciler = reconciler
        self._settings = settings
        self._queue: WorkQueue[Key] = WorkQueue()
        self._known: set[Key] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._beside: list[Beside] = []
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="reconcile")

    def beside(self, one: Beside) -> None:
        """Start and stop this, too. Call it before `start`."""
        self._beside.append(one)

    def watch(self) -> None:
        """Begin to watch. What is seen waits in the queue until `start`."""
        if self._watches is not None:
            self._watches.start()

    def start(self) -> None:
        """Start workers and resync in the running loop; the first look waits for what it reads."""
        for one in self._beside:
            one.start()
        coroutines = [self._work() for _ in range(self._settings.workers)]
        self._tasks = [asyncio.create_task(coroutine) for coroutine in [*coroutines, self._resync()]]

    async def stop(self) -> None:
        """End them; a write that is under way ends first."""
        self._queue.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._beside if self.started else ():
            await asyncio.to_thread(one.stop)
        if self._watches is not None:
            await asyncio.to_thread(self._watches.stop)
        await asyncio.to_thread(self._threads.shutdown)

    @property
    def started(self) -> bool:
        """Whether it was started, stopped or not."""
        return bool(self._tasks)

    def alive(self) -> bool:
        """Whether all tasks still run."""
        work = bool(self._tasks) and not any(task.done() for task in self._tasks)
        watched = self._watches is None or self._watches.alive()
        return work and watched and all(one.alive() for one in self._beside)

    def seen(self, key: Key, *, deleted: bool) -> None:
        """A watch has reported an object."""
        if deleted:
            self._known.discard(key)
        else:
            self._known.add(key)
        self._queue.add(key)

    def touch(self, key: Key) -> None:
        """Something that `key` depends on has changed."""
        self._queue.add(key)

    def touch_all(self) -> None:
        """Something that every object may depend on has changed."""
        for key in sorted(self._known, key=str):
            self._queue.add(key)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_s)
            for key in sorted(self._known, key=str):
                self._queue.add_routine(key)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        # Watches run in threads: no event of this loop could tell.
        while self._watches is not None and not self._watches.settled:  # noqa: ASYNC110
            await asyncio.sleep(_SETTLE_POLL_S)
        self._begins()
        await asyncio.sleep(0)  # what the watches have said by now comes first
        while True:
            key = await self._queue.get()
            result, said, began_s = Result(failed=True), "failed", loop.time()
            try:
                result = await loop.run_in_executor(self._threads, self._reconcile, key)
                said = "refused" if result.failed else "done"
            except ApiFailure as error:
                logger.warning("%s: %s; trying again", key, error)
            except Exception:
                # The last line of defence: one unforeseen object must not stop all others.
                logger.exception("%s: unexpected error; trying again", key)
            self._looked(key.kind.kind, said, loop.time() - began_s)
            self._queue.done(key, failed=result.failed, requeue_s=result.requeue_s)

    def _reconcile(self, key: Key) -> Result:
        if key.kind is SERVING_POOL and key.namespace is not None:
            return self._reconciler.serving_pool(key.namespace, key.name)
        return self._reconciler.referred(key.kind, key.namespace, key.name)
