"""The quickstart's manifests as a scenario needs them, and load through its gateway by a Job in the cluster."""

import base64
import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from kit.commands import Kubectl
from kit.waiting import wait_until

_ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = _ROOT / "manifests" / "quickstart"
AZURE_TRACE = _ROOT.parent / "shared" / "traces" / "azure23_conv_w1.csv.gz"
"""A public trace; where it is not beside the checkout, the built-in workload takes its place."""

NAME = "quickstart"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def objects(image: str, time_scale: float) -> list[dict[str, Any]]:
    """The quickstart with this image, its engines `time_scale` times as slow as their profiles, and its objective as
    lenient."""
    found = [
        document
        for path in sorted(MANIFESTS.glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for document in yaml.safe_load_all(path.read_text())
    ]
    for document in found:
        if document["kind"] == "ServingPool":
            document["spec"]["engine"]["image"] = image
            for pool in document["spec"]["pools"]:
                for container in pool["template"]["spec"]["containers"]:
                    container["env"] = [{"name": "BALLAST_TIME_SCALE", "value": str(time_scale)}]
        elif document["kind"] == "ServiceLevelObjective":  # gateways shed what would miss it
            for threshold in {"ttftS", "tpotS", "e2eS"} & document["spec"].keys():
                document["spec"][threshold] *= time_scale
    # Policy, objective and profiles first: a ServingPool that refers to them is then right from the start.
    return sorted(found, key=lambda document: document["kind"] == "ServingPool")


def with_own_profiles(found: list[dict[str, Any]], namespace: str) -> tuple[list[dict[str, Any]], list[str]]:
    """These objects with HardwareProfiles named after the namespace, as they are cluster-scoped; and the new names."""
    text = json.dumps(found)
    names = [item["metadata"]["name"] for item in found if item["kind"] == "HardwareProfile"]
    for name in names:
        text = text.replace(json.dumps(name), json.dumps(f"{name}-{namespace}"))
    return json.loads(text), [f"{name}-{namespace}" for name in names]


def set_replicas(kubectl: Kubectl, **replicas: int) -> None:
    """Edit the replicas of pools by name."""
    spec = kubectl.get("servingpool", NAME)["spec"]
    for pool in spec["pools"]:
        pool["replicas"] = replicas.get(pool["name"], pool["replicas"])
    kubectl.patch("servingpool", NAME, {"spec": {"pools": spec["pools"]}})


def engine_pods(kubectl: Kubectl, pool: str | None = None) -> list[dict[str, Any]]:
    """The engines' pods, of one pool or of all."""
    only = f",serving.ballast.dev/pool={pool}" if pool else ""
    return kubectl.items("pods", f"serving.ballast.dev/serving-pool={NAME},app.kubernetes.io/component=engine{only}")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is ready and stays."""
    conditions = pod["status"].get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """One condition of a resource's status; empty when it is not there."""
    found: Iterable[Mapping[str, Any]] = resource.get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == kind), {})


def wait_serving(kubectl: Kubectl, *, prefill: int, decode: int, timeout_s: float = 120.0) -> dict[str, Any]:
    """Wait until exactly so many engines are ready and the status says so; returns the ServingPool."""

    def serving() -> dict[str, Any] | None:
        resource = kubectl.get("servingpool", NAME)
        status = resource.get("status", {})
        ready = {pool["name"]: pool["readyReplicas"] for pool in status.get("pools", [])}
        pods = {name: engine_pods(kubectl, name) for name in ("prefill", "decode")}
        right = (
            ready == {"prefill": prefill, "decode": decode}
            and {name: len(found) for name, found in pods.items()} == ready
            and all(is_ready(pod) for found in pods.values() for pod in found)
            and condition(resource, "Available").get("status") == "True"
            and status["observedGeneration"] == resource["metadata"]["generation"]
        )
        return resource if right else None

    found = wait_until(serving, timeout_s, f"{prefill} prefill and {decode} decode engines serve")
    assert found is not None
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """A load Job in the cluster."""

    kubectl: Kubectl
    name: str

    def wait_started(self) -> None:
        """Until its pod runs."""
        wait_until(
            lambda: any(pod["status"].get("phase") != "Pending" for pod in self._pods()), 60, f"job {self.name} runs"
        )

    def result(self, timeout_s: float) -> dict[str, Any]:
        """The report; waits until the Job is over, whatever came of it."""

        def over() -> bool:
            return any(pod["status"].get("phase") in ("Succeeded", "Failed") for pod in self._pods())

        wait_until(over, timeout_s, f"job {self.name} ends", poll_s=1.0)
        log = self.kubectl.logs(f"job/{self.name}")
        assert "{" in log, f"job {self.name} wrote no report:\n{log[-3000:]}"
        report: dict[str, Any] = json.loads(log[log.index("{") :])
        return report

    def _pods(self) -> list[dict[str, Any]]:
        return self.kubectl.items("pods", f"batch.kubernetes.io/job-name={self.name}")


def start_load(
    kubectl: Kubectl,
    name: str,
    *,
    image: str,
    url: str,
    duration_s: float,
    time_scale: float,
) -> Load:
    """Replay the first `duration_s` seconds of the trace, stretched by `time_scale`, from a pod in the cluster."""
    source = ["--workload", "chat"]
    if AZURE_TRACE.exists():
        content = base64.b64encode(AZURE_TRACE.read_bytes()).decode()
        data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "trace"}}
        kubectl.apply({**data, "binaryData": {"trace.csv.gz": content}})
        source = ["--trace", "/trace/trace.csv.gz"]
    arguments = [
        "load", "--url", url, "--model", "Qwen/Qwen3-32B", *source, "--duration", str(duration_s),
        "--time-scale", str(time_scale), "--slo", "ttft=2,tpot=0.05", "--json", "-",
    ]  # fmt: skip
    container = {
        "name": "load",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "securityContext": RESTRICTED,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "volumeMounts": [{"name": "trace", "mountPath": "/trace", "readOnly": True}],
    }
    pod = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "trace", "configMap": {"name": "trace", "optional": True}}],
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    kubectl.apply({**job, "spec": {"backoffLimit": 0, "template": {"spec": pod}}})
    return Load(kubectl, name)
