"""The main road: helm install, kubectl apply the quickstart, traffic through its gateway, scale under load, delete.

One story told by several tests on one ServingPool, in file order; each leaves it as the next one finds it.
"""

import contextlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kit import Cluster, Kubectl, quickstart, wait_until
from kit.quickstart import NAME, condition, engine_pods, is_ready, set_replicas, start_load, wait_serving
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
    columns = ["NAME", "PREFILL", "DECODE", "RATIO", "SLO%", "READY", "AVAILABLE", "DEGRADED", "REASON", "AGE"]
    assert header.split() == columns
    assert row.split()[:4] == [NAME, "2/2", "4/4", "2:4"]
    assert row.split()[-5:-1] == ["6/6", "True", "False", "Ready"]
    assert fleet.text("get", "spool", NAME).splitlines()[0] == header


@pytest.mark.rotating(3)
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


@pytest.mark.rotating(4)
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


@pytest.mark.rotating(4)
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


class Rollout:
    """What was seen of the engine pods while they were replaced, once in a while."""

    def __init__(self, kubectl: Kubectl, old: str) -> None:
        self._kubectl = kubectl
        self._old = old
        self.seen: list[dict[str, Counter[str]]] = []
        """Ready pods by revision, by pool; under the empty name all that do not end."""
        self._served: set[str] = set()
        """Pods that were ready: one that stays and misses a probe on a busy machine was taken away by nobody."""

    def look(self) -> bool:
        """Whether all pods are ready, and none is of the old revision."""
        now: dict[str, Counter[str]] = {"prefill": Counter(), "decode": Counter()}
        pods = engine_pods(self._kubectl)
        for pod in pods:
            labels = pod["metadata"]["labels"]
            counts = now[labels["serving.ballast.dev/pool"]]
            name, stays = pod["metadata"]["name"], "deletionTimestamp" not in pod["metadata"]
            counts[""] += stays
            if is_ready(pod):
                self._served.add(name)
            counts[labels["serving.ballast.dev/kv-revision"]] += is_ready(pod) or (stays and name in self._served)
        self.seen.append(now)
        return not any(each[self._old] for each in now.values()) and all(map(is_ready, pods))

    def skew(self, revision: str, wanted: dict[str, int]) -> float:
        """The largest difference of shares of new pods."""
        shares = [{pool: each[pool][revision] / count for pool, count in wanted.items()} for each in self.seen]
        return max(max(each.values()) - min(each.values()) for each in shares)


@pytest.mark.rotating(4)
def test_a_change_of_the_block_size_rolls_prefill_and_decode_in_step(cluster: Cluster, fleet: Kubectl) -> None:
    """To 32 and back: engines of two block sizes read none of each other's KV blocks."""
    roll_in_step(cluster, fleet, "revisions", {"args": ["--block-size", "32"]}, {"args": []})


@pytest.mark.rotating(4)
def test_a_new_engine_image_rolls_prefill_and_decode_in_step(cluster: Cluster, fleet: Kubectl) -> None:
    """And the old one again: a rollback is the old spec applied."""
    images = cluster.images
    roll_in_step(cluster, fleet, "images", {"image": images.next_ballast}, {"image": images.ballast})
    assert {pod["spec"]["containers"][0]["image"] for pod in engine_pods(fleet)} == {images.ballast}


def roll_in_step(cluster: Cluster, fleet: Kubectl, name: str, there: dict[str, Any], back: dict[str, Any]) -> None:
    """Two edits of the engine with traffic on and no pod above the wanted number: no request fails, and the bounds of
    the rollout hold at every look.

    One of two prefill engines is out for most of it. At the others' load what is left is busy for 0.7 of the time, and
    the trace's bursts are more than the objective lets wait: here its first 50 s take as long as theirs of 100 s, with
    0.4 of the requests."""
    wanted = {"prefill": 2, "decode": 4}
    set_replicas(fleet, **wanted)
    rollout = {"maxSurge": 0, "maxUnavailable": 1, "maxSkew": 0.25}
    fleet.patch("servingpool", NAME, {"spec": {"rollout": rollout}})
    wait_serving(fleet, **wanted)
    load = start_load(fleet, name, image=cluster.images.ballast, url=URL, duration_s=50, time_scale=2 * TIME_SCALE)
    load.wait_started()
    revisions = [engine_pods(fleet)[0]["metadata"]["labels"]["serving.ballast.dev/kv-revision"]]
    for change in (there, back):
        fleet.patch("servingpool", NAME, {"spec": {"engine": change}})
        wait_until(
            lambda: condition(fleet.get("servingpool", NAME), "Progressing").get("status") == "True", 60, "it rolls"
        )
        rolls = Rollout(fleet, old=revisions[-1])
        wait_until(rolls.look, 240, "all pods are of the new revision", poll_s=0.2)
        (new,) = {pod["metadata"]["labels"]["serving.ballast.dev/kv-revision"] for pod in engine_pods(fleet)}
        revisions.append(new)
        for each in rolls.seen:
            for pool, count in wanted.items():
                assert each[pool][""] <= count
                assert sum(ready for revision, ready in each[pool].items() if revision) >= count - 1
        assert rolls.skew(new, wanted) <= 0.5  # a half is one of two prefill pods
        wait_serving(fleet, **wanted)
    report = load.result(timeout_s=100 * TIME_SCALE + 180)
    keep(name, report)
    assert report["requests"] > 80
    assert report["failed"] == 0, report.get("failures")
    assert revisions[0] == revisions[2] != revisions[1]
    assert len(fleet.items("deployments", f"serving.ballast.dev/serving-pool={NAME}")) == 3


def test_a_broken_reference_is_said_and_heals(fleet: Kubectl) -> None:
    """A missing policy is a False condition that names it; serving goes on; with the policy it is True again.

    It does not go missing by mistake: the API server refuses to delete what a ServingPool names, and says which.
    """
    policy = fleet.get("schedulingpolicy", NAME)
    refused = fleet.run("delete", "schedulingpolicy", NAME, check=False)
    assert f"is named by ServingPool {fleet.namespace}/{NAME}" in refused.stderr
    assert "allow-deletion=true" in refused.stderr
    fleet.delete_named("schedulingpolicy", NAME)

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
