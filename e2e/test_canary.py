"""A new image that fails is tried on a share of the requests, paused, and taken back; a good one becomes the fleet.

Engines that fail are engine-sims of another KV revision that refuse every third request: what clients get is answered
by the old revision, and counted against the new one.
"""

import asyncio
import json
from collections.abc import Iterator

import pytest

from bench.reliability.kit.asking import ask as asking
from bench.reliability.kit.client import Fate, Outcome, send
from bench.reliability.kit.engines import MODEL as CHECKED_MODEL
from kit import Cluster, Kubectl, wait_until
from kit.quickstart import NAME, condition, objects, wait_serving, with_own_profiles
from kit.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.xdist_group("canary"), pytest.mark.rotating(5)]

CANARY = {"weight": 50, "observeS": 30, "minRequests": 20}
FAILING = {"fault": "status", "status": 500, "scope": {"share": 0.34, "seed": 1, "paths": ["/v1/*"]}}


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, release: Release, module_namespace: str) -> Iterator[Kubectl]:
    """Two prefill and two decode engines, whose rollouts begin with a canary."""
    if not cluster.is_testbed:
        pytest.skip("requests are sent from within the cluster's network")
    kubectl = cluster.kubectl.within(module_namespace)
    found, profiles = with_own_profiles(objects(cluster.images.ballast, 1.0), module_namespace)
    (pool,) = [item for item in found if item["kind"] == "ServingPool"]
    pool["spec"]["model"]["servedNames"] = [pool["spec"]["model"]["name"], CHECKED_MODEL]
    pool["spec"]["rollout"] = {"maxSurge": 1, "canary": CANARY}
    for entry in pool["spec"]["pools"]:
        entry["replicas"] = 2
    kubectl.apply(*found)
    wait_serving(kubectl, prefill=2, decode=2)
    yield kubectl
    for name in profiles:
        cluster.kubectl.delete_named("hardwareprofile", name)


def edited(fleet: Kubectl, *more: str) -> None:
    """Engines with these arguments more: they count for the KV revision, as every option does that is not listed."""
    live = fleet.get("servingpool", NAME)
    args = [each for each in live["spec"]["engine"].get("args", ()) if not each.startswith("--misbehave")]
    fleet.patch("servingpool", NAME, {"spec": {"engine": {"args": [*args, *more]}}})


def progressing(fleet: Kubectl) -> tuple[str, str]:
    found = condition(fleet.get("servingpool", NAME), "Progressing")
    return str(found["reason"]), str(found["message"])


async def under_load(fleet: Kubectl, reason: str, timeout_s: float) -> list[Outcome]:
    """Requests, eight at a time, until the condition has that reason; what became of them."""
    host = fleet.get("service", f"{NAME}-gateway")["spec"]["clusterIP"]
    outcomes: list[Outcome] = []
    seen = asyncio.Event()

    async def client(number: int) -> None:
        while not seen.is_set():
            number += 8
            ask = asking(number, output_tokens=20, seed=round(timeout_s))
            outcomes.append(await send(80, ask, f"{reason}-{number}", bound_s=60.0, host=host))

    clients = [asyncio.create_task(client(number)) for number in range(8)]
    try:
        await asyncio.to_thread(wait_until, lambda: progressing(fleet)[0] == reason, timeout_s, reason)
    finally:
        seen.set()
        await asyncio.gather(*clients)
    return outcomes


async def test_a_failing_canary_is_paused_and_a_good_one_becomes_the_fleet(fleet: Kubectl) -> None:
    """No client sees the failures; the old revision has all pods again; a good one goes through."""
    edited(fleet, f"--misbehave={json.dumps([FAILING])}")
    outcomes = await under_load(fleet, "CanaryPaused", 300)
    assert {each.fate for each in outcomes} == {Fate.WHOLE}
    assert "apply the old spec" in progressing(fleet)[1]
    edited(fleet)
    wait_until(lambda: progressing(fleet)[0] == "Complete", 120, "the old revision alone")
    edited(fleet, "--misbehave=[]")
    outcomes = await under_load(fleet, "Complete", 400)
    assert {each.fate for each in outcomes} == {Fate.WHOLE}
