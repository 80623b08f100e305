"""The API server dies under load: requests go on, and what was acknowledged before is carried out afterwards.

Kubelets, controllers, gateways and the operator all lose it at once, as with a control plane of one node.
"""

import os
from collections.abc import Iterator

import pytest

from kit import Cluster, Kubectl, wait_until
from kit.quickstart import engine_pods, objects, set_replicas, start_load, wait_serving, with_own_profiles
from kit.release import Release
from testbed import lifecycle

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("api-server"),
    pytest.mark.rotating(3),
]

TIME_SCALE = 2.0
DOWN_S = 15.0
LOAD_S, LOAD_SCALE = 40.0, 4.0
"""Of the trace, and its stretch: twice the engines', as the fleet is half of the quickstart's. Both outages and what is
carried out after them lie within."""


@pytest.fixture
def fleet(cluster: Cluster, release: Release, kubectl: Kubectl) -> Iterator[Kubectl]:
    """A quickstart of two prefill and two decode engines."""
    if not cluster.is_testbed:
        pytest.skip("kills a component of the test bed")
    found, profiles = with_own_profiles(objects(cluster.images.ballast, TIME_SCALE), str(kubectl.namespace))
    (pool,) = [item for item in found if item["kind"] == "ServingPool"]
    for entry in pool["spec"]["pools"]:
        entry["replicas"] = 2
    kubectl.apply(*found)
    wait_serving(kubectl, prefill=2, decode=2)
    yield kubectl
    for name in profiles:
        cluster.kubectl.delete_named("hardwareprofile", name)


def restarts(fleet: Kubectl) -> dict[str, int]:
    """Of each container of the ServingPool, by pod."""
    return {
        f"{pod['metadata']['name']}/{each['name']}": each["restartCount"]
        for pod in fleet.items("pods", "serving.ballast.dev/serving-pool")
        for each in pod["status"].get("containerStatuses", ())
    }


def gone(fleet: Kubectl) -> None:
    """Kill the API server and wait until it answers again."""
    lifecycle.outage(os.environ["BALLAST_TESTBED_NAME"], "kube-apiserver", DOWN_S)
    answered = fleet.run("get", "--raw", "/readyz", "--request-timeout=2s", check=False)
    assert answered.returncode != 0, "it was killed, and answers"
    wait_until(
        lambda: fleet.run("get", "--raw", "/readyz", "--request-timeout=2s", check=False).returncode == 0,
        120,
        "it answers again",
    )


def test_an_api_server_that_dies_breaks_no_request_and_loses_no_edit(cluster: Cluster, fleet: Kubectl) -> None:
    """Killed right after a pool was told to grow, and again right after one was told to shrink, another to grow, and a
    pod was deleted: each time the fleet becomes what the last spec says, every request is whole, and nothing that
    serves restarts."""
    before = restarts(fleet)
    load = start_load(
        fleet,
        "outage",
        image=cluster.images.ballast,
        url="http://quickstart-gateway",
        duration_s=LOAD_S,
        time_scale=LOAD_SCALE,
    )
    load.wait_started()
    set_replicas(fleet, decode=3)
    gone(fleet)
    wait_serving(fleet, prefill=2, decode=3, timeout_s=180)

    victim = engine_pods(fleet, "prefill")[0]["metadata"]["name"]
    set_replicas(fleet, prefill=3, decode=2)
    fleet.run("delete", "pod", victim, "--wait=false")
    gone(fleet)
    wait_serving(fleet, prefill=3, decode=2, timeout_s=240)
    assert victim not in {pod["metadata"]["name"] for pod in engine_pods(fleet)}

    report = load.result(timeout_s=LOAD_S * LOAD_SCALE + 180)
    print(f"\n{report['completed']} of {report['requests']} requests whole over two outages of {DOWN_S:.0f} s and more")
    assert report["requests"] > 80
    assert report["failed"] == 0, report.get("failures")
    assert report["completed"] == report["requests"]
    after = restarts(fleet)
    assert {name: after.get(name, count) for name, count in before.items()} == before
