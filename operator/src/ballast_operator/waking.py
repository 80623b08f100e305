"""What a change of an object means to the controller: which objects are to be looked at. In the event loop's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ballast_api import names
from ballast_operator.api.kept import Change
from ballast_operator.controller import Controller, Key
from ballast_operator.kinds import GATEWAY, GATEWAY_CLASS, HTTP_ROUTE, POD, REFERRED, SERVING_POOL, Kind, Manifest
from ballast_operator.planning.references import named_gateways, named_objects
from ballast_operator.reading.users import Referred, Users


class Waking:
    """Tells `controller`, and keeps `users`. `pools`: all ServingPools."""

    def __init__(self, controller: Controller, users: Users, pools: Callable[[], Iterable[Manifest]]) -> None:
        self._controller = controller
        self._users = users
        self._pools = pools

    def told(self, kind: Kind, changes: Iterable[Change]) -> None:
        """Objects of a kind have changed."""
        for change in changes:
            if kind is SERVING_POOL:
                self._serving_pool(change)
            elif kind in REFERRED:
                self._referred(kind, change)
            else:
                for key in set(self._woken(kind, change)):
                    self._controller.touch(key)

    def turned(self) -> None:
        """A kind has become readable, or is readable no more."""
        self._controller.touch_all()

    def _serving_pool(self, change: Change) -> None:
        namespace, name = change.name
        assert namespace is not None
        named = () if change.manifest is None else named_objects(change.manifest)
        for each in self._users.put(namespace, name, named):
            self._controller.touch(Key(each.kind, each.namespace, each.name))
        self._controller.seen(Key(SERVING_POOL, namespace, name), deleted=change.manifest is None)

    def _referred(self, kind: Kind, change: Change) -> None:
        self._controller.seen(Key(kind, *change.name), deleted=change.manifest is None)
        for user in self._users.of(Referred(kind, *change.name)):
            self._controller.touch(Key(SERVING_POOL, *user))

    def _woken(self, kind: Kind, change: Change) -> Iterator[Key]:
        """ServingPools that an object belongs to, or belonged to before. Pods wake nobody: the counts of their
        Deployments change with them. A route that is nobody's, or gone, wakes those that may have matched like it."""
        if kind in (GATEWAY, GATEWAY_CLASS) and change.same_generation:
            return  # its status counts the routes of all ServingPools, and no look reads it
        owners = {owner for labels in change.labels if (owner := labels.get(names.LABEL_SERVING_POOL))}
        if kind in (GATEWAY, GATEWAY_CLASS) or (kind is HTTP_ROUTE and not (owners and change.manifest)):
            for pool in self._pools():
                gateways = named_gateways(pool)
                if change.name in gateways or (kind is not GATEWAY and gateways):
                    yield Key(SERVING_POOL, pool["metadata"]["namespace"], pool["metadata"]["name"])
        if kind not in (GATEWAY, GATEWAY_CLASS, POD):
            for owner in owners:
                yield Key(SERVING_POOL, change.name[0], owner)
