"""The operator steers under load: it grows and shrinks a fleet, and flips roles by label; no request fails by it.

`ratio.mode` Auto and Advisory, an operator that is killed, and what cannot be decided.

Engines are slow by their profiles, so that a request a second is a load. Counts, roles and records are compared;
when exactly a round comes is the operator's business.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_core.policies.scaling.records import explained
from bench.reliability.kit.asking import ask as asking
from bench.reliability.kit.client import Fate, Outcome, send
from bench.reliability.kit.engines import MODEL as CHECKED_MODEL
from kit import Cluster, Kubectl, wait_until
from kit.quickstart import NAME, condition, engine_pods, is_ready, objects, with_own_profiles
from kit.release import Release

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1500),
    pytest.mark.xdist_group("scaling"),
    pytest.mark.rotating(4),
]

STEP_TIMES = {"overheadMs", "aMs", "dMsPerToken", "kMsPerKvToken", "sMsPerPair", "bMsPerSeq"}
SLOWER = 6
"""A prompt of 1,000 tokens takes an A100 pair a second and one of 600 takes an H20 two, a token takes 0.1 s. Loads are
more than one instance should have, and less than it can bear, so that gateways shed nothing until it has grown."""
ROLE = "serving.ballast.dev/role"
STABLE_S = 20.0
"""Fewer instances must have been right for so long before a pool shrinks."""
GROWN_S, SHRUNK_S = 180.0, 240.0
"""Rounds are 15 s apart and pods take some seconds to start."""
OBJECTIVE: dict[str, Any] = {"ttftS": 20.0, "attainment": 0.9}
TIGHT_TPOT_S = 0.125
"""Leaves an H20 some 40 decodes at a time."""


def fleet_objects(
    cluster: Cluster, fleet: Kubectl, *pools: dict[str, Any], tpot_s: float = 0.5, **ratio: Any
) -> list[dict[str, Any]]:
    """The quickstart with profiles of its own, these pools, and an objective to scale for."""
    assert fleet.namespace is not None
    found, _ = with_own_profiles(objects(cluster.images.ballast, time_scale=1), fleet.namespace)
    for item in found:
        if item["kind"] == "HardwareProfile":  # engines and operator go by the same numbers
            spec = item["spec"]
            spec |= {key: SLOWER * spec[key] for key in STEP_TIMES & spec.keys()}
    (serving_pool,) = [item for item in found if item["kind"] == "ServingPool"]
    spec = serving_pool["spec"]
    by_name = {entry["name"]: entry for entry in spec["pools"]}
    spec["pools"] = [
        {key: value for key, value in by_name[pool.pop("like")].items() if key != "replicas"} | pool for pool in pools
    ]
    spec["model"]["servedNames"] = [spec["model"]["name"], CHECKED_MODEL]
    spec["ratio"] = {"mode": "Auto", **ratio}
    spec["scaleDown"] = {"stabilizationS": STABLE_S}
    spec.pop("sloRefs", None)
    spec["sloRef"] = {"name": "steered"}
    api_version = serving_pool["apiVersion"]
    slo = {"apiVersion": api_version, "kind": "ServiceLevelObjective", "metadata": {"name": "steered"}}
    return [{**slo, "spec": OBJECTIVE | {"tpotS": tpot_s}}, *found]


@pytest.fixture
def fleet(cluster: Cluster, release: Release, namespace: str) -> Iterator[Kubectl]:
    """A namespace whose ServingPool the scenario applies by itself; its profiles go at the end."""
    yield from emptied(cluster, namespace)


@pytest.fixture
def other(cluster: Cluster, release: Release, module_namespace: str) -> Iterator[Kubectl]:
    """Another one."""
    yield from emptied(cluster, module_namespace)


def emptied(cluster: Cluster, namespace: str) -> Iterator[Kubectl]:
    """The namespace, and at the end none of its profiles, which are cluster-scoped."""
    if not cluster.is_testbed:
        pytest.skip("requests are sent from within the cluster's network")
    yield cluster.kubectl.within(namespace)
    for item in cluster.kubectl.items("hardwareprofiles"):
        if item["metadata"]["name"].endswith(f"-{namespace}"):
            cluster.kubectl.delete_named("hardwareprofile", item["metadata"]["name"])


def serving(fleet: Kubectl) -> dict[str, Any]:
    """The ServingPool, once it serves."""

    def found() -> dict[str, Any] | None:
        pool = fleet.get("servingpool", NAME)
        return pool if condition(pool, "Available").get("status") == "True" else None

    pool = wait_until(found, 180, "it serves")
    assert pool is not None
    return pool


def ready(fleet: Kubectl, pool: str | None = None) -> list[dict[str, Any]]:
    return [pod for pod in engine_pods(fleet, pool) if is_ready(pod)]


def roles(fleet: Kubectl) -> Counter[str]:
    return Counter(pod["metadata"]["labels"][ROLE] for pod in ready(fleet))


def records(fleet: Kubectl) -> list[dict[str, Any]]:
    """The stored decisions."""
    found: list[dict[str, Any]] = json.loads(fleet.get("configmap", f"{NAME}-scaling")["data"]["records"])
    return found


def counts(fleet: Kubectl) -> dict[str, int]:
    """Instances that are asked for, by pool."""
    return {pool["name"]: pool["replicas"] for pool in fleet.get("servingpool", NAME)["status"]["pools"]}


def active(fleet: Kubectl) -> tuple[str, str]:
    """The condition ScalingActive."""
    found = condition(fleet.get("servingpool", NAME), "ScalingActive")
    return found.get("status", ""), found.get("reason", "")


def restarts(fleet: Kubectl) -> dict[str, int]:
    """By pod and container."""
    return {
        f"{pod['metadata']['name']}/{each['name']}": each["restartCount"]
        for pod in engine_pods(fleet)
        for each in pod["status"].get("containerStatuses", ())
    }


@asynccontextmanager
async def load(
    fleet: Kubectl, rps: float, *, prompt_tokens: int, output_tokens: int, seed: int
) -> AsyncIterator[list[asyncio.Task[Outcome]]]:
    """So many requests a second while the block runs; all have ended at its end."""
    host = fleet.get("service", f"{NAME}-gateway")["spec"]["clusterIP"]
    running: list[asyncio.Task[Outcome]] = []

    async def source() -> None:
        for number in range(100_000):
            one = asking(number, prompt_tokens=prompt_tokens, output_tokens=output_tokens, seed=seed)
            running.append(asyncio.create_task(send(80, one, "e2e", bound_s=500, host=host)))
            await asyncio.sleep(1 / rps)

    task = asyncio.create_task(source())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def check(running: list[asyncio.Task[Outcome]], what: str) -> None:
    """All whole; prints how many there were."""
    fates = Counter(f"{each.fate} {each.status} {each.reason}".strip() for each in (task.result() for task in running))
    print(f"\n{what}: {dict(fates)}")
    assert {task.result().fate for task in running} == {Fate.WHOLE}, fates


async def test_decisions_are_carried_out_on_two_fleets_at_once(
    cluster: Cluster, release: Release, fleet: Kubectl, other: Kubectl
) -> None:
    """Side by side, as each takes minutes: one operator steers both, and is killed once."""
    async with asyncio.TaskGroup() as both:
        both.create_task(grows_and_shrinks(cluster, release, fleet))
        both.create_task(advises_flips_and_refuses(cluster, other))


async def grows_and_shrinks(cluster: Cluster, release: Release, fleet: Kubectl) -> None:
    """Each move is a record with its reason and what came of it, and an Event. An operator that is killed under load,
    right after the fleet has grown, leaves its counts: no pod is replaced, and the next one goes on."""
    bounds = {"minReplicas": 1, "maxReplicas": 3}
    pools = ({"like": "prefill", "autoscaling": bounds}, {"like": "decode", "autoscaling": bounds})
    fleet.apply(*fleet_objects(cluster, fleet, *pools, minRatio=0.3, maxRatio=3))
    await asyncio.to_thread(serving, fleet)
    assert (len(ready(fleet, "prefill")), len(ready(fleet, "decode"))) == (1, 1)
    async with load(fleet, 0.9, prompt_tokens=1000, output_tokens=60, seed=1) as busy:
        await asyncio.to_thread(wait_until, lambda: len(ready(fleet)) > 2, GROWN_S, "it has grown")
        pods, wanted = {pod["metadata"]["name"] for pod in ready(fleet)}, counts(fleet)
        for pod in release.kubectl.items("pods", "app.kubernetes.io/component=operator"):
            release.kubectl.run("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
        await asyncio.to_thread(
            wait_until, lambda: any(each.get("outcome") for each in records(fleet)), GROWN_S, "told"
        )
        assert {pod["metadata"]["name"] for pod in ready(fleet)} >= pods
        assert all(count >= wanted[pool] for pool, count in counts(fleet).items())
    check(busy, "growing, and an operator killed")
    most = len(ready(fleet))
    async with load(fleet, 0.3, prompt_tokens=100, output_tokens=30, seed=2) as calm:
        await asyncio.to_thread(wait_until, lambda: len(ready(fleet)) == 2, SHRUNK_S, "it has shrunk", poll_s=2.0)
    check(calm, f"shrinking from {most} to 2")
    said = [each["reason"] for each in records(fleet) if each["applied"]]
    print(json.dumps(said))
    assert said[0] == "ScaledUp"
    assert {"ScaledDown", "Rebalanced"} & set(said)
    events = {event["reason"] for event in fleet.items("events") if event["involvedObject"]["name"] == NAME}
    assert events >= {"ScaledUp", "Drained"}


async def test_a_rehearsed_decision_is_carried_out(cluster: Cluster, release: Release, fleet: Kubectl) -> None:
    """What gateways recorded is replayed by the operator's worker process beside it, within its budget; the record has
    what each candidate came to there, the fleet becomes what was chosen, and every request is whole."""
    bounds = {"minReplicas": 1, "maxReplicas": 3}
    pools = ({"like": "prefill", "autoscaling": bounds}, {"like": "decode", "autoscaling": bounds})
    rehearse = {"cpuS": 120, "timeoutS": 240}
    fleet.apply(*fleet_objects(cluster, fleet, *pools, minRatio=0.3, maxRatio=3, rehearse=rehearse))
    await asyncio.to_thread(serving, fleet)

    def rehearsed() -> dict[str, Any] | None:
        tried = [each for each in records(fleet) if each["applied"] and tried_by(each)]
        return tried[-1] if tried else None

    async with load(fleet, 0.9, prompt_tokens=1000, output_tokens=60, seed=5) as busy:
        record = await asyncio.to_thread(
            wait_until, rehearsed, 2 * GROWN_S, "a rehearsed decision is applied", poll_s=2
        )
        assert record is not None
        wanted = {name: sum(counts.values()) for name, counts in record["to"].items()}

        def grown() -> bool:
            return all(len(ready(fleet, pool)) >= count for pool, count in wanted.items())

        await asyncio.to_thread(wait_until, grown, GROWN_S, "it has grown as was decided")
    check(busy, "a fleet that grew after a rehearsal")
    print("\n".join(explained(record)))
    assert record["reason"] == "ScaledUp"
    assert sum(wanted.values()) > 2
    (chosen,) = [each for each in record["candidates"] if each["chosen"]]
    assert chosen in tried_by(record)
    assert record["predicted_attainment"] == chosen["attainment"]


async def test_a_speed_that_nobody_declares_is_learned(cluster: Cluster, release: Release, fleet: Kubectl) -> None:
    """The profiles have no step times. Nothing is scaled until gateways have learned them; what they say then is near
    what the engines run, and the fleet grows."""
    bounds = {"minReplicas": 1, "maxReplicas": 3}
    pools = ({"like": "prefill", "autoscaling": bounds}, {"like": "decode", "autoscaling": bounds})
    found = fleet_objects(cluster, fleet, *pools, minRatio=0.3, maxRatio=3)
    real = {item["metadata"]["name"]: item["spec"].copy() for item in found if item["kind"] == "HardwareProfile"}
    for item in found:
        if item["kind"] == "HardwareProfile":
            item["spec"] = {key: value for key, value in item["spec"].items() if key not in STEP_TIMES}
        if item["kind"] == "ServingPool":
            hardware = {entry["name"]: entry["hardware"] for entry in item["spec"]["pools"]}
            for entry in item["spec"]["pools"]:  # what the engines are, which nobody has told Ballast
                numbers = {"name": "BALLAST_PROFILE", "value": json.dumps(real[entry["hardware"]])}
                entry["template"]["spec"]["containers"][0]["env"].append(numbers)
    fleet.apply(*found)
    await asyncio.to_thread(serving, fleet)

    def learned(pool: str) -> dict[str, Any] | None:
        profile = fleet.get("hardwareprofile", hardware[pool])
        reason = condition(profile, "ProfileAccurate").get("reason")
        return profile["status"]["learned"][0] if reason == "Learned" else None

    async with load(fleet, 0.7, prompt_tokens=1000, output_tokens=60, seed=6) as busy:
        await asyncio.to_thread(wait_until, lambda: active(fleet) == ("False", "SpeedUnknown"), 90, "it says so")
        assert counts(fleet) == {"prefill": 1, "decode": 1}
        told = await asyncio.to_thread(wait_until, lambda: learned("decode"), 2 * GROWN_S, "steps are learned", 2.0)
        await asyncio.to_thread(wait_until, lambda: learned("prefill"), 2 * GROWN_S, "prefills are learned", 2.0)
        await asyncio.to_thread(wait_until, lambda: active(fleet) == ("True", "Steered"), 90, "it is scaled")
    check(busy, "traffic of a fleet whose speed nobody has declared")
    assert told is not None
    steps = [step_ms(numbers, decodes=8, context=1000) for numbers in (told["step"], real[hardware["decode"]])]
    print(f"\na step of 8 decodes: learned {steps[0]:.0f} ms, real {steps[1]:.0f} ms")
    assert steps[0] == pytest.approx(steps[1], rel=0.25)


def step_ms(numbers: dict[str, Any], *, decodes: int, context: int) -> float:
    """By the law of HardwareProfiles; one that was learned has no `sMsPerPair`, which decodes do not need."""
    law = HardwareProfileSpec.parse({"sMsPerPair": 0, "kvTokens": 1000, "kvBytesPerToken": 1, **numbers})
    return 1e3 * law.to_core("any").step_s(decodes, decodes * context, 0, decodes)


def tried_by(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The candidates that were rehearsed with requests enough to count."""
    return [each for each in record["candidates"] if each["attainment"] is not None and each["requests"] >= 50]


async def advises_flips_and_refuses(cluster: Cluster, fleet: Kubectl) -> None:
    """A flexible pool: prompts, then long answers. Advisory changes nothing; with Auto the same pods change their
    roles, none restarts and no stream breaks; contradictory clamps say so and change nothing."""
    flexible = {"like": "decode", "name": "flex", "role": "Flexible", "replicas": 4}
    fleet.apply(*fleet_objects(cluster, fleet, flexible, tpot_s=TIGHT_TPOT_S, mode="Advisory"))
    await asyncio.to_thread(serving, fleet)
    await asyncio.to_thread(wait_until, lambda: len(ready(fleet)) == 4, GROWN_S, "four engines are ready")
    pods, before = {pod["metadata"]["name"] for pod in ready(fleet)}, restarts(fleet)

    async def until(predicate: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(wait_until, predicate, GROWN_S, what)

    async with load(fleet, 1.0, prompt_tokens=600, output_tokens=8, seed=3) as prompts:
        await until(lambda: active(fleet) == ("True", "Advised"), "there is advice")
        assert roles(fleet) == {"flexible": 4}
        fleet.patch("servingpool", NAME, {"spec": {"ratio": {"mode": "Auto"}}})
        await until(lambda: roles(fleet)["prefill"] > roles(fleet)["decode"], "most pods prefill")
    async with load(fleet, 1.0, prompt_tokens=20, output_tokens=300, seed=4) as answers:
        await until(lambda: roles(fleet)["decode"] > roles(fleet)["prefill"], "most pods decode")
        split = roles(fleet)
        fleet.patch("servingpool", NAME, {"spec": {"ratio": {"minRatio": 20}}})
        await until(lambda: active(fleet) == ("False", "ClampsContradict"), "the contradiction is said")
        assert roles(fleet) == split
    check([*prompts, *answers], "advice, flips and contradictory clamps")
    assert {pod["metadata"]["name"] for pod in ready(fleet)} == pods
    assert restarts(fleet) == before
    assert "RolesFlipped" in {each["reason"] for each in records(fleet)}
