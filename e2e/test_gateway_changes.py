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
from kit.quickstart import NAME, condition, is_ready, objects, wait_serving, with_own_profiles
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
    """The pods stay, the streams go on, and the policy is in force within what a kubelet takes for a ConfigMap."""
    before = ready_gateways(fleet)
    assert len(before) == 2
    spec = {"spec": {"decode": {"type": "least-requests"}}}
    async with long_streams(fleet, seed=1) as running:
        applied = await asyncio.to_thread(in_force, fleet, lambda: fleet.patch("schedulingpolicy", NAME, spec))
        policies = {settings_of(fleet, pod)["settings"]["policy"]["decode"]["type"] for pod in applied.pods}
    check(running, f"a policy edit, in force after {applied.after_s:.0f} s")
    assert policies == {"least-requests"}
    assert applied.pods == set(gateways(fleet)) == before


@pytest.mark.rotating(4)
async def test_a_profile_edit_reaches_gateways_that_go_on(fleet: Kubectl) -> None:
    """A number of the decode engines' HardwareProfile."""
    before = ready_gateways(fleet)
    profile = fleet.get("servingpool", NAME)["spec"]["pools"][1]["hardware"]
    spec = {"spec": {"bMsPerSeq": 0.06}}
    async with long_streams(fleet, seed=2) as running:
        applied = await asyncio.to_thread(in_force, fleet, lambda: fleet.patch("hardwareprofile", profile, spec))
        believed = {settings_of(fleet, pod)["settings"]["profiles"][profile]["bMsPerSeq"] for pod in applied.pods}
    check(running, f"a profile edit, in force after {applied.after_s:.0f} s")
    assert believed == {0.06}
    assert applied.pods == set(gateways(fleet)) == before


@pytest.mark.rotating(3)
async def test_a_rollout_of_gateways_cuts_no_stream(fleet: Kubectl) -> None:
    """A field that restarts gateways; the old ones end with their last streams."""
    before = ready_gateways(fleet)
    spec = {"spec": {"gateway": {"settings": {"limits": {"drainGraceS": 2.0}}}}}

    def roll() -> None:
        fleet.patch("servingpool", NAME, spec)
        wait_until(lambda: len(ready_gateways(fleet) - before) == 2, 120, "two new gateways are ready")

    async with long_streams(fleet, seed=3) as running:
        await asyncio.to_thread(roll)
        assert set(gateways(fleet)) & before, "the old ones drain"
    check(running, "a rollout of the gateways")
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
