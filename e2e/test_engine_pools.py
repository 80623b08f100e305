"""Another scaler sets a pool's number by its EnginePool: kubectl and a real HorizontalPodAutoscaler, through a rollout.

The fleet serves all the time, and no request fails.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from kit import Cluster, Kubectl, wait_until
from kit.quickstart import NAME, condition, engine_pods, is_ready, objects, start_load, with_own_profiles
from kit.release import Release

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("engine-pools"),
    pytest.mark.rotating(4),
]

TIME_SCALE = 3.0
HANDLE = f"{NAME}-decode"
LOAD_S = 60
LEAST, MOST = 3, 5
"""Decode engines: the least carries the traffic, so that gateways shed nothing."""


@pytest.fixture
def fleet(cluster: Cluster, release: Release, namespace: str) -> Iterator[Kubectl]:
    """The number of its decode engines is another's."""
    kubectl = cluster.kubectl.within(namespace)
    found, profiles = with_own_profiles(objects(cluster.images.ballast, TIME_SCALE), namespace)
    (pool,) = [item for item in found if item["kind"] == "ServingPool"]
    decode = next(entry for entry in pool["spec"]["pools"] if entry["name"] == "decode")
    del decode["replicas"]
    decode["autoscaling"] = {"minReplicas": LEAST, "maxReplicas": MOST, "by": "External"}
    kubectl.apply(*found)
    has(kubectl, LEAST)
    yield kubectl
    for name in profiles:
        cluster.kubectl.delete_named("hardwareprofile", name)


def has(fleet: Kubectl, count: int) -> None:
    """Wait until so many decode engines serve and scalers are told so."""

    def reached() -> bool:
        pods = engine_pods(fleet, "decode")
        status = fleet.get("enginepool", HANDLE).get("status", {})
        serves = condition(fleet.get("servingpool", NAME), "Available").get("status") == "True"
        told = (status.get("replicas"), status.get("readyReplicas")) == (count, count)
        return serves and told and len(pods) == count and all(map(is_ready, pods))

    wait_until(reached, 240, f"{count} decode engines serve", poll_s=1.0)


def asked(fleet: Kubectl) -> int:
    return int(fleet.get("enginepool", HANDLE)["spec"]["replicas"])


def deployments(fleet: Kubectl) -> list[str]:
    selector = f"serving.ballast.dev/serving-pool={NAME},serving.ballast.dev/pool=decode"
    return [each["metadata"]["name"] for each in fleet.items("deployments", selector)]


def autoscaler(least: int) -> dict[str, Any]:
    """Without a metrics API it can only keep to its bounds: that is enough to see it at work."""
    target = {"apiVersion": "serving.ballast.dev/v1alpha1", "kind": "EnginePool", "name": HANDLE}
    resource = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": HANDLE},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": least,
            "maxReplicas": MOST,
            "metrics": [{"type": "Resource", "resource": resource}],
        },
    }


def test_the_handle_stays_through_rollouts(cluster: Cluster, fleet: Kubectl) -> None:
    url = f"http://{NAME}-gateway:80"
    load = start_load(fleet, "scaled", image=cluster.images.ballast, url=url, duration_s=LOAD_S, time_scale=TIME_SCALE)
    load.wait_started()
    fleet.run("scale", "enginepool", HANDLE, "--replicas=4")
    has(fleet, 4)
    fleet.patch("servingpool", NAME, {"spec": {"engine": {"args": ["--block-size", "32"]}}})
    wait_until(lambda: deployments(fleet) not in ([HANDLE], []) and len(deployments(fleet)) == 1, 240, "it has rolled")
    has(fleet, 4)
    fleet.run("scale", "enginepool", HANDLE, "--replicas=9")
    has(fleet, MOST)
    assert asked(fleet) == 9, "what was asked for stays"
    fleet.run("scale", "enginepool", HANDLE, "--replicas=3")
    has(fleet, LEAST)
    report = load.result(timeout_s=LOAD_S * TIME_SCALE + 180)
    assert report["requests"] > 50
    assert report["failed"] == 0, report.get("failures")
    assert "EditReverted" not in {event["reason"] for event in fleet.items("events")}

    fleet.apply(autoscaler(4))
    wait_until(lambda: asked(fleet) == 4, 90, "the HorizontalPodAutoscaler asks for its minimum")
    has(fleet, 4)
    able = {each["type"]: each["status"] for each in fleet.get("hpa", HANDLE)["status"]["conditions"]}
    assert able["AbleToScale"] == "True"
    header = fleet.text("get", "enginepools").splitlines()[0]
    assert header.split() == ["NAME", "WANTED", "THERE", "READY", "AGE"]
