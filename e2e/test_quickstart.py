"""The main road: helm install, kubectl apply the quickstart, traffic through its gateway, scale under load, delete.

One story told by several tests on one ServingPool, in file order; each leaves it as the next one finds it.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kit import Cluster, Kubectl, quickstart, wait_until
from kit.quickstart import NAME, condition, engine_pods, set_replicas, start_load, wait_serving
from kit.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.xdist_group("quickstart")]

TIME_SCALE = 2.0
"""Arrivals and step times alike are stretched by this: two cores carry the cluster, the engines and the load."""
URL = f"http://{NAME}-gateway"
REPORT = Path(__file__).resolve().parents[1] / ".cache" / "e2e" / "quickstart-load.json"


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, release: Release, module_namespace: str) -> Kubectl:
    """kubectl in a namespace in which the quickstart serves."""
    kubectl = cluster.kubectl.within(module_namespace)
    kubectl.apply(*quickstart.objects(cluster.images.ballast, TIME_SCALE))
    wait_serving(kubectl, prefill=2, decode=4)
    return kubectl


def keep(name: str, report: dict[str, Any]) -> None:
    """Add a load report to the file that CI and people read, and print its figures."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    REPORT.write_text(json.dumps({**known, name: report}, indent=1) + "\n")
    shown = {key: report.get(key) for key in ("requests", "completed", "failed", "ttft_s", "tpot_s", "goodput_rps")}
    print(f"\n{name} (time scale {TIME_SCALE:g}): {json.dumps(shown)}")


def test_every_engine_runs_on_the_nodes_of_its_hardware(cluster: Cluster, fleet: Kubectl) -> None:
    """Prefill engines are on A100 nodes, decode engines on H20 nodes."""
    for pool, hardware in (("prefill", "a100"), ("decode", "h20")):
        nodes = cluster.hardware_nodes(hardware)
        assert nodes
        assert {pod["spec"]["nodeName"] for pod in engine_pods(fleet, pool)} <= nodes


def test_the_status_says_what_is_there(fleet: Kubectl) -> None:
    """Counts, ratio, conditions with reasons, and the columns of kubectl get."""
    resource = fleet.get("servingpool", NAME)
    status = resource["status"]
    assert status["ratio"] == pytest.approx(0.5)
    assert condition(resource, "Available")["reason"]
    assert condition(resource, "Degraded")["status"] == "False"
    header, row = fleet.text("get", "servingpool", NAME).splitlines()
    assert header.split()[:5] == ["NAME", "PREFILL", "DECODE", "RATIO", "SLO%"]
    assert row.split()[:4] == [NAME, "2/2", "4/4", "2:4"]


def test_a_trace_is_served_without_a_failure(cluster: Cluster, fleet: Kubectl) -> None:
    """The first 120 s of the trace through the gateway's Service: every request ends with all its tokens."""
    load = start_load(fleet, "trace", image=cluster.images.ballast, url=URL, duration_s=120, time_scale=TIME_SCALE)
    report = load.result(timeout_s=120 * TIME_SCALE + 180)
    keep("trace", report)
    assert report["requests"] > 300
    assert report["completed"] == report["requests"]
    assert report["failed"] == 0


def gateway_pods(kubectl: Kubectl) -> set[str]:
    """Names of the gateway's pods, of those that drain, too."""
    found = kubectl.items("pods", f"serving.ballast.dev/serving-pool={NAME},app.kubernetes.io/component=gateway")
    return {pod["metadata"]["name"] for pod in found}


def test_a_new_gateway_breaks_no_stream_of_the_old_one(cluster: Cluster, fleet: Kubectl) -> None:
    """An edit of a setting that restarts gateways, with traffic on: old pods drain while new ones serve."""
    before = gateway_pods(fleet)
    load = start_load(fleet, "roll", image=cluster.images.ballast, url=URL, duration_s=40, time_scale=TIME_SCALE)
    load.wait_started()
    fleet.patch("servingpool", NAME, {"spec": {"gateway": {"settings": {"limits": {"drainGraceS": 2.0}}}}})
    wait_until(lambda: gateway_pods(fleet) - before, 60, "a new gateway pod is there")
    fleet.rollout(f"deployment/{NAME}-gateway")
    report = load.result(timeout_s=40 * TIME_SCALE + 180)
    keep("roll", report)
    assert report["requests"] > 50
    assert report["failed"] == 0, report.get("failures")
    wait_until(lambda: not gateway_pods(fleet) & before, 360, "the old gateway pod has ended with its last stream")


def test_scaling_under_load_loses_at_most_what_ran_on_removed_pods(cluster: Cluster, fleet: Kubectl) -> None:
    """Decode 4 -> 5 -> 3 with traffic on. Engines finish what they have within their grace period."""
    load = start_load(fleet, "scaling", image=cluster.images.ballast, url=URL, duration_s=60, time_scale=TIME_SCALE)
    load.wait_started()
    set_replicas(fleet, decode=5)
    wait_serving(fleet, prefill=2, decode=5)
    before = {pod["metadata"]["name"] for pod in engine_pods(fleet, "decode")}
    set_replicas(fleet, decode=3)
    wait_serving(fleet, prefill=2, decode=3)
    removed = before - {pod["metadata"]["name"] for pod in engine_pods(fleet, "decode")}
    report = load.result(timeout_s=60 * TIME_SCALE + 180)
    keep("scaling", report)
    assert len(removed) == 2
    print(f"{report['failed']} of {report['requests']} requests failed while two pods were removed")
    assert report["failed"] == 0, report.get("failures")


def test_a_broken_reference_is_said_and_heals(fleet: Kubectl) -> None:
    """A missing policy is a False condition that names it; serving goes on; with the policy it is True again."""
    policy = fleet.get("schedulingpolicy", NAME)
    fleet.delete("schedulingpolicy", NAME)

    def said() -> bool:
        found = condition(fleet.get("servingpool", NAME), "ResolvedRefs")
        return found.get("status") == "False" and NAME in found["message"] and "SchedulingPolicy" in found["message"]

    wait_until(said, 60, "ResolvedRefs is False and names the SchedulingPolicy")
    assert condition(fleet.get("servingpool", NAME), "Available")["status"] == "True"
    fleet.apply({key: policy[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": NAME}})
    wait_until(
        lambda: condition(fleet.get("servingpool", NAME), "ResolvedRefs").get("status") == "True",
        60,
        "ResolvedRefs is True again",
    )


def processes_of(pods: set[str], cluster_name: str) -> list[str]:
    """Command lines that run in the test bed's pods of these names, by their control groups and host names."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (folder / "environ").read_bytes().split(b"\0")
            here = any(f"HOSTNAME={pod}".encode() in environment for pod in pods)
            if here and f"/ballast-{cluster_name}/" in (folder / "cgroup").read_text():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_deleting_the_resource_removes_everything(cluster: Cluster, fleet: Kubectl) -> None:
    """No object that carries its label is left, no pod, and no process of one."""
    pods = {pod["metadata"]["name"] for pod in fleet.items("pods", f"serving.ballast.dev/serving-pool={NAME}")}
    name = os.environ.get("BALLAST_TESTBED_NAME", "")
    if cluster.is_testbed:
        assert len(processes_of(pods, name)) >= len(pods)
    fleet.delete("servingpool", NAME)
    kinds = (
        "deployments,replicasets,pods,services,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets,"
        "secrets,leases,networkpolicies"
    )
    selector = f"serving.ballast.dev/serving-pool={NAME}"

    def left() -> list[str]:
        return [f"{each['kind']}/{each['metadata']['name']}" for each in fleet.items(kinds, selector)]

    wait_until(lambda: not left(), 120, "nothing of the ServingPool is left")
    if cluster.is_testbed:
        wait_until(lambda: not processes_of(pods, name), 30, "no process of its pods is left")
