"""kopf wiring: watch events become keys for the controller.

Only `on.event`, `index`, `on.startup`, `on.cleanup`, `on.login` and `on.probe` are used: kopf then writes nothing on
its own, no annotations and no finalizers, and there is no handler state that could disagree with the cluster.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection
from typing import Any

import kopf

from ballast_api import names
from ballast_operator.controller import Controller, Key
from ballast_operator.kinds import BUILT_IN_CHILDREN, REFERRED, SERVING_POOL, Kind
from ballast_operator.leading import Election, lead
from ballast_operator.references import named_objects
from ballast_operator.settings import OperatorSettings
from ballast_operator.users import Referred, Users


def registry_for(
    make_controller: Callable[[], Controller], users: Users, make_election: Callable[[], Election | None] = lambda: None
) -> kopf.OperatorRegistry:
    """All handlers. Both functions are called when kopf starts: credentials are there by then. Without an election the
    controller works at once; with one what is watched waits in its queue until this process leads. `users` is kept by
    what the watches say."""
    registry = kopf.OperatorRegistry()
    holder: list[Controller] = []
    elections: list[Election] = []
    tasks: list[asyncio.Task[None]] = []

    @kopf.on.startup(registry=registry, id="start")
    async def start(**_: Any) -> None:
        holder.append(make_controller())
        election = make_election()
        if election is None:
            holder[0].start()
        else:
            elections.append(election)
            tasks.append(asyncio.create_task(lead(election, holder[0].start, end)))

    async def end() -> None:
        await holder[0].stop()
        signal.raise_signal(signal.SIGTERM)  # the next process waits for the Lease

    @kopf.on.cleanup(registry=registry, id="stop")
    async def stop(**_: Any) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for controller in holder:
            await controller.stop()
        for election in elections:
            await asyncio.to_thread(election.release)

    @kopf.on.probe(registry=registry, id="workers")
    async def workers(**_: Any) -> str:
        if any(task.done() for task in tasks) or any(each.started and not each.alive() for each in holder):
            raise RuntimeError("a worker has ended")
        return "running" if all(each.started for each in holder) else "waiting for the Lease"

    kopf.on.login(registry=registry)(kopf.login_via_client)
    _watch_resources(registry, lambda: holder[0], users)
    _watch_children(registry, lambda: holder[0])
    return registry


def _watch_resources(registry: kopf.OperatorRegistry, controller: Callable[[], Controller], users: Users) -> None:
    group, version = SERVING_POOL.group, SERVING_POOL.version

    def named_by(namespace: str, name: str, named: Collection[tuple[Kind, str]]) -> None:
        for each in users.put(namespace, name, named):
            controller().touch(Key(each.kind, each.namespace, each.name))

    # kopf fills its indices with all objects before it calls any handler, so no look finds some of the users only.
    @kopf.index(group, version, SERVING_POOL.plural, registry=registry, id="users")
    async def names(body: kopf.Body, **_: Any) -> None:
        named_by(body["metadata"]["namespace"], body["metadata"]["name"], named_objects(dict(body)))

    @kopf.on.event(group, version, SERVING_POOL.plural, registry=registry, id="serving-pool")
    async def serving_pool(event: kopf.RawEvent, namespace: str | None, name: str, **_: Any) -> None:
        deleted = event["type"] == "DELETED"
        if deleted and namespace is not None:
            named_by(namespace, name, ())
        controller().seen(Key(SERVING_POOL, namespace, name), deleted=deleted)

    for kind in REFERRED:
        _watch_referred(registry, controller, kind, users)


def _watch_referred(
    registry: kopf.OperatorRegistry, controller: Callable[[], Controller], kind: Kind, users: Users
) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"referred-{kind.plural}")
    async def referred(event: kopf.RawEvent, namespace: str | None, name: str, **_: Any) -> None:
        key = Key(kind, namespace if kind.namespaced else None, name)
        controller().seen(key, deleted=event["type"] == "DELETED")
        for user in users.of(Referred(kind, key.namespace, key.name)):
            controller().touch(Key(SERVING_POOL, *user))


def _watch_children(registry: kopf.OperatorRegistry, controller: Callable[[], Controller]) -> None:
    async def child(labels: kopf.Labels, namespace: str | None, **_: Any) -> None:
        owner = labels.get(names.LABEL_SERVING_POOL)
        if owner:
            controller().touch(Key(SERVING_POOL, namespace, owner))

    for kind in BUILT_IN_CHILDREN:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"child-{kind.plural}")(child)


def kopf_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    """kopf's settings: children are filtered by label on the server, and kopf posts no Events."""
    result = kopf.OperatorSettings()
    result.posting.enabled = False
    result.peering.standalone = True
    result.networking.request_timeout = settings.request_timeout_s
    result.watching.server_timeout = 300
    for kind in BUILT_IN_CHILDREN:
        result.watching.label_selectors[kind.group, kind.version, kind.plural] = (
            f"{names.APP_MANAGED_BY}={names.MANAGER}"
        )
    return result
