"""Instances that span several nodes, under the real controller of LeaderWorkerSets: they serve, scale, heal and roll.

Engine-sims play vLLM: a group's leader serves, its worker only runs. The test bed has one node of each kind, so both
pods of a group share it. The tests take turns on one ServingPool, each with two groups at its beginning.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from bench.reliability.kit.engines import MODEL as CHECKED_MODEL
from kit import Cluster, Kubectl, leader_worker_set, wait_until
from kit.picker_fleet import kill
from kit.quickstart import (
    NAME,
    condition,
    engine_pods,
    is_ready,
    objects,
    set_replicas,
    wait_serving,
    with_own_profiles,
)
from kit.release import Release
from test_scaling import check, load

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("multi-node"),
    pytest.mark.rotating(3),
]

TIME_SCALE = 2.0
POOL = "serving.ballast.dev/pool"
SET, INDEX = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/worker-index"
GROUP = "leaderworkerset.sigs.k8s.io/group-index"
WITHIN_S = 240.0


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[None]:
    """LeaderWorkerSet's controller and CRD."""
    if not cluster.is_testbed:
        pytest.skip("the controller's image is the test bed's, and streams are checked from within its network")
    leader_worker_set.install(cluster)
    yield
    leader_worker_set.uninstall(cluster)


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, controller: None, release: Release, module_namespace: str) -> Iterator[Kubectl]:
    """The quickstart with one prefill engine on a node and two decode engines of two pods each."""
    kubectl = cluster.kubectl.within(module_namespace)
    found, profiles = with_own_profiles(objects(cluster.images.ballast, TIME_SCALE), module_namespace)
    (pool,) = [item for item in found if item["kind"] == "ServingPool"]
    pool["spec"]["model"]["servedNames"] = [pool["spec"]["model"]["name"], CHECKED_MODEL]
    pool["spec"]["gateway"]["settings"] = {"limits": {"drainTimeoutS": 30}}
    prefill, decode = pool["spec"]["pools"]
    prefill |= {"replicas": 1}
    decode |= {"replicas": 2, "nodesPerInstance": 2}
    kubectl.apply(*found)
    try:
        wait_serving(kubectl, prefill=1, decode=2, timeout_s=WITHIN_S)
        yield kubectl
    finally:
        kubectl.run("delete", "servingpool", NAME, "--cascade=foreground", "--timeout=60s", timeout_s=70, check=False)
        for name in profiles:
            cluster.kubectl.delete_named("hardwareprofile", name)


def groups(fleet: Kubectl) -> dict[str, dict[str, dict[str, Any]]]:
    """Pods of the sets' groups that stay, by set and group, then by worker index."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for pod in fleet.items("pods", SET):
        labels = pod["metadata"]["labels"]
        if "deletionTimestamp" not in pod["metadata"]:
            found.setdefault(f"{labels[SET]}/{labels[GROUP]}", {})[labels[INDEX]] = pod
    return found


def whole(fleet: Kubectl, count: int) -> dict[str, dict[str, dict[str, Any]]] | None:
    """The groups, once there are so many, each of two ready pods."""
    found = groups(fleet)
    right = len(found) == count and all(
        set(each) == {"0", "1"} and all(map(is_ready, each.values())) for each in found.values()
    )
    return found if right else None


def wait_whole(fleet: Kubectl, count: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Until there are so many whole groups, beside those that end, and the ServingPool says so."""
    wait_serving(fleet, prefill=1, decode=count, timeout_s=WITHIN_S)
    found = wait_until(lambda: whole(fleet, count), WITHIN_S, f"{count} whole groups", poll_s=1.0)
    assert found is not None
    return found


def two_groups(fleet: Kubectl) -> dict[str, dict[str, dict[str, Any]]]:
    """What each test begins with."""
    set_replicas(fleet, decode=2)
    return wait_whole(fleet, 2)


async def whole_under_load(fleet: Kubectl, count: int, what: str, seed: int, change: Any) -> None:
    """Make a change with traffic on, until there are so many groups; no request fails by it."""
    async with load(fleet, 1.0, prompt_tokens=200, output_tokens=60, seed=seed) as running:
        await asyncio.sleep(5)
        await asyncio.to_thread(change)
        await asyncio.to_thread(wait_whole, fleet, count)
    check(running, what)


async def test_groups_serve_and_their_leaders_are_the_endpoints(fleet: Kubectl) -> None:
    """Each worker finds its leader by the address that the controller sets; requests reach leaders only."""
    found = two_groups(fleet)
    for group in found.values():
        leader, worker = group["0"], group["1"]
        words = fleet.exec(f"pod/{worker['metadata']['name']}", "cat", "/proc/1/cmdline").split("\0")
        address = words[words.index("--master-addr") + 1]
        lookup = f"import socket; print(socket.gethostbyname({address!r}))"
        resolved = fleet.exec(f"pod/{worker['metadata']['name']}", "python3", "-c", lookup).strip()
        assert resolved == leader["status"]["podIP"]
        assert words[words.index("--nnodes") + 1 : words.index("--nnodes") + 2] == ["2"]
        assert words[words.index("--node-rank") + 1] == "1"
        assert "--headless" in words
    endpoints = {
        address
        for piece in fleet.items("endpointslices", f"kubernetes.io/service-name={NAME}-decode")
        for endpoint in piece["endpoints"] or ()
        for address in endpoint["addresses"]
    }
    assert endpoints == {group["0"]["status"]["podIP"] for group in found.values()}
    async with load(fleet, 1.0, prompt_tokens=200, output_tokens=60, seed=1) as running:
        await asyncio.sleep(10)
    check(running, "two groups")


async def test_groups_are_added_and_removed(fleet: Kubectl) -> None:
    """2 -> 3 -> 1 groups under load: the first ones stay, and no request fails."""
    before = {name: group["0"]["metadata"]["uid"] for name, group in two_groups(fleet).items()}
    await whole_under_load(fleet, 3, "two groups to three", 2, lambda: set_replicas(fleet, decode=3))
    grown = wait_whole(fleet, 3)
    assert {name: grown[name]["0"]["metadata"]["uid"] for name in before} == before
    await whole_under_load(fleet, 1, "three groups to one", 3, lambda: set_replicas(fleet, decode=1))
    (last,) = wait_whole(fleet, 1).items()
    assert before[last[0]] == last[1]["0"]["metadata"]["uid"]


async def test_a_killed_worker_restarts_its_group(cluster: Cluster, fleet: Kubectl) -> None:
    """Leader and worker are made anew, the other group stays, and the ServingPool says when all is well."""
    before = two_groups(fleet)
    hurt = min(before)

    def uids(name: str, of: dict[str, dict[str, dict[str, Any]]]) -> set[str]:
        return {pod["metadata"]["uid"] for pod in of[name].values()}

    def hurt_and_healed() -> None:
        assert kill(cluster, before[hurt]["1"]["metadata"]["name"], "engine")
        wait_until(
            lambda: (now := whole(fleet, 2)) is not None and not uids(hurt, now) & uids(hurt, before),
            WITHIN_S,
            "the group is new",
            poll_s=1.0,
        )

    await whole_under_load(fleet, 2, "a worker killed", 4, hurt_and_healed)
    now = wait_whole(fleet, 2)
    for name in before.keys() - {hurt}:
        assert uids(name, now) == uids(name, before)


@pytest.mark.parametrize(
    "engine", [{"env": [{"name": "A", "value": "b"}]}, {"args": ["--block-size", "32"]}], ids=["in-place", "revision"]
)
async def test_groups_roll(fleet: Kubectl, engine: dict[str, Any]) -> None:
    """What does not change KV blocks rolls within the set; what does, from one set to a new one."""
    before = two_groups(fleet)

    def edit_and_rolled() -> None:
        fleet.patch("servingpool", NAME, {"spec": {"engine": engine}})
        old = {pod["metadata"]["uid"] for group in before.values() for pod in group.values()}

        def rolled() -> bool:
            now = whole(fleet, 2)
            left = {pod["metadata"]["uid"] for pod in fleet.items("pods", SET)} & old
            complete = condition(fleet.get("servingpool", NAME), "Progressing").get("status") == "False"
            return now is not None and not left and complete

        wait_until(rolled, WITHIN_S, "all groups are new", poll_s=1.0)

    await whole_under_load(fleet, 2, f"rolled by {engine}", 5, edit_and_rolled)
    sets = {name.split("/")[0] for name in wait_whole(fleet, 2)}
    (one,) = fleet.items("leaderworkersets", f"{POOL}=decode")
    assert sets == {one["metadata"]["name"]}
    assert (sets == {name.split("/")[0] for name in before}) == ("env" in engine)
    assert len(engine_pods(fleet, "decode")) == 2
