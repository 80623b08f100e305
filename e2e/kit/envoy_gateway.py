"""Envoy Gateway on the cluster, by its own chart, and one Gateway of it."""

import dataclasses
import json
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.cluster import Cluster
from kit.commands import Kubectl
from kit.waiting import wait_until
from testbed.charts import envoy_gateway_chart

NAMESPACE = "envoy-gateway-system"
RELEASE = "eg"
CONTROLLER = "gateway.envoyproxy.io/gatewayclass-controller"


def install(cluster: Cluster, folder: Path) -> None:
    """Install chart and CRDs; waits until its controller serves."""
    chart = envoy_gateway_chart(folder / "envoy-gateway", cluster.images.envoy_gateway)
    cluster.helm.within(NAMESPACE).run(
        "install", RELEASE, str(chart), "--create-namespace", "--wait", "--timeout=180s",
        timeout_s=240,
    )  # fmt: skip


def uninstall(cluster: Cluster) -> None:
    """Remove it with everything that it made. Its Gateways must be deleted already."""
    # Deleting a namespace looks again only after half of its pods' grace period, and Envoy's is six minutes.
    kubectl, made = cluster.kubectl.within(NAMESPACE), "app.kubernetes.io/managed-by=envoy-gateway"
    wait_until(lambda: not kubectl.items("pods", made), 120, "the Envoys of deleted Gateways are gone")
    cluster.kubectl.run("delete", "gatewayclass", RELEASE, "--ignore-not-found", check=False)
    cluster.helm.within(NAMESPACE).run("uninstall", RELEASE, "--ignore-not-found", "--wait", timeout_s=240)
    cluster.kubectl.delete("namespace", NAMESPACE)


def _patient() -> dict[str, Any]:
    """Envoy Gateway's probes give up after a second, once: on a busy machine its Envoy would leave its Service."""
    probe = {"timeoutSeconds": 10, "failureThreshold": 12}
    containers = [
        {"name": name, "readinessProbe": probe, "livenessProbe": probe} for name in ("envoy", "shutdown-manager")
    ]
    return {"type": "StrategicMerge", "value": {"spec": {"template": {"spec": {"containers": containers}}}}}


def gateway_objects(name: str, envoy_image: str) -> list[dict[str, Any]]:
    """A GatewayClass, and a Gateway with an HTTP listener whose Service needs no load balancer."""
    api, own = "gateway.networking.k8s.io/v1", "gateway.envoyproxy.io/v1alpha1"
    proxy = {
        "type": "Kubernetes",
        "kubernetes": {
            "envoyService": {"type": "ClusterIP"},
            "envoyDeployment": {"container": {"image": envoy_image}, "patch": _patient()},
        },
    }
    listener = {"name": "http", "port": 80, "protocol": "HTTP"}
    reference = {"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy", "name": name}
    return [
        {
            "apiVersion": api,
            "kind": "GatewayClass",
            "metadata": {"name": RELEASE},
            "spec": {"controllerName": CONTROLLER},
        },
        {
            "apiVersion": own,
            "kind": "EnvoyProxy",
            "metadata": {"name": name},
            # By default it drains for a minute; at the end of a scenario nothing is left to drain.
            "spec": {"provider": proxy, "shutdown": {"drainTimeout": "5s", "minDrainDuration": "1s"}},
        },
        {
            "apiVersion": api,
            "kind": "Gateway",
            "metadata": {"name": name},
            "spec": {
                "gatewayClassName": RELEASE,
                "listeners": [listener],
                "infrastructure": {"parametersRef": reference},
            },
        },
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class DataPlane:
    """The Envoy that Envoy Gateway made for one Gateway."""

    kubectl: Kubectl
    """In Envoy Gateway's namespace, where its pods and Services are."""
    selector: str

    @property
    def url(self) -> str:
        """Where clients in the cluster find it."""
        (service,) = self.kubectl.items("services", self.selector)
        return f"http://{service['metadata']['name']}.{NAMESPACE}:80"

    def access_log(self) -> list[dict[str, Any]]:
        """One entry per request, as Envoy Gateway's default format has it."""
        lines = self.kubectl.text("logs", "--selector", self.selector, "--container", "envoy", "--tail=-1")
        entries = [json.loads(line) for line in lines.splitlines() if line.startswith('{"')]
        return [entry for entry in entries if "upstream_host" in entry]


def data_plane(cluster: Cluster, namespace: str, gateway: str) -> DataPlane:
    """Wait until the Gateway's Envoy is ready."""
    owner = "gateway.envoyproxy.io/owning-gateway"
    selector = f"{owner}-name={gateway},{owner}-namespace={namespace}"
    kubectl = cluster.kubectl.within(NAMESPACE)

    def ready() -> bool:
        pods = kubectl.items("pods", selector)
        conditions = [c for pod in pods for c in pod["status"].get("conditions", [])]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    wait_until(ready, 120, f"the Envoy of Gateway {gateway} is ready")
    return DataPlane(kubectl, selector)


_CLIENT = """
import concurrent.futures, json, sys, urllib.error, urllib.request
def ask(one):
    body = one["body"].encode() if isinstance(one["body"], str) else json.dumps(one["body"]).encode()
    sent = body if one["method"] == "POST" else None
    call = urllib.request.Request(one["url"], sent, one["headers"], method=one["method"])
    try:
        with urllib.request.urlopen(call, timeout=60) as answer:
            return {"status": answer.status, "headers": dict(answer.headers), "body": answer.read().decode()}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "headers": dict(error.headers), "body": error.read().decode()}
    except OSError as error:
        return {"status": 0, "headers": {}, "body": str(error)}
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    json.dump(list(pool.map(ask, json.load(open("/dev/stdin")))), sys.stdout)
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a client in the cluster got; status 0 if it got nothing."""

    status: int
    headers: Mapping[str, str]
    body: str


def ask(kubectl: Kubectl, target: str, requests: list[dict[str, Any]]) -> list[Answer]:
    """Send requests, 16 at a time, from a pod that has Python: any cluster can do that.

    Each has `url`, and where not the default `method` POST, `headers` and `body` (JSON, or text as it is).
    """
    complete = [{"method": "POST", "headers": {}, "body": ""} | request for request in requests]
    for one in complete:
        one["headers"] = {"content-type": "application/json", **one["headers"]}
        assert urllib.parse.urlsplit(one["url"]).hostname
    said = kubectl.exec(target, "python3", "-c", _CLIENT, stdin=json.dumps(complete), timeout_s=180)
    return [Answer(**each) for each in json.loads(said)]
