"""Engines go without a cut stream: by an edit, an eviction, a deletion and a taint.

Streams with a `stop` end in place, all others can be moved; each is checked word by word. The engines' own drain time
is shorter than the streams, so an engine that is told to end before its pod is empty loses those with `stop`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench.reliability.kit.asking import ask as asking
from bench.reliability.kit.client import Fate, Outcome, send
from bench.reliability.kit.engines import MODEL as CHECKED_MODEL
from kit import Cluster, Kubectl, wait_until
from kit.quickstart import NAME, objects, wait_serving, with_own_profiles
from kit.release import Release

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("scale-down"),
    pytest.mark.rotating(3),
]

TIME_SCALE = 3.0
STREAMS, TOKENS = 8, 600
"""At 50 ms a token a stream takes half a minute, three times the engines' drain time."""
ENGINE_DRAIN_S, EMPTY_WITHIN_S = 10, 240
SELECTOR = f"serving.ballast.dev/serving-pool={NAME},serving.ballast.dev/pool=decode"
MARK = "serving.ballast.dev/draining-since"
TAINT = "e2e.ballast.dev/taken-back"


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, release: Release, module_namespace: str) -> Iterator[Kubectl]:
    """One prefill and three decode engines without a rescheduling policy."""
    if not cluster.is_testbed:
        pytest.skip("streams are checked from within the cluster's network")
    kubectl = cluster.kubectl.within(module_namespace)
    found, profiles = with_own_profiles(objects(cluster.images.ballast, TIME_SCALE), module_namespace)
    (pool,) = [item for item in found if item["kind"] == "ServingPool"]
    pool["spec"]["model"]["servedNames"] = [pool["spec"]["model"]["name"], CHECKED_MODEL]
    pool["spec"]["scaleDown"] = {"drainTimeoutS": EMPTY_WITHIN_S}
    pool["spec"].setdefault("gateway", {})["settings"] = {"limits": {"drainTimeoutS": ENGINE_DRAIN_S}}
    for entry in pool["spec"]["pools"]:
        entry["replicas"] = {"prefill": 1, "decode": 3}[entry["name"]]
    kubectl.apply(*found)
    wait_serving(kubectl, prefill=1, decode=3)
    yield kubectl
    for name in profiles:
        cluster.kubectl.delete_named("hardwareprofile", name)


def decodes(fleet: Kubectl) -> dict[str, dict[str, Any]]:
    return {pod["metadata"]["name"]: pod for pod in fleet.items("pods", SELECTOR)}


def staying(fleet: Kubectl) -> int:
    """Pods that are not ending."""
    return sum("deletionTimestamp" not in pod["metadata"] for pod in decodes(fleet).values())


def marked(fleet: Kubectl) -> set[str]:
    return {name for name, pod in decodes(fleet).items() if MARK in (pod["metadata"].get("annotations") or {})}


def wants(fleet: Kubectl, count: int) -> None:
    pools = fleet.get("servingpool", NAME)["spec"]["pools"]
    changed = [{**each, "replicas": count} if each["name"] == "decode" else each for each in pools]
    fleet.patch("servingpool", NAME, {"spec": {"pools": changed}})


def scaled(fleet: Kubectl, count: int) -> None:
    wants(fleet, count)
    wait_until(lambda: len(decodes(fleet)) == count, EMPTY_WITHIN_S + 60, f"{count} decode pods", poll_s=1.0)


def reasons(fleet: Kubectl) -> Counter[str]:
    """Events about the ServingPool."""
    return Counter(
        str(event["reason"]) for event in fleet.items("events") if event["involvedObject"]["kind"] == "ServingPool"
    )


@asynccontextmanager
async def streams(fleet: Kubectl, seed: int, *, stops: Callable[[int], bool]) -> AsyncIterator[None]:
    """Eight long streams that have begun; all are whole in the end, or the test fails."""
    host = fleet.get("service", f"{NAME}-gateway")["spec"]["clusterIP"]
    running: list[asyncio.Task[Outcome]] = []
    for number in range(STREAMS):
        more: dict[str, Any] = {"stop": ["~never said~"]} if stops(number) else {}
        one = asking(number, prompt_tokens=60, output_tokens=TOKENS, seed=seed, **more)
        running.append(asyncio.create_task(send(80, one, "e2e", bound_s=500, host=host)))
    await asyncio.sleep(5)
    yield
    outcomes = await asyncio.gather(*running)
    fates = Counter(f"{each.fate} {each.status} {each.reason}".strip() for each in outcomes)
    print(f"\nseed {seed}: {dict(fates)}")
    assert {each.fate for each in outcomes} == {Fate.WHOLE}, fates


async def test_fewer_replicas_cut_no_stream(fleet: Kubectl) -> None:
    """All have `stop`, and last three times as long as engines drain: the victims go when they are empty."""
    before = reasons(fleet)
    async with streams(fleet, 1, stops=lambda number: True):
        await asyncio.to_thread(scaled, fleet, 1)
    assert (reasons(fleet) - before)["Drained"] >= 2
    assert not (reasons(fleet) - before)["DrainTimedOut"]
    await asyncio.to_thread(scaled, fleet, 3)
    wait_serving(fleet, prefill=1, decode=3)


async def test_what_can_move_makes_a_scale_down_short(fleet: Kubectl) -> None:
    """It is over long before the streams are."""
    async with streams(fleet, 2, stops=lambda number: False):
        began = time.monotonic()
        await asyncio.to_thread(wants, fleet, 2)
        await asyncio.to_thread(wait_until, lambda: staying(fleet) == 2, 45, "a pod goes as streams run", poll_s=1.0)
        print(f"\nempty after {time.monotonic() - began:.0f} s")
    await asyncio.to_thread(scaled, fleet, 3)
    wait_serving(fleet, prefill=1, decode=3)


async def test_a_scale_down_is_taken_back(fleet: Kubectl) -> None:
    """The marks go, no pod does."""
    before = set(decodes(fleet))
    async with streams(fleet, 3, stops=lambda number: True):
        await asyncio.to_thread(wants, fleet, 1)
        await asyncio.to_thread(wait_until, lambda: len(marked(fleet)) == 2, 30, "two pods are marked")
        await asyncio.to_thread(wants, fleet, 3)
        await asyncio.to_thread(wait_until, lambda: not marked(fleet), 30, "the marks are taken off")
    assert set(decodes(fleet)) == before


def test_a_pod_that_is_deleted_as_it_starts_does_not_keep_its_gpu(fleet: Kubectl) -> None:
    """Its engine does not handle SIGTERM yet; the grace period is minutes."""
    before = set(decodes(fleet))
    wants(fleet, 4)

    def running() -> str | None:
        return next(
            (
                name
                for name, pod in decodes(fleet).items()
                for each in pod["status"].get("containerStatuses", ())
                if name not in before and "running" in each["state"]
            ),
            None,
        )

    name = wait_until(running, 60, "its container runs", poll_s=0.05)
    assert name is not None
    grace_s = decodes(fleet)[name]["spec"]["terminationGracePeriodSeconds"]
    fleet.run("delete", "pod", name, "--wait=false")
    assert grace_s > 120
    wait_until(lambda: name not in decodes(fleet), 60, "it has gone", poll_s=1.0)
    scaled(fleet, 3)


def tolerate(kubectl: Kubectl, pod: dict[str, Any]) -> None:
    """Let a running pod stay where TAINT is: tolerations may be added to one."""
    tolerations = [*pod["spec"]["tolerations"], {"key": TAINT, "operator": "Exists"}]
    where = pod["metadata"]
    kubectl.within(where["namespace"]).patch("pod", where["name"], {"spec": {"tolerations": tolerations}})


@pytest.mark.parametrize(
    ("how", "stops"),
    [("delete", False), ("delete", True), ("drain", True), ("taint", True)],
    ids=["delete", "delete-stop", "drain-stop", "taint-stop"],
)
async def test_a_deleted_pod_and_a_drained_node_lose_nothing(
    cluster: Cluster, fleet: Kubectl, how: str, stops: bool
) -> None:
    """What can move is out of the pod soon; the pod's hook waits for what cannot. An empty pod does not linger.

    Of a node with all decode engines one is drained, or does not tolerate the taint that clouds put on nodes that they
    take back: the others would wait for a place elsewhere.
    """
    name, pod = min(decodes(fleet).items(), key=lambda each: each[0])
    node = pod["spec"]["nodeName"]

    def take() -> None:
        if how == "delete":
            fleet.run("delete", "pod", name, "--wait=false")
        elif how == "taint":
            for other in cluster.kubectl.items_everywhere("pods"):
                if other["spec"].get("nodeName") == node and other["metadata"]["name"] != name:
                    tolerate(cluster.kubectl, other)
            cluster.kubectl.run("taint", "node", node, f"{TAINT}:NoExecute")
        else:
            fleet.run("label", "pod", name, "e2e=drain")
            flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s", "--pod-selector=e2e=drain")
            cluster.kubectl.run("drain", node, *flags, timeout_s=100)

    try:
        async with streams(fleet, 4, stops=lambda number: stops):
            began = time.monotonic()
            await asyncio.to_thread(take)
            if how == "delete" and not stops:
                await asyncio.to_thread(wait_until, lambda: name not in decodes(fleet), 45, "it goes as streams run")
                print(f"\ngone after {time.monotonic() - began:.0f} s")
    finally:
        cluster.kubectl.run("uncordon", node)
        cluster.kubectl.run("taint", "node", node, f"{TAINT}-", check=False)
    wait_until(lambda: name not in decodes(fleet), 120, "the pod is gone")
    wait_serving(fleet, prefill=1, decode=3)
