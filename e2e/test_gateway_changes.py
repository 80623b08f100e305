"""Long streams through everything that changes gateways: none is cut, and no request is refused meanwhile.

Every stream outlives what happens to its gateway by far, and is checked word by word; short requests come all the time.
Only where a field says that it restarts gateways are their pods replaced; everything else they take as they run.
"""

import asyncio
import dataclasses
import json
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
from kit.quickstart import NAME, condition, engine_pods, is_ready, objects, wait_serving, with_own_profiles
from kit.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.xdist_group("gateway-changes")]

TIME_SCALE = 3.0
STREAMS, LONG_TOKENS = 12, 1600
"""At 50 ms a token, a stream of these takes 80 s: more than twice what pods get by Kubernetes' own default."""
IN_FORCE_S = 150.0
"""Kubelets bring a ConfigMap's new text within their sync period (60 s, with jitter up to 90 s)."""
SELECTOR = f"serving.ballast.dev/serving-pool={NAME},app.kubernetes.io/component=gateway"


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, release: Release, module_namespace: str) -> Iterator[Kubectl]:
    """A small quickstart with profiles of its own, and two gateways."""
    if not cluster.is_testbed:
        pytest.skip("streams are checked from within the cluster's network")
    kubectl = cluster.kubectl.within(module_namespace)
    found, profiles = with_own_profiles(objects(cluster.images.ballast, TIME_SCALE), module_namespace)
    (pool,) = [item for item in found if item["kind"] == "ServingPool"]
    pool["spec"]["model"]["servedNames"] = [pool["spec"]["model"]["name"], CHECKED_MODEL]
    for entry in pool["spec"]["pools"]:
        entry["replicas"] = {"prefill": 1, "decode": 2}[entry["name"]]
    kubectl.apply(*found)
    wait_serving(kubectl, prefill=1, decode=2)
    wait_until(lambda: len(ready_gateways(kubectl)) == 2 == len(gateways(kubectl)), 60, "both gateways are ready")
    yield kubectl
    for name in profiles:
        cluster.kubectl.delete_named("hardwareprofile", name)


def gateways(fleet: Kubectl) -> dict[str, dict[str, Any]]:
    """The gateways' pods by name, those that end, too."""
    return {pod["metadata"]["name"]: pod for pod in fleet.items("pods", SELECTOR)}


def ready_gateways(fleet: Kubectl) -> set[str]:
    return {name for name, pod in gateways(fleet).items() if is_ready(pod)}


def settings_of(fleet: Kubectl, pod: str) -> dict[str, Any]:
    """What a gateway's admin API says of its settings; it answers on the pod's loopback."""
    code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9090/ballast/v1/settings').read().decode())"
    said: dict[str, Any] = json.loads(fleet.exec(f"pod/{pod}", "python3", "-c", code))
    return said


@asynccontextmanager
async def long_streams(fleet: Kubectl, seed: int) -> AsyncIterator[list[asyncio.Task[Outcome]]]:
    """Twelve long streams that have begun, and three short requests a second beside them; all have ended at the end."""
    host = fleet.get("service", f"{NAME}-gateway")["spec"]["clusterIP"]
    running: list[asyncio.Task[Outcome]] = []

    def begin(number: int, output_tokens: int) -> None:
        one = asking(number, prompt_tokens=60, output_tokens=output_tokens, seed=seed)
        running.append(asyncio.create_task(send(80, one, "e2e", bound_s=500, host=host)))

    async def short() -> None:
        for number in range(1000, 100_000):
            begin(number, 8)
            await asyncio.sleep(0.33)

    for number in range(STREAMS):
        begin(number, LONG_TOKENS)
    await asyncio.sleep(5)
    source = asyncio.create_task(short())
    try:
        yield running
        await asyncio.gather(*running[:STREAMS])
    finally:
        source.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def check(running: list[asyncio.Task[Outcome]], what: str) -> None:
    """All whole; prints how many there were."""
    outcomes = [task.result() for task in running]
    fates = Counter(f"{each.fate} {each.status} {each.reason}".strip() for each in outcomes)
    lasted = [each.ended_s - each.asked_s for each in outcomes[:STREAMS]]
    print(f"\n{what}: {dict(fates)}; long streams took {min(lasted):.0f} to {max(lasted):.0f} s")
    assert {each.fate for each in outcomes} == {Fate.WHOLE}, fates


@dataclasses.dataclass
class Applied:
    """When a change of the settings was in force in all gateways."""

    after_s: float
    pods: set[str]


def in_force(fleet: Kubectl, change: Callable[[], object]) -> Applied:
    """Change something; wait until the operator says that every gateway has taken it."""
    before = fleet.get("servingpool", NAME)["status"]["gateway"]["settingsHash"]
    began = time.monotonic()
    change()

    def done() -> bool:
        pool = fleet.get("servingpool", NAME)
        newest = pool["status"]["gateway"]["settingsHash"]
        complete = condition(pool, "Progressing").get("reason") == "Complete"
        current = pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
        return newest != before and complete and current

    wait_until(done, IN_FORCE_S, "all gateways have the newest settings", poll_s=0.5)
    after_s, newest = time.monotonic() - began, fleet.get("servingpool", NAME)["status"]["gateway"]["settingsHash"]
    pods = ready_gateways(fleet)
    assert {settings_of(fleet, pod)["hash"] for pod in pods} == {newest}
    return Applied(after_s, pods)


@pytest.mark.rotating(4)
async def test_a_policy_edit_reaches_gateways_that_go_on(fleet: Kubectl) -> None:
    spec = {"spec": {"decode": {"type": "least-requests"}}}
    said = await edited(fleet, 1, "a policy edit", lambda: fleet.patch("schedulingpolicy", NAME, spec))
    assert {each["policy"]["decode"]["type"] for each in said} == {"least-requests"}


@pytest.mark.rotating(4)
async def test_a_profile_edit_reaches_gateways_that_go_on(fleet: Kubectl) -> None:
    """A number of the decode engines' HardwareProfile."""
    profile = fleet.get("servingpool", NAME)["spec"]["pools"][1]["hardware"]
    spec = {"spec": {"bMsPerSeq": 0.06}}
    said = await edited(fleet, 2, "a profile edit", lambda: fleet.patch("hardwareprofile", profile, spec))
    assert {each["profiles"][profile]["bMsPerSeq"] for each in said} == {0.06}


@pytest.mark.rotating(4)
async def test_an_objective_edit_reaches_gateways_that_go_on(fleet: Kubectl) -> None:
    """A threshold of the ServiceLevelObjective; the status judges by it."""
    spec = {"spec": {"ttftS": 7.0}}
    said = await edited(fleet, 5, "an objective's edit", lambda: fleet.patch("servicelevelobjective", NAME, spec))
    assert {objective["ttftS"] for each in said for objective in each["objectives"]} == {7.0}


async def edited(fleet: Kubectl, seed: int, what: str, change: Callable[[], object]) -> list[dict[str, Any]]:
    """The settings that gateways say they have after an edit under streams: it is in force within what a kubelet takes
    for a ConfigMap, the pods stay, and the streams go on."""
    before = ready_gateways(fleet)
    assert len(before) == 2
    async with long_streams(fleet, seed) as running:
        applied = await asyncio.to_thread(in_force, fleet, change)
        said = [settings_of(fleet, pod)["settings"] for pod in applied.pods]
    check(running, f"{what}, in force after {applied.after_s:.0f} s")
    assert applied.pods == set(gateways(fleet)) == before
    return said


@pytest.mark.rotating(3)
async def test_a_rollout_of_gateways_cuts_no_stream(fleet: Kubectl) -> None:
    """By a field that restarts gateways."""
    spec = {"spec": {"gateway": {"settings": {"limits": {"drainGraceS": 2.0}}}}}
    await replaced(fleet, 3, "a rollout of the gateways", lambda: fleet.patch("servingpool", NAME, spec))


@pytest.mark.rotating(4)
async def test_an_upgrade_of_the_release_cuts_no_stream(cluster: Cluster, fleet: Kubectl, release: Release) -> None:
    """`helm upgrade` to another image: a new operator replaces the gateways by ones of its release, and no engine."""
    engines = {pod["metadata"]["uid"] for pod in engine_pods(fleet)}
    to = f"image.tag={cluster.images.next_ballast.rpartition(':')[2]}"
    try:
        await replaced(fleet, 6, "helm upgrade", lambda: release.upgrade(to))
        images = {pod["spec"]["containers"][0]["image"] for pod in gateways(fleet).values() if is_ready(pod)}
        assert images == {cluster.images.next_ballast}
        assert {pod["metadata"]["uid"] for pod in engine_pods(fleet)} == engines
    finally:
        before = ready_gateways(fleet)
        release.upgrade()
        wait_until(lambda: len(ready_gateways(fleet) - before) == 2, 120, "gateways of the old image are back")


async def replaced(fleet: Kubectl, seed: int, what: str, change: Callable[[], object]) -> None:
    """Something that replaces all gateways, under streams: the old ones end with their last streams."""
    before = ready_gateways(fleet)

    def roll() -> None:
        change()
        wait_until(lambda: len(ready_gateways(fleet) - before) == 2, 120, "two new gateways are ready")

    async with long_streams(fleet, seed) as running:
        await asyncio.to_thread(roll)
        assert set(gateways(fleet)) & before, "the old ones drain"
    check(running, what)
    wait_until(lambda: not set(gateways(fleet)) & before, 60, "the old gateways end with their last streams")


@pytest.mark.rotating(3)
async def test_draining_a_gateways_node_cuts_no_stream(cluster: Cluster, fleet: Kubectl) -> None:
    """The eviction waits for the streams; the other gateway takes what comes."""
    name, pod = next(iter(sorted(gateways(fleet).items())))
    node = pod["spec"]["nodeName"]
    assert {each["spec"]["nodeName"] for each in gateways(fleet).values()} != {node}, "they are spread over nodes"

    def drain() -> None:
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=320s", f"--pod-selector={SELECTOR}")
        cluster.kubectl.run("drain", node, *flags, timeout_s=330)

    try:
        async with long_streams(fleet, seed=4) as running:
            await asyncio.to_thread(drain)
        check(running, "a drain of a gateway's node")
    finally:
        cluster.kubectl.run("uncordon", node)
    assert name not in gateways(fleet)
    wait_until(lambda: len(ready_gateways(fleet)) == 2, 60, "two gateways are ready again")
