"""The cluster is a real Kubernetes: scheduling, Pod Security, Services, DNS, RBAC, exec and logs work as anywhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kit import Cluster, CommandError, Kubectl, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

# Serves its own name, so that a test sees which pod answered.
_SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["HOSTNAME"].encode())
print("listening", flush=True)
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""

_FETCH = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=2).read().decode())"


def _pod_spec(image: str, hardware: str) -> dict[str, Any]:
    return {
        "nodeSelector": {"serving.ballast.dev/hardware": hardware},
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "web",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python3", "-c", _SERVER],
                "ports": [{"containerPort": 8000}],
                "readinessProbe": {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1},
                "resources": {"limits": {"nvidia.com/gpu": 1}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }


def _web(image: str, hardware: str, replicas: int) -> list[dict[str, Any]]:
    labels = {"app": "web"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec(image, hardware)},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    return [deployment, service]


def _node(cluster: Cluster, name: str) -> Mapping[str, Any]:
    return cluster.kubectl.get("node", name)


def _ready(node: Mapping[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])


@pytest.mark.parametrize("hardware", ["a100", "h20"])
def test_each_hardware_pool_has_ready_nodes_with_gpus(cluster: Cluster, hardware: str) -> None:
    """A pool's nodes are Ready, carry its label and offer GPUs."""
    names = cluster.hardware_nodes(hardware)
    assert names
    for name in names:
        node = _node(cluster, name)
        assert _ready(node)
        assert int(node["status"]["allocatable"]["nvidia.com/gpu"]) > 0


def test_the_gateway_and_the_operator_find_room_beside_the_pools(cluster: Cluster) -> None:
    """There is a node without a hardware label, or labelled ones without taints that keep other pods away."""
    nodes = cluster.kubectl.items("nodes")
    open_nodes = [node for node in nodes if not node["spec"].get("taints")]
    assert open_nodes


def test_a_deployment_rolls_out_on_its_hardware_and_its_service_reaches_every_pod(
    cluster: Cluster, kubectl: Kubectl
) -> None:
    """Restricted pods of the project's image land on the right node; Service, DNS, exec and logs work, hairpin too."""
    for manifest in _web(cluster.images.ballast, "h20", replicas=2):
        kubectl.apply(manifest)
    kubectl.rollout("deploy/web")

    pods = kubectl.items("pods", "app=web")
    assert {pod["spec"]["nodeName"] for pod in pods} <= cluster.hardware_nodes("h20")
    names = {pod["metadata"]["name"] for pod in pods}

    def answers_of_both() -> bool:
        url = f"http://web.{kubectl.namespace}.svc.cluster.local/"
        answers = {kubectl.exec("deploy/web", "python3", "-c", _FETCH, url).strip() for _ in range(8)}
        assert answers <= names
        return answers == names

    wait_until(answers_of_both, 30, "both pods answer through the Service's name, the caller itself included")
    for name in names:
        assert "listening" in kubectl.logs(f"pod/{name}")


def test_a_pod_runs_as_an_ordinary_user_on_a_read_only_root(cluster: Cluster, kubectl: Kubectl) -> None:
    """The image starts as user 65532 without a writable root, and the ballast command is in it."""
    kubectl.apply(_web(cluster.images.ballast, "a100", replicas=1)[0])
    kubectl.rollout("deploy/web")
    assert kubectl.exec("deploy/web", "id", "-u").strip() == "65532"
    assert "Usage" in kubectl.exec("deploy/web", "ballast", "--help")
    with pytest.raises(CommandError, match="Read-only file system"):
        kubectl.exec("deploy/web", "sh", "-c", "echo x > /x")


def test_pod_security_refuses_a_privileged_pod(cluster: Cluster, kubectl: Kubectl) -> None:
    """The namespace's "restricted" level is enforced by the API server."""
    spec = _pod_spec(cluster.images.ballast, "a100")
    spec["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(CommandError, match="violates PodSecurity"):
        kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}, "spec": spec})


def test_a_pod_that_wants_more_gpus_than_a_node_has_stays_pending(cluster: Cluster, kubectl: Kubectl) -> None:
    """GPU capacity is counted by the scheduler."""
    spec = _pod_spec(cluster.images.ballast, "a100")
    spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1000}}
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "greedy"}, "spec": spec})

    def refused() -> bool:
        conditions = kubectl.get("pod", "greedy")["status"].get("conditions", [])
        return any("Insufficient nvidia.com/gpu" in c.get("message", "") for c in conditions)

    wait_until(refused, 30, "the scheduler says why the pod does not fit")


def test_a_service_account_has_only_the_rights_that_it_was_given(kubectl: Kubectl, tmp_path: Path) -> None:
    """A real token of a ServiceAccount is refused until a Role allows the call, and only there."""
    kubectl.run("create", "serviceaccount", "robot")
    robot = kubectl.with_token("robot", tmp_path)
    with pytest.raises(CommandError, match='cannot list resource "pods"'):
        robot.items("pods")
    kubectl.run("create", "role", "reader", "--verb=list", "--resource=pods")
    kubectl.run("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={kubectl.namespace}:robot")
    assert wait_until(lambda: robot.items("pods") == [], 10, "the Role is in force")
    with pytest.raises(CommandError, match='cannot list resource "secrets"'):
        robot.items("secrets")
