"""Whatever is edited, refused, lost and killed on the way, it ends in what the last spec asks for.

Looks go by what informers keep, informers hear only when the test lets them, and each write may be refused, may succeed
without an answer, or may be the process's last. Then the faults end, and:

1. every object is as it is in a cluster that never had another spec, and nothing else of ours is there;
2. looks write nothing any more;
3. unless somebody meddled, no Event has said so: our own changes of mind are not taken for foreign edits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_operator.api import informer
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.api.cached import CachedCluster
from ballast_operator.api.cluster import Snapshot
from ballast_operator.kinds import GATEWAY, OPTIONAL_CHILDREN, Kind, Manifest
from ballast_operator.reconcile import Reconciler
from ballast_operator.settings import OperatorSettings
from tests.support.object_store import Killed, StoreKey, key_of
from tests.support.operator_builders import (
    DEFAULTS,
    FRESH_TOKEN,
    NAMESPACE,
    NOW,
    objective,
    policy,
    pool,
    profile,
    serving_pool,
)
from tests.support.versioned_store import Events, VersionedStore

T = TypeVar("T")

ENGINE = {"image": "registry.test/engine:1"}
SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bigger": {
        "pools": (pool("prefill", "Prefill", hardware="a100", replicas=3), pool("decode", "Decode", replicas=6))
    },
    "renamed": {"pools": (pool("first", "Prefill", hardware="a100"), pool("decode", "Decode", replicas=4))},
    "flexible": {"pools": (pool("all", "Flexible"),)},
    "two-parents": {"gateway": {"face": "Both", "parentRefs": [{"name": "front"}, {"name": "back"}]}},
    "one-parent": {"gateway": {"face": "Both", "parentRefs": [{"name": "front"}]}},
    "batches": {"engine": {**ENGINE, "args": ["--max-num-seqs", "9"]}},
    "policed": {"policyRef": {"name": "fair"}, "sloRef": {"name": "fast"}},
    "dangling": {"policyRef": {"name": "missing"}},
    "invalid": {"pools": (pool("decode", "Nonsense"),)},
}
REFUSALS = {
    "conflict": ApiFailure(409, "Conflict", "the object has been modified"),
    "busy": ApiFailure(429, "TooManyRequests", "slower"),
    "internal": ApiFailure(500, "InternalError", "failed calling webhook"),
    "away": ApiFailure(503, "ServiceUnavailable", "etcd leader changed"),
}
FAULTS = (*REFUSALS, "unanswered", "killed-before", "killed-after")
MOST_ROUNDS = 30


def gateway(name: str) -> Manifest:
    metadata = {"name": name, "namespace": NAMESPACE, "uid": name}
    return {"apiVersion": GATEWAY.api_version, "kind": GATEWAY.kind, "metadata": metadata}


def spec_of(name: str, generation: int, status: Manifest | None = None) -> Manifest:
    content = dict(SPECS[name])
    return serving_pool(*content.pop("pools", ()), generation=generation, status=status, **content)


REFERRED = (profile("a100"), profile("h20"), policy(), objective(), gateway("front"), gateway("back"))


def store_of(spec: Manifest) -> VersionedStore:
    return VersionedStore(spec, *REFERRED, optional=(*OPTIONAL_CHILDREN, GATEWAY))


class Faulty:
    """The store as a server that does to the next writes what it is told to, and may lose what watches should say."""

    def __init__(self, store: VersionedStore) -> None:
        self.store = store
        self.fault: str | None = None
        self.writes_left = 0
        self.loses = False

    def snapshot(self, kind: Kind, namespace: str | None, *, labels: str = "") -> Snapshot:
        return self.store.snapshot(kind, namespace, labels=labels)

    def watch(self, kind: Kind, namespace: str | None, *, labels: str = "", since: int, lasts_s: float) -> Events:
        found = self.store.watch(kind, namespace, labels=labels, since=since, lasts_s=lasts_s)
        if self.loses:
            found.events = found.events[-1:]
        return found

    def kinds_of(self, api_version: str) -> frozenset[str]:
        return self.store.kinds_of(api_version)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        return self.store.get(kind, namespace, name)

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        raise AssertionError(f"{kind.plural} are listed in a look")

    def apply(self, manifest: Manifest, manager: str) -> Manifest:
        return self._write(lambda: self.store.apply(manifest, manager))

    def apply_status(self, kind: Kind, of: Manifest, status: Manifest, manager: str) -> Manifest:
        return self._write(lambda: self.store.apply_status(kind, of, status, manager))

    def relabel(self, kind: Kind, metadata: Manifest, manager: str) -> Manifest:
        return self._write(lambda: self.store.relabel(kind, metadata, manager))

    def delete(self, manifest: Manifest) -> Manifest | None:
        self._write(lambda: self.store.delete(manifest))
        return None

    def create_event(self, event: Manifest) -> None:
        self._write(lambda: self.store.create_event(event))

    def _write(self, write: Callable[[], T]) -> T:
        fault = self.fault if self.writes_left == 0 else None
        self.writes_left -= 1
        if fault is not None:
            self.fault = None
            if fault in REFUSALS:
                raise REFUSALS[fault]
            if fault == "killed-before":
                raise Killed
        answer = write()
        if fault == "killed-after":
            raise Killed
        if fault == "unanswered":
            raise ApiFailure(0, "Unreachable", "the connection broke")
        return answer


class World:
    """A store, and an operator that goes by what it has heard."""

    def __init__(self, spec: str) -> None:
        self.spec, self.generation = spec, 1
        self.store = store_of(spec_of(spec, 1))
        self.server = Faulty(self.store)
        self.now_s = 0.0
        self.start()

    def start(self) -> None:
        """A new process: it knows what a list says."""
        self.server.fault, self.server.loses = None, False
        self.cluster = CachedCluster(self.server, self.server, (), clock=lambda: self.now_s)
        options = OperatorSettings(gateway=DEFAULTS)
        self.operator = Reconciler(self.cluster, self.cluster, options, lambda: NOW, lambda: FRESH_TOKEN)
        self.hear()

    def hear(self) -> None:
        """All that watches have to say."""
        for each in self.cluster.informers.values():
            each.turn()
            each.turn()

    def look(self, fault: str | None = None, after: int = 0) -> None:
        self.server.fault, self.server.writes_left = fault, after
        try:
            with contextlib.suppress(ApiFailure):
                self.operator.serving_pool(NAMESPACE, "chat")
        except Killed:
            self.start()
        self.server.fault = None

    def edit(self, spec: str) -> None:
        self.spec, self.generation = spec, self.generation + 1
        status = self.store.objects["ServingPool", NAMESPACE, "chat"].get("status")
        self.store.put(spec_of(spec, self.generation, status))

    def meddle(self, number: int, how: str) -> None:
        """Somebody deletes one of our objects, or changes it."""
        children = sorted(key for key, item in self.store.objects.items() if item["metadata"].get("ownerReferences"))
        if not children:
            return
        key = children[number % len(children)]
        if how == "delete":
            self.store.remove(key)
        elif "spec" in self.store.objects[key]:
            live = self.store.objects[key]
            self.store.put({**live, "spec": dict.fromkeys(live["spec"])})

    def refer(self, number: int) -> None:
        """Somebody deletes what specs name, or brings it back."""
        manifest = REFERRED[number % len(REFERRED)]
        key = key_of(manifest)
        if key in self.store.objects:
            self.store.remove(key)
        else:
            self.store.put(manifest)

    def bring_back(self) -> None:
        """All that specs name is there."""
        for number, manifest in enumerate(REFERRED):
            if key_of(manifest) not in self.store.objects:
                self.refer(number)

    def settle(self) -> None:
        """Looks until neither they nor the cluster's controllers have anything to do."""
        self.server.loses = False
        self.now_s += informer.RELIST_S + 1.0
        quiet = 0
        for _ in range(MOST_ROUNDS):
            before = self.store.version
            self.hear()
            self.look()
            self.store.run_deployments()
            quiet = quiet + 1 if self.store.version == before else 0
            if quiet == 2:
                return
        raise AssertionError(f"still writing: {self.store.writes[-6:]}")


def bare(store: VersionedStore) -> dict[StoreKey, Any]:
    found = {}
    for key, item in store.state().items():
        metadata = {name: value for name, value in item["metadata"].items() if name not in ("resourceVersion", "uid")}
        found[key] = {**item, "metadata": metadata}
    return found


def expected(spec: str, generation: int) -> dict[StoreKey, Any]:
    world = World(spec)
    world.store.put(spec_of(spec, generation))
    world.settle()
    return bare(world.store)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("edit"), st.sampled_from(sorted(SPECS))),
        st.tuples(st.just("look"), st.sampled_from((None, *FAULTS)), st.integers(0, 24)),
        st.tuples(st.just("look"), st.none(), st.just(0)),
        st.tuples(st.just("hear")),
        st.tuples(st.just("nodes")),
        st.tuples(st.just("lose")),
        st.tuples(st.just("forget")),
        st.tuples(st.just("refer"), st.integers(0, len(REFERRED) - 1)),
        st.tuples(st.just("meddle"), st.integers(0, 30), st.sampled_from(("delete", "change"))),
    ),
    max_size=14,
)


@pytest.mark.rotating(2)
@settings(max_examples=10, deadline=None)
@given(first=st.sampled_from(sorted(SPECS)), steps=STEPS)
def test_it_ends_in_what_the_last_spec_asks_for(first: str, steps: list[tuple[Any, ...]]) -> None:
    """Invariants 1 to 3. A spec that nobody could act on leaves what was there: its end is not compared."""
    world = World(first)
    for verb, *more in steps:
        match verb:
            case "edit":
                world.edit(*more)
            case "look":
                world.look(*more)
            case "hear":
                world.hear()
            case "nodes":
                world.store.run_deployments()
            case "lose":
                world.server.loses = True
                world.hear()
                world.server.loses = False
            case "forget":
                world.store.forget()
            case "refer":
                world.refer(*more)
            case "meddle":
                world.meddle(*more)
    world.bring_back()
    if world.spec in ("invalid", "dangling"):
        world.edit("plain")
    world.settle()
    assert bare(world.store) == expected(world.spec, world.generation)
    if not any(verb == "meddle" for verb, *_ in steps):
        assert [event for event in world.store.events if event["reason"] == "EditReverted"] == []
