"""The kinds that the operator reads and writes: where the API server keeps them, and how an object is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ballast_api.common import API_VERSION

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object as plain data, as in YAML."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind at one version."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Path on the API server: of an object, or of the collection without `name` (all namespaces without one)."""
        parts = ["", "apis" if "/" in self.api_version else "api", self.api_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        return "/".join(parts + [part for part in (name, subresource) if part is not None])


SERVING_POOL: Final = Kind(API_VERSION, "ServingPool", "servingpools")
SCHEDULING_POLICY: Final = Kind(API_VERSION, "SchedulingPolicy", "schedulingpolicies")
OBJECTIVE: Final = Kind(API_VERSION, "ServiceLevelObjective", "servicelevelobjectives")
HARDWARE_PROFILE: Final = Kind(API_VERSION, "HardwareProfile", "hardwareprofiles", namespaced=False)

SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
SERVICE: Final = Kind("v1", "Service", "services")
DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
POD: Final = Kind("v1", "Pod", "pods")
EVENT: Final = Kind("v1", "Event", "events")

INFERENCE_POOL: Final = Kind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools")
HTTP_ROUTE: Final = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
GATEWAY: Final = Kind("gateway.networking.k8s.io/v1", "Gateway", "gateways")
EXTENSION_POLICY: Final = Kind("gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy", "envoyextensionpolicies")
TRAFFIC_POLICY: Final = Kind("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy", "backendtrafficpolicies")

REFERRED: Final = (SCHEDULING_POLICY, OBJECTIVE, HARDWARE_PROFILE)
"""Custom resources that a ServingPool names."""
BUILT_IN_CHILDREN: Final = (
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    CONFIG_MAP,
    SERVICE,
    DISRUPTION_BUDGET,
    DEPLOYMENT,
)
"""Children that every cluster can hold, in the order of writing: what a pod needs comes before the pod."""
OPTIONAL_CHILDREN: Final = (INFERENCE_POOL, HTTP_ROUTE, EXTENSION_POLICY, TRAFFIC_POLICY)
"""Children that exist only where their CRD is installed."""
CHILDREN: Final = BUILT_IN_CHILDREN + OPTIONAL_CHILDREN

_BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in CHILDREN}


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Names one object within its namespace."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def kind_of(manifest: Manifest) -> Kind:
    """The kind of a child. Raises KeyError for a kind that is none of ours."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def key_of(manifest: Manifest) -> ObjectKey:
    """The name of an object."""
    return ObjectKey(manifest["kind"], manifest["metadata"]["name"])
