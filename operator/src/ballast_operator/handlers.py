"""kopf wiring: watch events become keys on the work queue, workers take keys to the reconciler.

Only `on.event`, `index`, `on.startup`, `on.cleanup`, `on.login` and `on.probe` are used: kopf then writes nothing on
its own, no annotations and no finalizers, and there is no handler state that could disagree with the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import kopf

from ballast_api import names
from ballast_operator.cluster import ApiFailure
from ballast_operator.kinds import BUILT_IN_CHILDREN, REFERRED, SERVING_POOL, Kind
from ballast_operator.reconcile import Result
from ballast_operator.references import named_objects
from ballast_operator.settings import OperatorSettings
from ballast_operator.workqueue import WorkQueue

logger = logging.getLogger(__name__)


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


class Controller:
    """The queue, its workers, and the resync."""

    def __init__(self, reconciler: Reconciles, settings: OperatorSettings) -> None:
        self._reconciler = reconciler
        self._settings = settings
        self._queue: WorkQueue[Key] = WorkQueue()
        self._known: set[Key] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="reconcile")

    def start(self) -> None:
        """Start workers and resync in the running loop."""
        coroutines = [self._work() for _ in range(self._settings.workers)]
        self._tasks = [asyncio.create_task(coroutine) for coroutine in [*coroutines, self._resync()]]

    async def stop(self) -> None:
        """End them; a write that is under way ends first."""
        self._queue.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown)

    def alive(self) -> bool:
        """Whether all tasks still run."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    def seen(self, key: Key, *, deleted: bool) -> None:
        """An object was seen on a watch."""
        if deleted:
            self._known.discard(key)
        else:
            self._known.add(key)
        self._queue.add(key)

    def touch(self, key: Key) -> None:
        """Something that `key` depends on has changed."""
        self._queue.add(key)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_s)
            for key in sorted(self._known, key=str):
                self._queue.add(key)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            key = await self._queue.get()
            result = Result(failed=True)
            try:
                result = await loop.run_in_executor(self._threads, self._reconcile, key)
            except ApiFailure as error:
                logger.warning("%s: %s; trying again", key, error)
            except Exception:
                # The last line of defence: one object that nobody foresaw must not stop all others.
                logger.exception("%s: unexpected error; trying again", key)
            self._queue.done(key, failed=result.failed, requeue_s=result.requeue_s)

    def _reconcile(self, key: Key) -> Result:
        if key.kind is SERVING_POOL and key.namespace is not None:
            return self._reconciler.serving_pool(key.namespace, key.name)
        return self._reconciler.referred(key.kind, key.namespace, key.name)


def registry_for(make_controller: Callable[[], Controller]) -> kopf.OperatorRegistry:
    """All handlers. `make_controller` is called when kopf starts: credentials are there by then."""
    registry = kopf.OperatorRegistry()
    holder: list[Controller] = []

    @kopf.on.startup(registry=registry, id="start")
    async def start(**_: Any) -> None:
        holder.append(make_controller())
        holder[0].start()

    @kopf.on.cleanup(registry=registry, id="stop")
    async def stop(**_: Any) -> None:
        for controller in holder:
            await controller.stop()

    @kopf.on.probe(registry=registry, id="workers")
    async def workers(**_: Any) -> str:
        if not all(controller.alive() for controller in holder):
            raise RuntimeError("a worker has ended")
        return "running"

    kopf.on.login(registry=registry)(kopf.login_via_client)
    _watch_resources(registry, lambda: holder[0])
    _watch_children(registry, lambda: holder[0])
    return registry


def _watch_resources(registry: kopf.OperatorRegistry, controller: Callable[[], Controller]) -> None:
    group, version = SERVING_POOL.api_version.split("/")

    @kopf.index(group, version, SERVING_POOL.plural, registry=registry, id="users")
    async def users(body: kopf.Body, **_: Any) -> dict[tuple[str, str | None, str], Key]:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        return {
            (kind.plural, namespace if kind.namespaced else None, referred): Key(SERVING_POOL, namespace, name)
            for kind, referred in named_objects(dict(body))
        }

    @kopf.on.event(group, version, SERVING_POOL.plural, registry=registry, id="serving-pool")
    async def serving_pool(event: kopf.RawEvent, namespace: str | None, name: str, **_: Any) -> None:
        controller().seen(Key(SERVING_POOL, namespace, name), deleted=event["type"] == "DELETED")

    for kind in REFERRED:
        _watch_referred(registry, controller, kind)


def _watch_referred(registry: kopf.OperatorRegistry, controller: Callable[[], Controller], kind: Kind) -> None:
    group, version = kind.api_version.split("/")

    @kopf.on.event(group, version, kind.plural, registry=registry, id=f"referred-{kind.plural}")
    async def referred(event: kopf.RawEvent, namespace: str | None, name: str, **kwargs: Any) -> None:
        users: kopf.Index[Any, Key] = kwargs["users"]
        key = Key(kind, namespace if kind.namespaced else None, name)
        controller().seen(key, deleted=event["type"] == "DELETED")
        for user in users.get((kind.plural, key.namespace, key.name), ()):
            controller().touch(user)


def _watch_children(registry: kopf.OperatorRegistry, controller: Callable[[], Controller]) -> None:
    async def child(labels: kopf.Labels, namespace: str | None, **_: Any) -> None:
        owner = labels.get(names.LABEL_SERVING_POOL)
        if owner:
            controller().touch(Key(SERVING_POOL, namespace, owner))

    for kind in BUILT_IN_CHILDREN:
        group, _, version = kind.api_version.rpartition("/")
        kopf.on.event(group, version, kind.plural, registry=registry, id=f"child-{kind.plural}")(child)


def kopf_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    """kopf's settings: children are filtered by label on the server, Events are our own business."""
    result = kopf.OperatorSettings()
    result.posting.enabled = False
    result.peering.standalone = True
    result.networking.request_timeout = settings.request_timeout_s
    result.watching.server_timeout = 300
    for kind in BUILT_IN_CHILDREN:
        group, _, version = kind.api_version.rpartition("/")
        result.watching.label_selectors[group, version, kind.plural] = f"{names.APP_MANAGED_BY}={names.MANAGER}"
    return result
