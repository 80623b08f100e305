"""The few calls that bring a cluster up, with the administrator's certificate and a verified server."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.pki import ADMIN, COREDNS, KUBELET_CLIENT, NETWORK_POLICIES
from testbed.spec import GPU_RESOURCE, NodeSpec

_RBAC = "rbac.authorization.k8s.io"


class ApiClient:
    """Blocking JSON calls to the API server on this network namespace's loopback."""

    def __init__(self, port: int, pki: Path, timeout_s: float = 10.0) -> None:
        self._port = port
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / f"{ADMIN.file}.crt", pki / f"{ADMIN.file}.key")

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> tuple[int, str]:
        """Status and text of the answer; raises OSError (ssl and http errors included) when there is none."""
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=self._timeout_s, context=self._tls)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": content_type, "Accept": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()

    def ready(self) -> bool:
        try:
            return self.call("GET", "/readyz")[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def create(self, path: str, body: dict[str, Any]) -> None:
        """Create an object, or leave the one that is there. Raises TestbedError with the server's words."""
        status, text = self.call("POST", path, body)
        if status not in {http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT}:
            raise TestbedError(f"POST {path}: {status} {text}")

    def exists(self, path: str) -> bool:
        return self.call("GET", path)[0] == http.HTTPStatus.OK

    def node_ready(self, name: str) -> bool:
        status, text = self.call("GET", f"/api/v1/nodes/{name}")
        if status != http.HTTPStatus.OK:
            return False
        conditions = json.loads(text)["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def give_gpus(self, node: NodeSpec) -> None:
        """Declare GPUs in the node's status; the kubelet leaves resources alone that it does not manage."""
        resources = {GPU_RESOURCE: str(node.gpus)}
        patch = {"status": {"capacity": resources, "allocatable": resources}}
        path = f"/api/v1/nodes/{node.name}/status"
        status, text = self.call("PATCH", path, patch, "application/merge-patch+json")
        if status != http.HTTPStatus.OK:
            raise TestbedError(f"PATCH {path}: {status} {text}")


def bootstrap_objects() -> list[tuple[str, dict[str, Any]]]:
    """(path, object) pairs that the API server does not make by itself: its rights at kubelets, and those of CoreDNS
    and of the enforcer of NetworkPolicies."""
    roles = f"/apis/{_RBAC}/v1/clusterroles"
    bindings = f"/apis/{_RBAC}/v1/clusterrolebindings"
    readers = {
        COREDNS.user: {"": ["endpoints", "services", "pods", "namespaces"], "discovery.k8s.io": ["endpointslices"]},
        NETWORK_POLICIES.user: {"": ["nodes", "pods", "namespaces"], "networking.k8s.io": ["networkpolicies"]},
    }
    return [
        *((roles, _reader(user, watched)) for user, watched in readers.items()),
        *((bindings, _binding(user, user)) for user in readers),
        (bindings, _binding("system:kubelet-api-admin", KUBELET_CLIENT.user)),
    ]


def _reader(name: str, watched: dict[str, list[str]]) -> dict[str, Any]:
    """`watched`: resources by their API group."""
    verbs = ["get", "list", "watch"]
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{"apiGroups": [group], "resources": kinds, "verbs": verbs} for group, kinds in watched.items()],
    }


def _binding(role: str, user: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"testbed:{user}"},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}],
    }
