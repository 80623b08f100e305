"""Instances of two nodes each: groups of LeaderWorkerSet's own controller, scaled, drained and deleted.

Engine-sims stand in for vLLM: a worker does nothing but run. Leaders serve, so streams through them are checked.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.reliability.kit.engines import MODEL as CHECKED_MODEL
from kit import Cluster, Kubectl, leader_worker_set, wait_until
from kit.quickstart import NAME, condition, is_ready, objects, wait_serving
from kit.release import Release
from test_scale_down import EMPTY_WITHIN_S, ENGINE_DRAIN_S, TIME_SCALE, decodes, streams, wants

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("groups"),
    pytest.mark.rotating(3),
]

WORKERS = f"serving.ballast.dev/serving-pool={NAME},app.kubernetes.io/component=engine-worker"


@pytest.fixture
def fleet(cluster: Cluster, release: Release, namespace: str) -> Iterator[Kubectl]:
    """One prefill engine, and two decode engines of two pods each; no controller yet that knows groups."""
    if not cluster.is_testbed:
        pytest.skip("the controller's image is built by the test bed")
    kubectl = cluster.kubectl.within(namespace)
    found = objects(cluster.images.ballast, TIME_SCALE)
    text = json.dumps(found)
    profiles = [item["metadata"]["name"] for item in found if item["kind"] == "HardwareProfile"]
    for name in profiles:  # they are cluster-scoped
        text = text.replace(json.dumps(name), json.dumps(f"{name}-{namespace}"))
    found = json.loads(text)
    (pool,) = [item for item in found if item["kind"] == "ServingPool"]
    pool["spec"]["model"]["servedNames"] = [pool["spec"]["model"]["name"], CHECKED_MODEL]
    pool["spec"]["scaleDown"] = {"drainTimeoutS": EMPTY_WITHIN_S}
    pool["spec"].setdefault("gateway", {})["settings"] = {"limits": {"drainTimeoutS": ENGINE_DRAIN_S}}
    prefill, decode = pool["spec"]["pools"]
    prefill["replicas"] = 1
    decode |= {"replicas": 2, "nodesPerInstance": 2}
    kubectl.apply(*found)
    yield kubectl
    kubectl.run("delete", "servingpool", NAME, "--ignore-not-found", "--wait=false", check=False)
    leader_worker_set.uninstall(cluster)
    for name in profiles:
        cluster.kubectl.delete_named("hardwareprofile", f"{name}-{namespace}")


def workers(fleet: Kubectl) -> dict[str, dict[str, Any]]:
    """Pods of groups that are no leaders."""
    return {pod["metadata"]["name"]: pod for pod in fleet.items("pods", WORKERS)}


def whole(fleet: Kubectl, groups: int) -> bool:
    """Whether exactly so many groups are there, each with its leader and its worker."""
    pods = [*decodes(fleet).values(), *workers(fleet).values()]
    return len(decodes(fleet)) == len(workers(fleet)) == groups and all(map(is_ready, pods))


async def test_groups_are_made_scaled_drained_and_deleted(cluster: Cluster, fleet: Kubectl, tmp_path: Path) -> None:
    """Without the API the condition says what to install. With it streams outlive the groups that are taken away."""

    def degraded() -> tuple[str, str]:
        found = condition(fleet.get("servingpool", NAME), "Degraded")
        return found.get("reason", ""), found.get("message", "")

    archives = leader_worker_set.build()
    wait_until(lambda: degraded()[0] == "APINotInstalled", 60, "the condition says that the API is missing")
    assert "helm install lws" in degraded()[1]
    leader_worker_set.install(cluster, tmp_path, archives)
    wait_serving(fleet, prefill=1, decode=2, timeout_s=240)
    assert whole(fleet, 2)
    (group,) = fleet.items("leaderworkersets.leaderworkerset.x-k8s.io")
    leader = next(iter(decodes(fleet).values()))
    (engine,) = leader["spec"]["containers"]
    told = {each["name"]: each.get("value") for each in engine["env"]}
    assert told["LWS_GROUP_SIZE"] == "2"
    assert told["LWS_LEADER_ADDRESS"].startswith(leader["metadata"]["name"])
    assert group["metadata"]["name"].startswith(f"{NAME}-decode-2n-")

    wants(fleet, 3)
    wait_until(lambda: whole(fleet, 3), 120, "a third group", poll_s=1.0)
    wait_serving(fleet, prefill=1, decode=3)
    async with streams(fleet, 7, stops=lambda number: True):  # none can move: the pods that go wait for theirs
        await asyncio.to_thread(wants, fleet, 1)
        await asyncio.to_thread(
            wait_until,
            lambda: any("deletionTimestamp" in p["metadata"] for p in decodes(fleet).values()),
            60,
            "some go",
        )
    wait_until(lambda: whole(fleet, 1), 120, "one group stays", poll_s=1.0)
    wait_serving(fleet, prefill=1, decode=1)

    async with streams(fleet, 8, stops=lambda number: number % 2 == 0):
        await asyncio.to_thread(wants, fleet, 2)
        await asyncio.to_thread(wait_until, lambda: whole(fleet, 2), 120, "a second group", poll_s=1.0)
        first = min(decodes(fleet))
        await asyncio.to_thread(fleet.run, "delete", "pod", first, "--wait=false")
    wait_until(lambda: whole(fleet, 2), 180, "the group of the leader that was deleted is there anew", poll_s=1.0)

    fleet.run("delete", "servingpool", NAME, "--wait=false")
    wait_until(lambda: not decodes(fleet) and not workers(fleet), 120, "all groups are gone", poll_s=1.0)
    assert not fleet.items("leaderworkersets.leaderworkerset.x-k8s.io")
