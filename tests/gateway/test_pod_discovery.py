"""Endpoints from pods: what a pod means (pure), and list and watch against a server that speaks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from kubernetes.aio import client as kubernetes

from ballast_api.gateway_settings import KubernetesDiscovery
from ballast_core.model import Endpoint, EndpointId, Role
from ballast_core.model.events import EndpointDraining, EndpointLost, EndpointObserved, EndpointRestored, Event
from ballast_gateway.observe import watch
from ballast_gateway.observe.fleet import Fleet
from ballast_gateway.observe.peers import PeerPods
from ballast_gateway.observe.pods import PodChange, PodDraining, PodGone, PodReady, read_pod
from ballast_gateway.observe.watch import PodDiscovery, PodWatch
from tests.support.gateway_kit import until
from tests.support.pod_api import PodApi, WatchFault, pod, pod_api

A = EndpointId("a")
FIRST_S = 0.01
"""The first pause, where a test waits for several."""


def listening(*containers: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A pod whose containers are these; sidecars of the name `agent` are init containers."""
    init = [each for each in containers if each["name"] == "agent"]
    return {
        **pod("a", **metadata),
        "spec": {"initContainers": init, "containers": [each for each in containers if each not in init]},
    }


def container(name: str, **ports: int) -> dict[str, Any]:
    return {"name": name, "ports": [{"name": key, "containerPort": port} for key, port in ports.items()]}


AGENT = {"serving.ballast.dev/pod-api-port": "9004"}


def ready(
    role: Role = Role.DECODE, address: str = "10.0.0.1:8000", pool: str = "", profile: str = "", revision: str = ""
) -> PodReady:
    return PodReady(Endpoint(A, address, role, pool, profile, revision), "uid-1")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (pod("a"), ready()),
        (pod("a", role="prefill"), ready(Role.PREFILL)),
        (pod("a", role="flexible"), ready(Role.FLEXIBLE)),
        (pod("a", ip="fd00::5"), ready(address="[fd00::5]:8000")),
        (pod("a", labels={"serving.ballast.dev/pool": "h20"}), ready(pool="h20")),
        (pod("a", annotations={"serving.ballast.dev/hardware-profile": "h20-x"}), ready(profile="h20-x")),
        (pod("a", labels={"serving.ballast.dev/kv-revision": "1f"}), ready(revision="1f")),
        (pod("a", role=None, labels={"llm-d.ai/role": "prefill"}), ready(Role.PREFILL)),
        (pod("a", role=None, labels={"llm-d.ai/role": "prefill-decode"}), ready(Role.FLEXIBLE)),
        (pod("a", role=None, labels={"llm-d.ai/role": "both"}), ready(Role.FLEXIBLE)),
        (pod("a", role="decode", labels={"llm-d.ai/role": "prefill"}), ready(Role.DECODE)),
        (pod("a", deleting=True), PodDraining(A)),
        (pod("a", deleting=True, ready=False), PodDraining(A)),
        (pod("a", ready=False), PodGone(A, "not ready")),
        (pod("a", ip=""), PodGone(A, "has no IP address")),
        (
            {"metadata": {"name": "a"}},
            PodGone(A, "label serving.ballast.dev/role is None: use prefill, decode or flexible"),
        ),
        (
            pod("a", role="Decode"),
            PodGone(A, "label serving.ballast.dev/role is 'Decode': use prefill, decode or flexible"),
        ),
        ({**pod("a"), "status": {}}, PodGone(A, "not ready")),
    ],
)
def test_what_a_pod_means(item: dict[str, Any], expected: PodChange) -> None:
    """Ready pods serve, pods being deleted drain, all others are gone; our role label wins over llm-d's."""
    assert read_pod(item, port=8000) == expected


@pytest.mark.parametrize(
    ("item", "port"),
    [
        (listening(container("engine", nixl=5600, http=9000)), 9000),
        (listening(container("agent", http=9001), container("engine", nixl=5600), annotations=AGENT), 9001),
        (listening(container("agent", http=9001), container("engine", http=8200), annotations=AGENT), 9001),
        (listening(container("agent"), container("engine", http=8200), annotations=AGENT), 8000),
        (listening(container("agent", http=9001), container("engine", http=9000)), 9000),
        (listening(container("istio-proxy", http=15001), container("vllm", http=8080)), 8000),
        (listening({"name": "engine"}), 8000),
    ],
)
def test_a_pod_says_where_it_listens(item: dict[str, Any], port: int) -> None:
    """By the port that the operator names in its own containers, the agent's before the engine's; where none is named,
    and in pods of other hands, it is the configured one."""
    change = read_pod(item, port=8000)
    assert isinstance(change, PodReady)
    assert change.endpoint.address == f"10.0.0.1:{port}"


class Watched:
    """A pod discovery at work."""

    def __init__(self, api: PodApi) -> None:
        self.api = api
        self.events: list[Event] = []
        self.fleet = Fleet(self.events.append, failures_until_lost=3)

    def ids(self) -> set[str]:
        return set(self.fleet.members)


@asynccontextmanager
async def at_work(api: PodApi, make: Callable[[kubernetes.ApiClient], PodWatch]) -> AsyncIterator[None]:
    """A watch of this server's pods."""
    configuration = kubernetes.Configuration(host=f"http://127.0.0.1:{api.port}")
    configuration.api_key["BearerToken"] = "Bearer secret"
    client = kubernetes.ApiClient(configuration)
    task = asyncio.create_task(make(client).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()  # type: ignore[no-untyped-call]


@asynccontextmanager
async def watching(*names: str) -> AsyncIterator[Watched]:
    """The discovery in front of a server that has these pods."""
    async with pod_api() as api:
        for name in names:
            api.put(pod(name))
        made = Watched(api)
        settings = KubernetesDiscovery(namespace="ns", selector="x=y,z in (1)", port=8000)
        async with at_work(api, lambda client: PodDiscovery(settings, made.fleet, client)):
            await until(lambda: made.fleet.synced and api.watchers)
            yield made


async def test_it_lists_then_follows(caplog: pytest.LogCaptureFixture) -> None:
    """Added, draining, deleted; by the selector, with the credentials, from the list's version."""
    async with watching("a") as watched:
        api = watched.api
        assert watched.ids() == {"a"}
        api.put(pod("b", ip="10.0.0.2"))
        await until(lambda: watched.ids() == {"a", "b"})
        api.put(pod("a", deleting=True))
        api.delete("a")
        await until(lambda: watched.ids() == {"b"})
        assert watched.events == [
            EndpointObserved(Endpoint(A, "10.0.0.1:8000", Role.DECODE)),
            EndpointObserved(Endpoint(EndpointId("b"), "10.0.0.2:8000", Role.DECODE)),
            EndpointDraining(A),
            EndpointLost(A),
        ]
        assert api.queries[0] == {"labelSelector": "x=y,z in (1)"}
        assert api.queries[1]["resourceVersion"] == "101"
        assert api.queries[1]["allowWatchBookmarks"] == "true"
        assert {headers["authorization"] for headers in api.headers} == {"Bearer secret"}


async def test_a_pod_that_stops_being_ready_is_lost_and_comes_back() -> None:
    """Readiness is the pod's own word."""
    async with watching("a") as watched:
        watched.api.put(pod("a", ready=False))
        await until(lambda: watched.ids() == set())
        watched.api.put(pod("a"))
        await until(lambda: watched.ids() == {"a"})
        assert [type(event) for event in watched.events] == [EndpointObserved, EndpointLost, EndpointObserved]


async def test_a_mark_drains_a_pod_until_it_is_taken_back() -> None:
    """The operator's word on the pod. One that is found with it drains from the start, and a deletion is final."""
    marked = {"serving.ballast.dev/draining-since": "2026-11-23T16:00:00Z"}
    async with watching("a") as watched:
        api, fleet = watched.api, watched.fleet
        api.put(pod("a", annotations=marked))
        await until(lambda: fleet.members[A].state == "draining")
        api.put(pod("a"))
        await until(lambda: fleet.members[A].state == "ready")
        api.put(pod("b", ip="10.0.0.2", annotations=marked))
        await until(lambda: "b" in watched.ids())
        assert fleet.members[EndpointId("b")].state == "draining"
        api.put(pod("a", deleting=True))
        await until(lambda: fleet.members[A].state == "draining")
        assert [type(event) for event in watched.events] == [
            *(EndpointObserved, EndpointDraining, EndpointRestored),
            *(EndpointObserved, EndpointDraining),  # one that appears as draining, and the first again
        ]


async def test_after_410_it_lists_again() -> None:
    """What went meanwhile is gone, what came is there; what stayed is not touched."""
    async with watching("a", "b") as watched:
        api = watched.api
        del api.pods["a"]
        api.pods["c"] = pod("c")
        before = len(watched.events)
        api.expire()
        await until(lambda: watched.ids() == {"b", "c"})
        assert [type(event) for event in watched.events[before:]] == [EndpointLost, EndpointObserved]
        await until(lambda: api.watchers)
        api.put(pod("d"))
        await until(lambda: watched.ids() == {"b", "c", "d"})


@pytest.mark.parametrize("fault", ["gets 410", "gets an expired event", "ends at once"])
async def test_a_server_whose_watches_all_fail_is_not_flooded_with_lists(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: WatchFault
) -> None:
    """Each pause before a list is twice the one before it; a watch that works makes the next one short again."""
    monkeypatch.setattr(watch, "_FIRST_BACKOFF_S", FIRST_S)
    caplog.set_level("INFO", watch.__name__)
    async with watching("a") as watched:
        api = watched.api
        api.watch_fault = fault
        api.cut()
        await until(lambda: len(api.listed_s) >= 6)
        again_s = api.listed_s[1:6]
        pauses_s = [after - before for before, after in pairwise(again_s)]
        assert all(pause >= 0.9 * FIRST_S * 2**n for n, pause in enumerate(pauses_s, start=1))
        assert watched.ids() == {"a"}

        api.watch_fault = None
        await until(lambda: api.watchers)
        api.put(pod("b", ip="10.0.0.2"))
        await until(lambda: watched.ids() == {"a", "b"})
        caplog.clear()
        api.cut()
        await until(lambda: caplog.records)
        assert [vars(record)["retry_in_s"] for record in caplog.records] == [FIRST_S]


async def test_bookmarks_move_the_version_on() -> None:
    """So that a new watch starts late enough."""
    async with watching("a") as watched:
        api = watched.api
        api.bookmark()
        api.put(pod("b"))
        await until(lambda: watched.ids() == {"a", "b"})


async def test_while_the_api_server_is_away_the_endpoints_stay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And it comes back with a growing pause."""
    monkeypatch.setattr(watch, "_FIRST_BACKOFF_S", 0.01)
    async with watching("a") as watched:
        api = watched.api
        api.fail_with = 500
        api.cut()
        asked = len(api.queries)
        await until(lambda: len(api.queries) >= asked + 3)
        assert watched.ids() == {"a"}
        assert watched.events == [EndpointObserved(Endpoint(A, "10.0.0.1:8000", Role.DECODE))]
        api.put(pod("b"))
        api.fail_with = None
        await until(lambda: watched.ids() == {"a", "b"})
    assert "cannot watch pods" in caplog.text


# --- other gateways --------------------------------------------------------------------------------------------------


async def test_a_gateway_that_drains_is_followed_until_its_pod_is_gone() -> None:
    """By those that see it begin, also after they have listed again, and by one that starts meanwhile."""
    serves = {"serving.ballast.dev/pod-api-port": "9004"}
    first: list[list[str]] = []
    second: list[list[str]] = []
    both = ["10.0.0.1:9004", "10.0.0.2:9004"]

    def following(said: list[list[str]]) -> Callable[[kubernetes.ApiClient], PodWatch]:
        return lambda client: PeerPods("ns", "x=y", client, lambda addresses: said.append(list(addresses)))

    async with pod_api() as api:
        api.put(pod("a", annotations=serves))
        api.put(pod("b", ip="10.0.0.2", annotations=serves, ready=False))
        async with at_work(api, following(first)):
            await until(lambda: first == [both] and api.watchers)
            api.put(pod("a", annotations=serves, deleting=True))
            api.expire()
            await until(lambda: len(first) == 2)
            assert first[1] == both
            async with at_work(api, following(second)):
                await until(lambda: second == [both] and len(api.watchers) == 2)
                api.delete("a")
                await until(lambda: [said[-1] for said in (first, second)] == [both[1:], both[1:]])
