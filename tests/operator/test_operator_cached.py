"""Looks through what is kept, with the real client over HTTP: what they read, what they see, and what wakes them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kubernetes import client

from ballast_api import names
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.api.cached import OURS, CachedCluster, connections_of
from ballast_operator.api.cluster import Cluster
from ballast_operator.api.kept import Change
from ballast_operator.controller import Controller
from ballast_operator.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    GATEWAY,
    GATEWAY_CLASS,
    HARDWARE_PROFILE,
    HTTP_ROUTE,
    OPTIONAL_CHILDREN,
    POD,
    SCHEDULING_POLICY,
    SERVING_POOL,
    WATCHED,
    Kind,
    Manifest,
)
from ballast_operator.reading.users import Referred, Users
from ballast_operator.reconcile import Reconciler, Result
from ballast_operator.settings import OperatorSettings
from ballast_operator.waking import Waking
from tests.support.operator_builders import (
    DEFAULTS,
    FRESH_TOKEN,
    FRONT,
    NAMESPACE,
    NOW,
    pool,
    reconciler,
    referred,
    serving_pool,
    stored_condition,
    with_all_references,
)
from tests.support.store_server import served
from tests.support.versioned_store import VersionedStore

SPEC = with_all_references()
SECRET_PATH = f"/api/v1/namespaces/{NAMESPACE}/secrets/chat-gateway-token"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/chat-gateway"


def store_of(*objects: Manifest) -> VersionedStore:
    return VersionedStore(SPEC, FRONT, *referred(), *objects, optional=(*OPTIONAL_CHILDREN, GATEWAY))


class Running:
    """An operator's reads and writes over HTTP, without its queue."""

    def __init__(self, store: VersionedStore, namespaces: tuple[str, ...] = ()) -> None:
        self.store = store
        self.reads: list[str] = []
        self.told: list[tuple[Kind, Change]] = []
        self._served = served(store, self.reads)
        client.Configuration.set_default(client.Configuration(host=self._served.__enter__()))
        server, watched = (
            Cluster(timeout_s=5.0, connections=connections) for connections in (2, connections_of(namespaces))
        )
        self.cluster = CachedCluster(
            server,
            watched,
            namespaces,
            told=lambda kind, changes: self.told.extend((kind, change) for change in changes),
            absent_retry_s=0.05,
        )
        settings = OperatorSettings(gateway=DEFAULTS, namespaces=namespaces)
        self.operator = Reconciler(self.cluster, self.cluster, settings, lambda: NOW, lambda: FRESH_TOKEN)
        self.cluster.start()
        wait(lambda: self.cluster.settled)

    def look(self) -> Result:
        return self.operator.serving_pool(NAMESPACE, "chat")

    def settle(self) -> None:
        for _ in range(5):
            before = len(self.store.writes)
            self.look()
            if len(self.store.writes) == before:
                return
        raise AssertionError(self.store.writes[-5:])

    def informed(self) -> None:
        """Until every watch has come as far as the store."""
        wait(lambda: all(each.kept.version >= self.store.version for each in self.cluster.informers.values()))

    def close(self) -> None:
        self.cluster.stop()
        self._served.__exit__(None, None, None)
        client.Configuration.set_default(None)


def wait(what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 20.0
    while not what():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.005)


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    """Starts operators, and ends them with the test."""
    started: list[Running] = []

    def begin(store: VersionedStore, namespaces: tuple[str, ...] = ()) -> Running:
        started.append(Running(store, namespaces))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def test_looks_at_what_is_kept_end_where_looks_at_the_server_do(run: Callable[..., Running]) -> None:
    """From nothing, and after an edit that prunes; each look sees what the one before has written."""
    direct = store_of()
    for _ in range(3):
        reconciler(direct).serving_pool(NAMESPACE, "chat")
    each = run(store_of())
    each.settle()
    assert each.store.writes == direct.writes
    for store in (each.store, direct):
        status = store.objects["ServingPool", NAMESPACE, "chat"]["status"]
        store.put(serving_pool(pool("all", "Flexible"), generation=2, status=status))
    each.informed()
    each.settle()
    for _ in range(3):
        reconciler(direct).serving_pool(NAMESPACE, "chat")
    assert each.store.writes == direct.writes
    assert ("Deployment", NAMESPACE, "chat-decode") not in each.store.objects


def test_a_look_at_a_settled_pool_asks_the_server_for_two_objects(run: Callable[..., Running]) -> None:
    """Its Secret and its Lease, by name. Nothing is listed after the start, however many looks there are."""
    each = run(store_of())
    each.settle()
    each.informed()
    each.reads.clear()
    for _ in range(5):
        each.look()
    assert each.reads == [SECRET_PATH, LEASE_PATH] * 5


def test_an_operator_of_single_namespaces_watches_those_and_what_is_everywhere(run: Callable[..., Running]) -> None:
    """Rights in the namespaces are enough, but for profiles and Gateways."""
    each = run(store_of(), ("lab", NAMESPACE))
    each.settle()
    assert ("Deployment", NAMESPACE, "chat-decode") in each.store.objects
    everywhere = {read.partition("?")[0].rpartition("/")[2] for read in each.reads if "/namespaces/" not in read}
    assert everywhere >= {"gateways", "hardwareprofiles", "gatewayclasses"}
    assert not everywhere & {"servingpools", "deployments", "pods", "schedulingpolicies"}


def test_an_object_of_another_owner_is_asked_for_before_its_name_is_taken(run: Callable[..., Running]) -> None:
    """It has none of our labels, so no watch tells of it."""
    theirs: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat-decode", "namespace": NAMESPACE, "uid": "theirs", "labels": {}},
        "spec": {"ports": []},
    }
    each = run(store_of(theirs))
    each.look()
    assert each.store.objects["Service", NAMESPACE, "chat-decode"]["metadata"]["uid"] == "theirs"
    assert stored_condition(each.store, "Degraded")["reason"] == "NameConflict"


def test_a_missing_right_to_watch_is_a_condition_that_names_the_verb(run: Callable[..., Running]) -> None:
    """Nothing is changed meanwhile, and all goes on when the right is there."""
    words = 'poddisruptionbudgets.policy is forbidden: User "ballast" cannot watch resource "poddisruptionbudgets"'
    store = store_of()
    store.refuse_reads = {"PodDisruptionBudget": ApiFailure(403, "Forbidden", words)}
    each = run(store)
    assert each.look().failed
    degraded = stored_condition(store, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "RightsMissing")
    assert words in degraded["message"]
    assert {verb for verb, _, _ in (line.split(" ", 2) for line in store.writes)} == {"status", "event"}
    store.refuse_reads = {}
    wait(lambda: all(informer.trouble is None for informer in each.cluster.informers.values()))
    each.settle()
    assert stored_condition(store, "Degraded")["status"] == "False"
    assert ("Deployment", NAMESPACE, "chat-decode") in store.objects


def test_what_others_write_is_told_once_it_is_kept(run: Callable[..., Running]) -> None:
    """With the labels by which its ServingPool is found; whoever is told reads the new object."""
    each = run(store_of())
    each.settle()
    each.informed()
    each.told.clear()
    live = each.store.objects["Deployment", NAMESPACE, "chat-decode"]
    each.store.put({**live, "spec": {**live["spec"], "replicas": 0}})
    wait(lambda: each.told)
    [(kind, change)] = each.told
    assert (kind, change.name) == (DEPLOYMENT, (NAMESPACE, "chat-decode"))
    assert [labels[names.LABEL_SERVING_POOL] for labels in change.labels] == ["chat", "chat"]
    found = each.cluster.list(DEPLOYMENT, NAMESPACE, labels=f"{OURS},{names.LABEL_SERVING_POOL}=chat")
    assert {item["metadata"]["name"]: item["spec"].get("replicas") for item in found}["chat-decode"] == 0


class Looks:
    """Remembers which keys were looked at."""

    def __init__(self) -> None:
        self.keys: set[tuple[str, str | None, str]] = set()
        self._lock = threading.Lock()

    async def reach(self, keys: set[tuple[str, str | None, str]]) -> None:
        await asyncio.to_thread(wait, lambda: self.keys == keys)

    def serving_pool(self, namespace: str, name: str) -> Result:
        with self._lock:
            self.keys.add(("ServingPool", namespace, name))
        return Result()

    def referred(self, kind: Kind, namespace: str | None, name: str) -> Result:
        with self._lock:
            self.keys.add((kind.kind, namespace, name))
        return Result()


POOL = ("ServingPool", NAMESPACE, "chat")
CHILD = {names.LABEL_SERVING_POOL: "chat"}


@pytest.mark.parametrize(
    ("kind", "change", "looked"),
    [
        (DEPLOYMENT, Change((NAMESPACE, "x"), (CHILD,), {}), {POOL}),
        (CONFIG_MAP, Change((NAMESPACE, "x"), (CHILD,), None), {POOL}),
        (HTTP_ROUTE, Change((NAMESPACE, "x"), ({}, CHILD), {}), {POOL}),
        (DEPLOYMENT, Change((NAMESPACE, "x"), ({},), {}), set()),
        (POD, Change((NAMESPACE, "x"), (CHILD,), {}), set()),
        (GATEWAY, Change((NAMESPACE, "front"), ({},), {}), {POOL}),
        (GATEWAY, Change(("lab", "front"), ({},), {}), set()),
        (GATEWAY, Change((NAMESPACE, "front"), ({}, {}), {}, same_generation=True), set()),
        (GATEWAY_CLASS, Change((None, "envoy"), ({},), {}), {POOL}),
        (SCHEDULING_POLICY, Change((NAMESPACE, "fair"), ({},), {}), {POOL, ("SchedulingPolicy", NAMESPACE, "fair")}),
        (SCHEDULING_POLICY, Change((NAMESPACE, "other"), ({},), {}), {("SchedulingPolicy", NAMESPACE, "other")}),
        (HARDWARE_PROFILE, Change((None, "h20"), ({},), None), {POOL, ("HardwareProfile", None, "h20")}),
    ],
    ids=lambda value: (
        f"{value.kind}" if isinstance(value, Kind) else value.name[1] if isinstance(value, Change) else ""
    ),
)
async def test_a_change_wakes_those_whom_it_concerns(
    kind: Kind, change: Change, looked: set[tuple[str, str | None, str]]
) -> None:
    """And nobody else: the first look at everything is over by then."""
    looks, users = Looks(), Users()
    controller = Controller(looks, OperatorSettings(gateway=DEFAULTS, resync_s=60.0))
    waking = Waking(controller, users, lambda: [SPEC])
    waking.told(SERVING_POOL, [Change((NAMESPACE, "chat"), ({},), SPEC)])
    controller.start()
    first: set[tuple[str, str | None, str]] = {
        POOL,
        ("SchedulingPolicy", NAMESPACE, "fair"),
        ("ServiceLevelObjective", NAMESPACE, "fast"),
    }
    first |= {("HardwareProfile", None, "a100"), ("HardwareProfile", None, "h20")}
    await looks.reach(first)
    looks.keys.clear()
    waking.told(kind, [change])
    await asyncio.sleep(0.05)
    assert looks.keys == looked
    looks.keys.clear()
    waking.told(SERVING_POOL, [Change((NAMESPACE, "chat"), ({},), None)])
    await looks.reach(first)
    assert users.of(Referred(HARDWARE_PROFILE, None, "h20")) == ()
    await controller.stop()


def test_every_kind_that_is_watched_has_one_informer() -> None:
    """No kind twice, in no namespace twice."""
    found = CachedCluster(Cluster(timeout_s=1.0, connections=1), Cluster(timeout_s=1.0, connections=1), ("b", "a"))
    assert len(found.informers) == connections_of(("a", "b"))
    assert {kind for kind, _ in found.informers} >= {*WATCHED, *OPTIONAL_CHILDREN, POD}
    assert {namespace for kind, namespace in found.informers if kind is POD} == {"a", "b"}
